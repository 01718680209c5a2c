"""The command line. Only the answer is on stdout; every fault is one line on stderr and an exit code."""
