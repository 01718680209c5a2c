"""No word of a source, prompt, argument, result, reply, reason or input is in any error, log, audit or event."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.command import Regate, end


def test_planted_words_are_nowhere_in_the_open(tmp_path: Path) -> None:
    """Planted in everything that people and models write, and looked for in everything that is in the clear."""
    regate = Regate(tmp_path)
    regate.set_up()
    with regate.working("--log", "json") as worker:
        uuids = [
            regate.json(
                "enqueue", "-c", name, "--snippet", "secret", "--skill", "refunds", "marker-of-a-prompt", "--wait"
            )["uuid"]
            for name in ("support", "asker", "fragile")
        ]
        approved, asked, fragile = uuids
        regate(
            "approve", approved, "--yes", "--call", "c1", "--rest", "deny", "--reason", "marker-of-a-reason", "--wait"
        )
        regate("submit", asked, "--yes", "--data", '{"answer": "marker-of-an-input"}', "--wait")
        regate("approve", fragile, "--yes", "--wait")
        regate("settle", fragile, "--yes", "--call", "f1", "--happened", "marker-of-an-outcome", "--wait")
        end(worker)
    for arguments in (
        ("run", "-c", "outside", "--snippet", "secret", "--system", "marker-of-a-system", "marker-of-a-prompt"),
        ("run", "-c", "plain", "marker-of-a-prompt", "marker of more"),
        ("run", "-c", "plain", "--marker of an option"),
        ("marker of a command",),
        ("runs", "--status", "marker-of-a-status"),
        ("submit", approved, "--yes", "--data", "marker-of-an-input"),
        ("approve", approved, "--yes", "--edit", "marker-of-an-edit"),
        ("catalog", "set", "snippet", "secret", "data_class=marker-of-a-class"),
    ):
        for form in ((), ("--json",)):
            regate.fails(*arguments, *form)
    clear = [regate("doctor").out, regate("doctor", "--json").out, regate("runs").out, regate("runs", "--json").out]
    clear += [regate("audit").out, regate("audit", "--json").out, regate("catalog", "list", "--json").out]
    clear += [regate("events", uuid, "--json").out + regate("events", uuid).out for uuid in uuids]
    clear += [regate("replay", uuid, "--json").out for uuid in uuids]
    assert regate.stderr
    for text in (*regate.stderr, *clear):
        assert "marker" not in text
    with closing(sqlite3.connect(tmp_path / ".regate" / "regate.db")) as database:
        assert "marker" not in "\n".join(database.iterdump())
    for file in (tmp_path / ".regate").rglob("*"):
        if file.is_file():
            assert b"marker" not in file.read_bytes(), file
