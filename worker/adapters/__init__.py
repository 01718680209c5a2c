"""Implementations of the ports: what really talks to databases, brokers, models and the operating system."""
