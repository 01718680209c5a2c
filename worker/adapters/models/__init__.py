"""Model providers, one module a kind, and the registry that finds the one that a permit names."""
