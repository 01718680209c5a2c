"""Others on the same work, each as its own documentation recommends for durability. They run in `.venv-bench`."""
