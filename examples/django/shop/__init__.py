"""A shop on Django. An order and the run that handles it are committed together, or neither is."""
