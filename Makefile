# A convenience only: every target is one line that works without make.
.DEFAULT_GOAL := help
.PHONY: help demo test check lock format clean

help:    ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo:    ## install what runs and show it
	python3 bootstrap.py demo

test:    ## static checks, then all tests
	python3 bootstrap.py test

check:   ## static checks only
	python3 bootstrap.py check

lock:    ## write requirements/*.lock anew from pyproject.toml
	python3 bootstrap.py lock

format:  ## let ruff format and fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:   ## remove the environment, caches and builds; keeps .regate
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
