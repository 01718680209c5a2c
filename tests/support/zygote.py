"""A process that has imported the command already and forks for each call: a second of imports is paid once.

Each call is the command's real `main()` in a process of its own, with its own folder, environment and streams. Reads
one JSON line a call, `{"arguments", "folder", "environment", "streams"}`, and answers with the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from worker.cli.main import COMMANDS, main

_SECONDS: Final = 60


def serve() -> None:
    """Answer calls until stdin ends."""
    for module in {module for module, _ in COMMANDS.values()}:
        importlib.import_module(f"worker.cli.commands.{module}")
    for line in sys.stdin:
        call = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(call)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(call: dict[str, Any]) -> None:
    signal.alarm(_SECONDS)  # a command that hangs dies of it
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    for number, path in enumerate(call["streams"]):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY)
        os.dup2(opened, number)
    sys.argv = ["regate", *(os.fsdecode(bytes.fromhex(argument)) for argument in call["arguments"])]
    # As `python -m` has it.
    sys.path.insert(0, str(Path.cwd()))
    code: Any = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
