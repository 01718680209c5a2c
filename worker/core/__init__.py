"""The core: gate, machine and replay. Pure: no clock, no randomness, no ids made, no I/O, no logging."""
