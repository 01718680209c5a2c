"""A demonstration in under a minute: it runs the real command and tells what happens, step by checked step."""
