"""`keys` and `purge` from the command line."""

from __future__ import annotations

import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Regate, wait_until
from tests.support.stores import POSTGRES, database_url


@pytest.fixture
def regate(tmp_path: Path) -> Regate:
    made = Regate(tmp_path)
    made.set_up()
    return made


def keys_of(regate: Regate) -> list[dict[str, Any]]:
    return regate("keys", "list", "--json").documents


def sql(regate: Regate, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(regate.folder / ".regate" / "regate.db")) as database:
        found = database.execute(statement).fetchall()
        database.commit()
        return found


# --- keys


def test_a_key_is_added_and_rotated_to(regate: Regate) -> None:
    """Added it is not active; rotated to, everything is under it, and every run can still be read."""
    uuid = regate.json("run", "-c", "plain", "hi")["uuid"]
    [old] = keys_of(regate)
    fields = "id active here known runs records created_at"
    assert fields.split() == list(old)
    assert (True, True, True, 1) == (old["active"], old["here"], old["known"], old["runs"])
    assert 0 < old["records"]

    added = regate.json("keys", "add")["id"]

    assert [old["id"], added] == [key["id"] for key in keys_of(regate)]
    assert [True, False] == [key["active"] for key in keys_of(regate)]
    done = regate.json("keys", "rotate")
    assert {"active": added, "fresh": True, "runs": 1, "records": old["records"], "left": 0} == done
    assert [(False, 0, 0), (True, 1, old["records"])] == [
        (key["active"], key["runs"], key["records"]) for key in keys_of(regate)
    ]
    assert "hello" == regate.json("show", uuid)["answer"]
    assert regate.json("replay", uuid)["equal"]
    told = [(row["decision"], row["actor"], row["via"]) for row in regate("audit", "--json").documents]
    assert ["key_added", "key_activated", "keys_rotated"] == [decision for decision, *_ in told[-3:]]
    assert {("local", "cli")} == {(actor, via) for _, actor, via in told[-3:]}


def test_people_are_told_how_far_it_is(regate: Regate) -> None:
    """On stderr; with --json nothing is told there."""
    regate("run", "-c", "plain", "hi")
    done = regate("keys", "rotate")
    assert "the active key is now k-" in done.out
    assert "re-wrapped 1 run and" in done.out
    assert "re-wrapped 1 of 1" in done.err
    assert "finished the rotation to k-" in regate("keys", "rotate", "--no-add").out
    assert "" == regate("keys", "rotate", "--json").err
    assert "it is not active yet" in regate("keys", "add").out
    assert "active" in regate("keys", "list").out


def test_what_stays_under_another_key_is_told_with_exit_1(regate: Regate) -> None:
    """Rows of a key that is not here, by both commands."""
    uuid = regate.json("run", "-c", "plain", "hi")["uuid"]
    sql(regate, f"UPDATE run SET key_id = 'k-lost' WHERE uuid = '{uuid}'")

    assert "1 run cannot be opened here: k-lost is not in this key ring" in regate("keys", "list").out
    assert "1 run cannot be opened here" in regate("keys", "rotate", code=1).out
    assert 1 == regate.json("keys", "rotate", code=1)["left"]
    [lost] = [key for key in keys_of(regate) if key["id"] == "k-lost"]
    assert (False, False, 1, None) == (lost["here"], lost["known"], lost["runs"], lost["created_at"])


@pytest.mark.parametrize(
    ("right", "command"),
    [
        ("keys", ("keys", "list")),
        ("keys", ("keys", "add")),
        ("keys", ("keys", "rotate")),
        ("purge", ("purge", "--older-than", "1d", "--yes")),
        ("purge", ("purge", "--older-than", "1d", "--dry-run")),
    ],
)
def test_it_takes_the_grant(regate: Regate, right: str, command: tuple[str, ...]) -> None:
    """Another grant is not enough."""
    regate("actor", "add", "ada", "--grant", "purge" if right == "keys" else "keys")
    regate("actor", "add", "grace", "--grant", right)
    error = regate(*command, "--as", "ada", "--json", code=1).error
    assert "not_permitted" == error["code"]
    assert right in error["message"]
    regate(*command, "--as", "grace")


def test_a_worker_that_runs_goes_on_after_a_rotation(regate: Regate) -> None:
    """It notices the file: it folds an answer to a run that waited, and drives one that is new."""
    with regate.working():
        waits = regate.json("enqueue", "-c", "support", "hi")["uuid"]
        wait_until(lambda: regate.json("show", waits)["waiting"] is not None, "it waits")
        active = regate.json("keys", "rotate")["active"]

        assert "completed" == regate.json("approve", waits, "--yes", "--wait")["status"]
        assert "completed" == regate.json("enqueue", "-c", "plain", "--wait", "hi")["status"]

    assert {(active,)} == set(sql(regate, "SELECT key_id FROM run"))


def test_a_host_whose_file_was_not_copied_says_so(regate: Regate) -> None:
    """It starts nothing; a newer file makes it start again, and one that is only ahead does no harm."""
    ring = regate.folder / ".regate" / "keys.json"
    copy = shutil.copy(ring, regate.folder / "copy.json")
    active = regate.json("keys", "rotate")["active"]

    error = regate("runs", "--keys-file", str(copy), "--json", code=1).error
    assert "start" == error["code"]
    assert f"lacks {active}, the database's active key" in error["message"]

    shutil.copy(ring, copy)
    added = regate.json("keys", "add")["id"]
    regate("runs", "--keys-file", str(copy))
    error = regate("keys", "rotate", "--keys-file", str(copy), "--json", code=1).error
    assert "keys" == error["code"]
    assert f"{added}, which is newer" in error["message"]
    assert added != regate.json("keys", "add", "--force", "--keys-file", str(copy))["id"]


# --- purge


def test_a_purge_destroys_what_runs_said(regate: Regate) -> None:
    """What is known about them is still told, and everything that needs their content says why it does not go."""
    waits = regate.waiting()["uuid"]
    done = regate.json("run", "-c", "plain", "--snippet", "secret", "hi")["uuid"]
    dead = regate.json("run", "-c", "outside", "--snippet", "secret", "hi", code=1)["uuid"]
    events = regate("events", done, "--json").documents

    assert {"would_purge": 2} == regate.json("purge", "--older-than", "0s", "--dry-run")
    assert {"would_purge": 0} == regate.json("purge", "--older-than", "1h", "--dry-run")
    assert {"purged": 1} == regate.json("purge", "--older-than", "0s", "--status", "failed", "--yes")
    purged = regate("purge", "--older-than", "0s", "--yes")
    assert ("purged 1 run", "purged 1 of 1") == (purged.out.strip(), purged.err.strip())

    shown = regate.json("show", done)
    assert (True, None, "completed") == (shown["purged"], shown["answer"], shown["status"])
    assert "purged" == list(shown)[-1]
    assert "content was purged" in regate("show", done).out
    assert {done: True, dead: True, waits: False} == {
        r["uuid"]: r["purged"] for r in regate("runs", "--json").documents
    }
    assert events == regate("events", done, "--json").documents
    assert "run_purged" in [row["decision"] for row in regate("audit", "--run", done, "--json").documents]
    assert "purged" == regate("replay", done, "--json", code=4).error["code"]
    assert [waits] == [r["uuid"] for r in regate("replay", "--since", "1h", "--json").documents]
    assert [] == regate("runs", "--dead", "--json").documents
    assert "purged" == regate("requeue", dead, "--json", code=4).error["code"]
    assert {"ok"} == {c["state"] for c in regate.json("doctor")["checks"] if c["name"] in ("runs", "dead runs")}
    assert "completed" == regate.json("approve", waits, "--yes", "--wait")["status"]


@pytest.mark.parametrize("age", ["5m", "1w", "-1d", "1", "d", "1d2h", ""])
def test_an_age_has_a_number_and_a_unit(regate: Regate, age: str) -> None:
    """No `m`, which could be a month; what is destroyed is not guessed."""
    error = regate("purge", f"--older-than={age}", "--yes", "--json", code=2).error
    assert "600s, 90min, 12h or 30d" in error["message"]


def test_it_needs_an_age_and_a_yes(regate: Regate) -> None:
    """Nobody is there to be asked."""
    assert "--older-than" in regate("purge", "--yes", "--json", code=2).error["message"]
    assert "not_confirmed" == regate("purge", "--older-than", "1d", "--json", code=2).error["code"]
    assert (
        "usage" == regate("purge", "--older-than", "1d", "--status", "queued", "--yes", "--json", code=2).error["code"]
    )


@pytest.mark.parametrize(("said", "code"), [("n\n", 1), ("y\n", 0)])
def test_a_person_is_asked(regate: Regate, said: str, code: int) -> None:
    """At a terminal, with the number of runs."""
    uuid = regate.json("run", "-c", "plain", "hi")["uuid"]
    person, terminal = pty.openpty()
    command = [sys.executable, "-m", "worker.cli", "purge", "--older-than", "0s", "--json"]
    started = subprocess.Popen(
        command,
        cwd=regate.folder,
        env=regate.environment,
        text=True,
        stdin=terminal,
        stderr=terminal,
        stdout=subprocess.PIPE,
    )
    os.close(terminal)
    asked = b""
    while b"[y/N]" not in asked:
        asked += os.read(person, 1024)
    os.write(person, said.encode())
    out, _ = started.communicate(timeout=60)
    os.close(person)

    assert (code, '{"purged":1}' if code == 0 else "") == (started.returncode, out.strip())
    assert b"Destroy what 1 run said, for good?" in asked
    assert (code == 0) == regate.json("show", uuid)["purged"]


def test_a_file_is_written_anew_and_nothing_is_left_in_it(regate: Regate) -> None:
    """Small ones without being asked; the key's bytes were there before."""
    regate("run", "-c", "plain", "hi")
    [(wrapped,)] = sql(regate, "SELECT wrapped_key FROM run")
    files = regate.folder / ".regate"
    assert any(wrapped in path.read_bytes() for path in files.glob("regate.db*"))

    regate("purge", "--older-than", "0s", "--yes")

    assert not any(wrapped in path.read_bytes() for path in files.glob("regate.db*"))
    assert [(0,)] == sql(regate, "PRAGMA freelist_count")
    regate("purge", "--older-than", "0s", "--yes", "--compact")


@pytest.mark.parametrize("kind", [POSTGRES])
def test_only_a_file_can_be_written_anew(regate: Regate, tmp_path: Path, kind: str) -> None:
    """A server cleans up by itself; everything else is as on a file."""
    with database_url(kind, tmp_path) as url:
        elsewhere = Regate(tmp_path / "elsewhere", REGATE_DATABASE_URL=url)
        elsewhere.set_up()
        elsewhere("run", "-c", "plain", "hi")
        asked = ("purge", "--older-than", "0s", "--yes", "--json")
        assert "not_a_file" == elsewhere(*asked, "--compact", code=2).error["code"]
        assert {"purged": 1} == elsewhere(*asked).document
        assert 1 == len(keys_of(elsewhere))
        assert elsewhere.json("keys", "rotate")["fresh"]
