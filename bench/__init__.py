"""The benchmark: `python -m bench` measures, prints a table and writes docs/performance.md."""
