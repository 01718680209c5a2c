"""One module per revision, in order. A released one is never changed."""
