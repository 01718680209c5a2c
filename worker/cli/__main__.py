"""`python -m worker.cli` is `regate`, for where the command is not on the PATH."""

from worker.cli.main import main

main()
