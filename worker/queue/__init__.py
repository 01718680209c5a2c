"""The queue's entry point: takes wake-ups from Redis and hands the runs that they name to the process."""
