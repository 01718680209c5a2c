"""The tools of this process: what modules declare, what is built in, and how both are run."""
