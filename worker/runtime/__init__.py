"""The runtime: the one driver of the machine, and what people and processes ask of runs."""
