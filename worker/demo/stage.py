"""Everything that the demonstration needs and takes away again: a folder, an HTTP endpoint, a worker process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from worker.demo.files import CLOUD_SCRIPT, HOUSE_SCRIPT, catalogue
from worker.demo.model import KEY_VARIABLE, RealModel

__all__ = ["Ended", "Received", "Stage", "wait_for"]

_SOURCES: Final = Path(__file__).resolve().parents[2]
_COMMAND_S: Final = 60
"""Seconds that one command may take; each takes one or two, on a busy machine ten."""
_PATIENCE: Final = 10
"""Times as long with a real model, which may run on a machine without any accelerator."""
_END_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One write that reached the endpoint."""

    key: str
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that has ended: its exit code and the documents that it printed."""

    code: int
    documents: tuple[Any, ...]
    error: str

    @property
    def document(self) -> Any:
        """The first document; empty when there is none."""
        return self.documents[0] if self.documents else {}


class Stage:
    """Use as a context manager: leaving it ends every process and removes the folder, whatever happened."""

    def __init__(self, model: RealModel | None = None) -> None:
        self.model = model
        self.received: list[Received] = []
        self._stack = ExitStack()
        self.folder = Path()
        self.url = ""

    @property
    def patience(self) -> int:
        """Times that everything may take longer than with scripted models."""
        return 1 if self.model is None else _PATIENCE

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="regate-demo-"))
            stack.callback(_remove, self.folder)
            self._open_endpoint(stack)
            self._write_files()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def regate(self, *arguments: str) -> Ended:
        """Run the real command in the folder and read what it prints for programs."""
        done = subprocess.run(
            [sys.executable, "-m", "worker.cli", *arguments, "--json"],
            cwd=self.folder,
            env=_environment(self.model),
            capture_output=True,
            text=True,
            timeout=self.patience * _COMMAND_S,
            check=False,
        )
        documents = tuple(json.loads(line) for line in done.stdout.splitlines())
        return Ended(code=done.returncode, documents=documents, error=done.stderr.strip())

    def start_worker(self) -> int:
        """Start `regate worker`, wait until it takes wake-ups, and give its process id. 0 = it does not begin."""
        log = self.folder / "worker.log"
        with log.open("w") as stderr:
            worker = subprocess.Popen(
                [sys.executable, "-m", "worker.cli", "worker", "--log", "json"],
                cwd=self.folder,
                env=_environment(self.model),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                # Its own session: a Ctrl-C in the terminal reaches the demonstration, which ends the worker in order.
                start_new_session=True,
            )
        self._stack.callback(self._end_worker, worker)
        wait_for(lambda: "worker.ready" in log.read_text() or worker.poll() is not None, _COMMAND_S)
        return worker.pid if worker.poll() is None else 0

    def sent(self, provider: str) -> int:
        """Count what the scripted provider received; it notes every send before it answers."""
        record = self.folder / f"{provider}.jsonl"
        return len(record.read_text().splitlines()) if record.exists() else 0

    def _end_worker(self, worker: subprocess.Popen[bytes]) -> None:
        worker.terminate()
        try:
            worker.wait(_END_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(_END_S)
        # The embedded Valkey ends a moment after its last user; until then it writes into the folder.
        wait_for(lambda: not (self.folder / ".regate" / "broker" / "valkey.sock").exists(), _END_S)

    def _open_endpoint(self, stack: ExitStack) -> None:
        received = self.received

        class Endpoint(BaseHTTPRequestHandler):
            """Takes tickets and notes them."""

            def do_POST(self) -> None:
                """Note one write."""
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.append(Received(key=self.headers["Idempotency-Key"] or "", body=body))
                self.send_response(201)
                self.end_headers()
                self.wfile.write(b'{"ticket": 1}')

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing: the demonstration tells."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()
        stack.callback(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}/tickets"

    def _write_files(self) -> None:
        files = {
            "catalogue.toml": catalogue(self.model, self.url),
            "house.toml": HOUSE_SCRIPT.replace("URL", self.url),
            "cloud.toml": CLOUD_SCRIPT,
        }
        for name, content in files.items():
            (self.folder / name).write_text(content, encoding="utf-8")


def _remove(folder: Path) -> None:
    """Remove a folder, again when somebody who is just ending wrote into it meanwhile."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(gone, _END_S)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; False when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _environment(model: RealModel | None) -> Mapping[str, str]:
    """Give the environment without anybody's settings, and with the place of these sources."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REGATE_")}
    key = {KEY_VARIABLE: model.key} if model is not None and model.key else {}
    return kept | {"PYTHONPATH": str(_SOURCES)} | key
