"""Ports: what the runtime needs of the world, as contracts. Each has one test suite that every adapter passes."""
