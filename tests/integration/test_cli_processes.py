"""Commands and living processes: who drives a run, how a process begins and ends, what a signal does."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command import ROOT, Regate, end, first_line, wait_until


@pytest.fixture
def regate(tmp_path: Path) -> Regate:
    made = Regate(tmp_path)
    made.set_up()
    return made


def status(regate: Regate, uuid: str) -> str:
    return str(regate.json("show", uuid)["status"])


def test_a_worker_drives_what_commands_store(regate: Regate) -> None:
    """`enqueue` and `approve` only store and wake; the worker does the rest, and `doctor` sees it."""
    with regate.working() as worker:
        uuid = regate.json("enqueue", "-c", "support", "hi")["uuid"]
        wait_until(lambda: status(regate, uuid) == "waiting_for_approval", "the run waits")
        shown = regate.json("approve", uuid, "--yes", "--wait")
        assert "completed" == shown["status"]
        later = regate.json("enqueue", "-c", "plain", "--wait", "hi")
        assert "completed" == later["status"]
        checks = {check["name"]: check for check in regate.json("doctor")["checks"]}
        assert ("ok", "1 process alive") == (checks["workers"]["state"], checks["workers"]["message"])
        assert 0 == end(worker)
    events = regate("events", uuid, "--json").documents
    assert events[-1]["segment"] > events[0]["segment"]


def test_up_says_in_json_that_it_is_ready(regate: Regate) -> None:
    """The first line is the address; without the web part there is none."""
    with regate.process("up", "--no-web", "--json", "--port", "0") as started:
        assert started.stdout is not None
        assert {"url": None} == json.loads(first_line(started.stdout))
        assert 0 == end(started)


def test_worker_and_sweeper_end_when_asked(regate: Regate) -> None:
    """Both say nothing on stdout, log to stderr, and end with 0 on SIGTERM."""
    for arguments in (("worker", "--log", "json"), ("sweep", "--every", "0.5", "--log", "json")):
        with regate.process(*arguments) as started:
            wait_until(lambda started=started: "ready" in regate.last_stderr(started), "ready")  # type: ignore[misc]
            started.send_signal(signal.SIGTERM)
            out, _ = started.communicate(timeout=30)
            assert (0, "") == (started.returncode, out)
            lines = [json.loads(line) for line in regate.last_stderr(started).splitlines()]
            assert {"worker.ready", "sweeper.ready"} & {line["event"] for line in lines}


def test_a_sweep_wakes_what_is_due(regate: Regate) -> None:
    """Once, without `--every`; it says how many."""
    regate("enqueue", "-c", "plain", "hi")
    assert {"woken": 1} == regate.json("sweep", "--sweep-seconds", "60")
    assert "0 runs due" == regate("sweep", "--sweep-seconds", "60").out.strip()


def test_following_ends_with_the_run(regate: Regate) -> None:
    """`events --follow` prints what comes until the final event."""
    uuid = regate.waiting()["uuid"]
    with regate.process("events", uuid, "--follow", "--json") as following:
        assert following.stdout is not None
        assert 1 == json.loads(first_line(following.stdout))["sequence"]
        regate("approve", uuid, "--yes")
        rest, _ = following.communicate(timeout=30)
    assert 0 == following.returncode
    assert "completed" == json.loads(rest.splitlines()[-1])["final"]


def test_an_interrupt_cancels_the_run(regate: Regate) -> None:
    """Ctrl-C where nobody can be asked cancels, shows the run, and ends with 130."""
    with regate.process("run", "-c", "slow", "--json", "hi") as started:
        wait_until(lambda: bool(regate("runs", "--status", "running", "--json").out), "the run begins")
        started.send_signal(signal.SIGINT)
        out, _ = started.communicate(timeout=30)
        assert "" == regate.last_stderr(started)
    assert 130 == started.returncode
    assert "cancelled" == json.loads(out)["status"]
    rows = regate("audit", "--run", json.loads(out)["uuid"], "--json").documents
    assert "run_cancelled" in [row["decision"] for row in rows]


def read_until(controller: int, expected: bytes) -> bytes:
    """Read what a terminal shows until it shows this, with a deadline; `OSError` when the command ends before."""
    shown = b""
    while expected not in shown:
        assert select.select([controller], [], [], 60)[0], f"not in time: {expected!r}"
        shown += os.read(controller, 1024)
    return shown


def test_an_interrupt_is_asked_about_on_a_terminal(regate: Regate) -> None:
    """`n` lets the run go on, `y` cancels it; the question is not on stdout."""
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "worker.cli", "run", "-c", "slow", "--json", "hi"]
    started = subprocess.Popen(
        command, cwd=regate.folder, env=regate.environment, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE
    )
    os.close(terminal)  # so that reading ends with the command
    try:
        wait_until(lambda: bool(regate("runs", "--status", "running", "--json").out), "the run begins")
        for answer, told in ((b"n\n", b"The run goes on."), (b"y\n", b"")):
            started.send_signal(signal.SIGINT)
            read_until(controller, b"[y/N]")
            os.write(controller, answer)
            read_until(controller, told)
        out, _ = started.communicate(timeout=30)
    finally:
        started.kill()
        os.close(controller)
    assert 130 == started.returncode
    assert "cancelled" == json.loads(out)["status"]


@pytest.mark.parametrize(("answer", "code", "status"), [(b"y\n", 0, "completed"), (b"\n", 1, "waiting_for_approval")])
def test_a_person_at_a_terminal_is_shown_the_question(regate: Regate, answer: bytes, code: int, status: str) -> None:
    """Without `--question` and `--yes` a person sees what is asked and says yes; anything else answers nothing."""
    shown = regate.waiting()
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "worker.cli", "approve", shown["uuid"], "--json"]
    started = subprocess.Popen(
        command, cwd=regate.folder, env=regate.environment, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE
    )
    os.close(terminal)
    try:
        assert shown["waiting"]["question"].encode() in read_until(controller, b"Approve? [y/N]")
        os.write(controller, answer)
        out, _ = started.communicate(timeout=30)
    finally:
        started.kill()
        os.close(controller)
    assert code == started.returncode
    assert (json.loads(out)["status"] if code == 0 else "") == (status if code == 0 else out.decode())
    assert status == regate.json("show", shown["uuid"])["status"]


def test_any_other_command_is_interrupted_quietly(regate: Regate) -> None:
    """One line, 130, no traceback."""
    uuid = regate.waiting()["uuid"]
    with regate.process("events", uuid, "--follow", "--json") as started:
        assert started.stdout is not None
        first_line(started.stdout)
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=30)
        assert "interrupted" == json.loads(regate.last_stderr(started))["error"]["code"]
    assert 130 == started.returncode


def test_a_reader_that_goes_away_is_no_fault(regate: Regate) -> None:
    """A closed pipe ends the command without a word."""
    uuid = regate.waiting()["uuid"]
    with regate.process("events", uuid, "--follow") as started:
        assert started.stdout is not None
        first_line(started.stdout)
        started.stdout.close()
        regate("cancel", uuid)
        assert 141 == started.wait(30)
        assert "" == regate.last_stderr(started)


def test_migrate_makes_the_schema_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    """It says which revisions it applied."""
    regate = Regate(tmp_path)
    assert regate.json("migrate")["applied"]
    assert [] == regate.json("migrate")["applied"]
    assert "up to date" in regate("migrate").out


def test_the_doctor_changes_nothing(tmp_path: Path) -> None:
    """In an empty folder it says what is not there yet, and leaves the folder empty."""
    regate = Regate(tmp_path / "empty", REGATE_KEY_HOUSE="marker-of-a-provider-key")
    found = regate.json("doctor")
    assert found["ok"]
    assert {"name", "value", "source", "secret"} == set(found["settings"][0])
    assert [] == list(regate.folder.iterdir())
    url = f"sqlite:///{tmp_path}/none.db?password=marker-of-a-password"
    page = regate("doctor", "--max-runs", "7", "--database-url", url)
    assert "marker" not in page.out
    assert "REGATE_KEY_HOUSE" in page.out
    assert "flag" in page.out


def test_the_doctor_finds_what_is_wrong(regate: Regate) -> None:
    """A script that cannot be loaded, a broker that is away, a lost key ring: each in words, and exit 1."""
    (regate.folder / "plain.toml").write_text("nonsense")
    found = regate("doctor", "--json", "--broker-url", "redis://127.0.0.1:1/0", code=1).document
    faults = {check["name"] for check in found["checks"] if check["state"] == "fault"}
    assert {"provider plain", "broker"} == faults
    assert not found["ok"]
    (regate.folder / ".regate" / "keys.json").unlink()
    lost = regate("doctor", code=1).out
    assert "the key ring is missing" in lost
    assert "start" == regate("runs", "--json", code=1).error["code"]


def test_the_doctor_names_what_waits_without_an_end(regate: Regate) -> None:
    """An approval that never expires is told, and so is a run that nobody takes; one that expires in time is not."""
    uuid = regate.json("run", "-c", "support", "please", code=0)["uuid"]
    found = {check["name"]: check["message"] for check in regate.json("doctor")["checks"]}
    assert uuid in found["waiting for approval"]
    regate("catalog", "set", "configuration", "support", "approval_ttl_s=600")
    regate("approve", uuid, "--yes", "--wait")
    regate.json("run", "-c", "support", "please", code=0)
    queued = regate.json("enqueue", "-c", "support", "please")["uuid"]
    with sqlite3.connect(regate.folder / ".regate" / "regate.db") as database:
        database.execute("UPDATE run SET due_at = due_at - 3600 WHERE uuid = ?", (queued,))
    found = {check["name"]: check["message"] for check in regate.json("doctor")["checks"]}
    assert "waiting for approval" not in found
    assert queued in found["due"]
    assert "1 h" in found["due"]


def test_a_running_run_tells_who_has_it(regate: Regate) -> None:
    """By the name with which that worker begins its log."""
    uuid = regate.json("enqueue", "-c", "support", "please")["uuid"]
    assert "held by" not in regate("show", uuid).out
    with sqlite3.connect(regate.folder / ".regate" / "regate.db") as database:
        database.execute("UPDATE run SET status = 'running', token = 't', holder = 'worker:there:7:abc'")
    assert re.search(r"held by +worker:there:7:abc", regate("show", uuid).out)


def test_the_doctor_names_suspects(regate: Regate) -> None:
    """A run that was claimed again and again and came no further; one that two deaths took along is none yet."""
    suspect, other = (regate.json("enqueue", "-c", "support", "please")["uuid"] for _ in range(2))
    with sqlite3.connect(regate.folder / ".regate" / "regate.db") as database:
        for uuid, claims in ((suspect, 4), (other, 2)):
            database.execute("UPDATE run SET in_vain = ? WHERE uuid = ?", (claims, uuid))
    found = {check["name"]: check["message"] for check in regate.json("doctor")["checks"]}
    assert suspect in found["suspects"]
    assert "1 run " in found["suspects"] and "4 times" in found["suspects"]


def test_a_list_of_commands_is_quick() -> None:
    """`--help` imports neither a database nor a broker nor a web client."""
    code = (
        "import sys; sys.argv = ['regate', '--help']\n"
        "from worker.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'sqlalchemy', 'alembic', 'redis', 'httpx', 'dramatiq', 'rich.table', 'cryptography'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "[]" == done.stderr.strip()
    assert "approve" in done.stdout
    assert time.monotonic() - began < 20
