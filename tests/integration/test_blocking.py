"""`BlockingRuntime`: the runtime for programs with threads instead of an event loop."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from codec.vocabulary import QuestionKind, Role, RunStatus
from tests.support.command import CATALOGUE as DOCUMENT
from tests.support.command import ROOT, SCRIPTS, Regate, wait_until
from tests.support.postgres import server
from worker import (
    LOCAL,
    AgentRunRequest,
    BlockingRuntime,
    InvalidError,
    Message,
    NotFoundError,
    Settings,
    StartError,
    UnavailableError,
    Verdicts,
    open_blocking_runtime,
    open_runtime,
)
from worker.adapters.catalogue_file import read_catalogue

_SECONDS: Final = 20.0


def settings(folder: Path, **variables: str) -> Settings:
    """Settings of a data folder with our example tools."""
    return Settings.load({"REGATE_DATA_DIR": str(folder), "REGATE_TOOLS": "tests.support.example_tools"} | variables)


async def set_up(found: Settings) -> None:
    """Apply the catalogue of scripted providers."""
    for name, script in SCRIPTS.items():
        (found.data_dir / f"{name}.toml").write_text(script)
    path = found.data_dir / "catalogue.toml"
    path.write_text(DOCUMENT)
    async with open_runtime(found) as runtime:
        await runtime.parts.catalogue.apply(read_catalogue(path), prune=True, actor="editor", via="cli")


@pytest.fixture
async def found(tmp_path: Path) -> Settings:
    made = settings(tmp_path)
    await set_up(made)
    return made


@pytest.fixture
def regate(found: Settings) -> Iterator[BlockingRuntime]:
    with open_blocking_runtime(found) as opened:
        yield opened


def ask(configuration: str = "plain", **changes: Any) -> AgentRunRequest:
    """Build a request."""
    return AgentRunRequest(configuration=configuration, messages=(Message(role=Role.USER, content="hello"),), **changes)


def threads() -> list[threading.Thread]:
    """Threads of ours that live."""
    return [thread for thread in threading.enumerate() if thread.name == "regate"]


def test_a_run_is_driven_asked_about_and_answered(regate: BlockingRuntime) -> None:
    """Each verb waits for its result."""
    shown = regate.run(ask("support"))
    assert shown.waiting is not None
    assert QuestionKind.APPROVAL is shown.waiting.kind

    regate.decide(LOCAL, shown.uuid, shown.waiting.question, Verdicts(default=True, calls={}), via="test")
    regate.drive(shown.uuid)
    regate.wait(shown.uuid)
    assert RunStatus.COMPLETED is regate.show(LOCAL, shown.uuid).status


def test_a_question_is_submitted_and_a_run_cancelled(regate: BlockingRuntime) -> None:
    """The other answers take the same way."""
    shown = regate.run(ask("asker"))
    assert shown.waiting is not None
    regate.submit(LOCAL, shown.uuid, shown.waiting.question, '{"answer": "yes"}', via="test")
    regate.drive(shown.uuid)
    assert RunStatus.COMPLETED is regate.show(LOCAL, shown.uuid).status

    other = regate.enqueue(ask())
    regate.cancel(LOCAL, other.uuid, via="test")
    assert RunStatus.CANCELLED is regate.show(LOCAL, other.uuid).status


def test_threads_enqueue_on_connections_of_their_own(regate: BlockingRuntime, found: Settings) -> None:
    """A connection of sqlite3 belongs to its thread; what is enqueued on it commits with it, or does not."""
    path = found.data_dir / "regate.db"
    with closing(sqlite3.connect(path)) as setting_up:
        setting_up.execute("CREATE TABLE orders (id integer PRIMARY KEY, run text)")

    def order(number: int) -> tuple[str, bool]:
        with closing(sqlite3.connect(path, timeout=_SECONDS)) as connection:
            handle = regate.enqueue(ask(idempotency_key=f"order-{number}"), connection=connection)
            connection.execute("INSERT INTO orders VALUES (?, ?)", (number, handle.uuid))
            kept = number % 4 != 0
            if kept:
                connection.commit()
                handle.wake()
            return handle.uuid, kept

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(order, range(24)))
    kept = {uuid for uuid, kept in made if kept}
    assert 18 == len(kept)
    with closing(sqlite3.connect(path)) as looking:
        assert kept == {run for (run,) in looking.execute("SELECT run FROM orders")}
        assert kept == {uuid for (uuid,) in looking.execute("SELECT uuid FROM run")}


def test_it_opens_beside_a_transaction_that_writes(found: Settings) -> None:
    """As when the first request of a process opens it inside of its own."""
    with closing(sqlite3.connect(found.data_dir / "regate.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with open_blocking_runtime(found) as regate:
            handle = regate.enqueue(ask(), connection=connection)
            connection.execute("COMMIT")
            assert RunStatus.QUEUED is regate.show(LOCAL, handle.uuid).status


def test_an_async_connection_is_refused(regate: BlockingRuntime, found: Settings) -> None:
    """There is nobody here to await it."""
    engine = create_async_engine("sqlite+aiosqlite://")
    for connection in (engine.connect(), object()):
        with pytest.raises(InvalidError) as refused:
            regate.enqueue(ask(), connection=connection)
        assert "connection_unsupported" == refused.value.code


def test_errors_reach_whoever_asked(regate: BlockingRuntime) -> None:
    """And the runtime goes on."""
    with pytest.raises(NotFoundError):
        regate.show(LOCAL, "00000000-0000-0000-0000-000000000000")
    with pytest.raises(NotFoundError):
        regate.enqueue(ask("nobody"))
    assert RunStatus.COMPLETED is regate.run(ask()).status


def test_what_is_closed_says_so(found: Settings) -> None:
    """Closing twice is one close, and a late wake-up is none."""
    regate = open_blocking_runtime(found)
    handle = regate.enqueue(ask())
    assert 1 == len(threads())
    regate.close()
    regate.close()
    handle.wake()
    with pytest.raises(UnavailableError) as refused:
        regate.enqueue(ask())
    assert "closed" == refused.value.code
    assert [] == threads()


def test_a_call_under_way_is_told_of_the_close(found: Settings) -> None:
    """It would wait for ever: nobody drives the run."""
    regate = open_blocking_runtime(found)
    handle = regate.enqueue(ask())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(regate.wait, handle.uuid)
        wait_until(lambda: waiting.running() and bool(regate._asked), "it waits")
        regate.close(finish_s=0.1)
        with pytest.raises(UnavailableError, match="closed meanwhile"):
            waiting.result(_SECONDS)
    assert [] == threads()


def test_a_run_whose_send_is_under_way_ends_before_the_close(found: Settings) -> None:
    """Its caller has the answer."""
    script = 'record = "plain.jsonl"\n[[reply]]\ntext = "late"\ndelay_ms = 300\n'
    (found.data_dir / "plain.toml").write_text(script)
    regate = open_blocking_runtime(found)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(regate.run, ask())
        wait_until((found.data_dir / "plain.jsonl").exists, "it is sent")
        regate.close()
        assert "late" == running.result(_SECONDS).answer


def test_a_run_that_has_far_to_go_is_released_by_a_close(found: Settings) -> None:
    """At its next boundary. Its caller is told how it stands, and whoever comes next goes on with it."""
    looked_up = 'tool_calls = [{ id = "c1", name = "lookup_order", arguments = { order = 7 } }]'
    script = f'record = "plain.jsonl"\n[[reply]]\n{looked_up}\ndelay_ms = 300\n[[reply]]\ntext = "late"\n'
    (found.data_dir / "plain.toml").write_text(script)
    sent = found.data_dir / "plain.jsonl"
    regate = open_blocking_runtime(found)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(regate.run, ask())
        wait_until(sent.exists, "it is sent")
        regate.close()
        shown = running.result(_SECONDS)
    assert (RunStatus.QUEUED, 1) == (shown.status, len(sent.read_text().splitlines()))
    with open_blocking_runtime(found) as again:
        again.drive(shown.uuid)
        assert "late" == again.show(LOCAL, shown.uuid).answer


def test_what_cannot_be_opened_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    """As `open_runtime` does."""
    with pytest.raises(StartError, match="no_such_module"):
        open_blocking_runtime(settings(tmp_path, REGATE_TOOLS="no_such_module"))
    wait_until(lambda: not threads(), "the thread ends")


def test_a_fork_must_open_its_own(regate: BlockingRuntime) -> None:
    """The thread was not taken along: a call would wait for ever. Closing is the parent's."""
    handle = regate.enqueue(ask())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(int(_SECONDS))
        code = 1
        try:
            handle.wake()
            regate.close()
            regate.show(LOCAL, handle.uuid)
        except UnavailableError as error:
            code = 0 if error.code == "forked" else 2
        finally:
            os._exit(code)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert RunStatus.QUEUED is regate.show(LOCAL, handle.uuid).status


def test_wake_ups_on_their_way_are_sent_before_the_end(tmp_path: Path) -> None:
    """The worker that takes them sweeps once in ten minutes."""
    command = Regate(tmp_path, REGATE_SWEEP_SECONDS="600")
    command.set_up()
    found = Settings.load(command.environment | {"REGATE_DATA_DIR": str(tmp_path / ".regate"), "REGATE_TOOLS": ""})
    with command.working():
        with open_blocking_runtime(found) as regate, closing(sqlite3.connect(tmp_path / ".regate/regate.db")) as shop:
            with shop:
                handle = regate.enqueue(ask(), connection=shop)
            handle.wake()
        wait_until(lambda: "completed" == command.json("show", handle.uuid)["status"], "the worker was told")


def test_a_program_may_end_without_closing(found: Settings) -> None:
    """Quietly, at once, and its runs are there."""
    program = """
from worker import AgentRunRequest, open_blocking_runtime
regate = open_blocking_runtime()
handle = regate.enqueue(AgentRunRequest(configuration="plain", messages=[{"role": "user", "content": "hello"}]))
handle.wake()
print(handle.uuid)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"REGATE_DATA_DIR": str(found.data_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    with open_blocking_runtime(found) as regate:
        assert RunStatus.QUEUED is regate.show(LOCAL, done.stdout.strip()).status


@pytest.mark.postgres
async def test_of_two_threads_with_one_key_the_second_waits(tmp_path: Path) -> None:
    """On PostgreSQL for the first one's transaction; then both have the same run."""
    with server().clone() as url:
        found = settings(tmp_path, REGATE_DATABASE_URL=url)
        await set_up(found)
        with open_blocking_runtime(found) as regate, psycopg.connect(url) as first, psycopg.connect(url) as second:
            request = ask(idempotency_key="order-1")
            handle = regate.enqueue(request, connection=first)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(regate.enqueue, request, connection=second)
                wait_until(lambda: blocked(url) == 1, "the second waits for the first")
                first.commit()
                again = waiting.result(_SECONDS)
            assert (True, False) == (handle.is_new, again.is_new)
            assert handle.uuid == again.uuid


def blocked(url: str) -> int:
    """Count the sessions of this database that wait for a lock."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    try:
        with engine.connect() as connection:
            waiting = sa.text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return int(connection.execute(waiting).scalar_one())
    finally:
        engine.dispose()
