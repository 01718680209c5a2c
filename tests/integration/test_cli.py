"""The command as people and scripts meet it: what each prints in both forms, and with which code it ends."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Regate

UNKNOWN = "0b5c8a2e-5f0e-4c8b-9d5b-8f3f6a0f1e11"


@pytest.fixture(scope="module")
def regate(tmp_path_factory: pytest.TempPathFactory) -> Regate:
    made = Regate(tmp_path_factory.mktemp("cli"))
    made.set_up()
    return made


def test_a_run_ends_and_is_shown(regate: Regate) -> None:
    """`run` prints the show document at the run's rest, for programs and for people."""
    shown = regate.json("run", "-c", "plain", "hi")
    assert ("completed", "hello", "cli", "local") == tuple(
        shown[name] for name in ("status", "answer", "origin", "started_by")
    )
    page = regate("show", shown["uuid"]).out
    assert shown["uuid"] in page
    assert "hello" in page
    assert shown == regate.json("show", shown["uuid"])


def test_a_run_waits_and_shows_its_question(regate: Regate) -> None:
    """A run that waits is done as far as the command goes; the page says what is asked and how to answer."""
    shown = regate.waiting("support", "--snippet", "secret", "--skill", "refunds")
    waiting = shown["waiting"]
    assert ("approval", 1, None) == (waiting["kind"], waiting["number"], waiting["answered_by"])
    assert [("c1", True), ("c2", True), ("c3", False)] == [(c["id"], c["gated"]) for c in waiting["calls"]]
    assert {"lines": ["Refund order 7 in full.", "The customer gets an e-mail."], "failed": False} == waiting["calls"][
        0
    ]["preview"]
    page = regate("show", shown["uuid"]).out
    assert f"regate approve {shown['uuid']} --question {waiting['question']}" in page
    assert "Refund order 7 in full." in page


def test_texts_cannot_play_with_the_terminal(regate: Regate) -> None:
    """Escapes and markup of a model stand there as they are, visible and without effect."""
    uuid = regate.waiting()["uuid"]
    page = regate("approve", uuid, "--yes").out
    assert "\x1b" not in page
    assert "␛[31m[bold]" in page


def test_a_refused_run_fails_and_says_why(regate: Regate) -> None:
    """What the gate refuses ends with 1, and the page names source, class, zone and provider."""
    done = regate("run", "-c", "outside", "--snippet", "secret", "hi", code=1)
    assert 'snippet "secret" is secret_adjacent, above editor_content' in done.out
    assert "cloud" in done.out
    assert not (regate.folder / "cloud.jsonl").exists()


def test_enqueue_stores_and_says_which(regate: Regate) -> None:
    """`enqueue` prints the uuid and drives nothing, though no worker lives; `--wait` sees the run to its rest."""
    uuid = regate.json("enqueue", "-c", "plain", "hi")["uuid"]
    assert "queued" == regate.json("show", uuid)["status"]
    assert uuid != regate("enqueue", "-c", "plain", "hi").out.strip()
    assert "completed" == regate.json("enqueue", "-c", "plain", "--wait", "hi")["status"]


def test_enqueue_works_while_the_broker_is_away(regate: Regate) -> None:
    """The row is the run; a wake-up that cannot be sent is not missed."""
    done = regate("enqueue", "-c", "plain", "--broker-url", "redis://127.0.0.1:1/0", "hi", "--json")
    assert "queued" == regate.json("show", done.document["uuid"])["status"]


def test_a_prompt_comes_from_stdin(regate: Regate) -> None:
    """`-` reads it, exactly as it is."""
    found = regate("run", "-c", "plain", "--dry-run", "--json", "-", input="größer\n".encode()).document
    assert [{"role": "user", "content": "größer\n"}] == found["messages"]


def test_a_dry_run_shows_and_sends_nothing(regate: Regate) -> None:
    """Messages in order, the tools, and the verdict, with exit 0 even when it would be refused."""
    found = regate.json("run", "-c", "outside", "--snippet", "secret", "--tool", "lookup_order", "--dry-run", "hi")
    assert ["messages", "tools", "explain"] == list(found)
    assert ["lookup_order"] == found["tools"]
    assert "refused" == found["explain"]["verdict"]
    assert "marker-of-a-snippet" in json.dumps(found["messages"])
    assert "nothing was sent" in regate("run", "-c", "outside", "--dry-run", "hi").out


def test_explain_needs_no_prompt(regate: Regate) -> None:
    """It says what the gate would decide, and what would help."""
    found = regate.json("explain", "-c", "outside", "--snippet", "secret")
    assert ("refused", 'snippet "secret"', "external_global", "cloud", "editor_content", "enforce") == tuple(
        found[name] for name in ("verdict", "source", "zone", "provider", "ceiling", "mode")
    )
    assert found["fix"]
    page = regate("explain", "-c", "outside", "--snippet", "secret").out
    assert page.startswith("Refused")
    assert all(fix in page for fix in found["fix"])


def test_runs_are_listed_newest_first(regate: Regate) -> None:
    """One object a line, with what it waits for; filters narrow it."""
    older = regate.waiting()
    newer = regate.json("run", "-c", "plain", "hi")
    found = regate("runs", "--json").documents
    assert [newer["uuid"], older["uuid"]] == [r["uuid"] for r in found if r["uuid"] in (newer["uuid"], older["uuid"])]
    listed = next(r for r in found if r["uuid"] == older["uuid"])
    assert {
        "kind": "approval",
        "question": older["waiting"]["question"],
        "number": 1,
        "answered_by": None,
    } == listed["waiting"]
    keys = "uuid status termination_reason configuration origin started_by created_at rounds waiting blocked purged"
    assert keys.split() == list(listed)
    assert older["uuid"] in regate("runs", "--status", "waiting_for_approval").out
    assert 1 == len(regate("runs", "--limit", "1", "--json").documents)
    assert "No runs." == regate("runs", "--since", "2999-01-01").out.strip()
    assert regate("runs", "--since", "1h", "--json").documents


def test_events_count_from_one_without_gaps(regate: Regate) -> None:
    """Each has a sequence, a time, a kind, a round and a segment; `--follow` ends at the final one."""
    uuid = regate.json("run", "-c", "plain", "hi")["uuid"]
    found = regate("events", uuid, "--json", "--follow").documents
    assert list(range(1, len(found) + 1)) == [event["sequence"] for event in found]
    assert ["sequence", "at", "kind", "round", "segment"] == list(found[0])[:5]
    assert "completed" == found[-1]["final"]
    assert [found[-1]] == regate("events", uuid, "--json", "--after", str(len(found) - 1)).documents
    assert "model_replied" in regate("events", uuid).out
    hidden = regate("events", uuid, "--json", "--privacy", "none").documents
    assert all(["sequence", "at", "kind", "round", "segment"] == list(event) for event in hidden)


def test_the_audit_has_its_fields(regate: Regate) -> None:
    """Every row has every field, a refusal names what it stands on."""
    uuid = regate("run", "-c", "outside", "--snippet", "secret", "hi", "--json", code=1).document["uuid"]
    (row,) = regate("audit", "--run", uuid, "--json").documents
    keys = "at run decision mode source data_class zone ceiling provider configuration tool actor via detail"
    assert keys.split() == list(row)
    assert (uuid, 'snippet "secret"', "secret_adjacent", "external_global", "cloud") == tuple(
        row[name] for name in ("run", "source", "data_class", "zone", "provider")
    )
    assert "catalogue_changed" in regate("audit").out
    assert [] == regate("audit", "--since", "2999-01-01", "--json").documents


def test_replay_says_equal(regate: Regate) -> None:
    """What the machine wrote it computes again; the document is the contract's."""
    uuid = regate.waiting("support", "--snippet", "secret")["uuid"]
    found = regate.json("replay", uuid)
    assert ["uuid", "equal", "entries", "divergence", "sends", "parted_at"] == list(found)
    assert (uuid, True, None, None) == (found["uuid"], found["equal"], found["divergence"], found["parted_at"])
    assert {"sequence": 1, "recorded": "permitted", "now": "permitted", "source": 'snippet "secret"'} == found["sends"][
        0
    ]
    assert "equal" in regate("replay", uuid, "--until", "1").out
    assert len(regate("replay", "--since", "1d", "--json").documents) > 1


def test_replay_says_where_a_journal_was_changed(tmp_path: Path) -> None:
    """A changed byte shows at its sequence, with exit 1."""
    regate = Regate(tmp_path)
    regate.set_up()
    uuid = regate.json("run", "-c", "plain", "hi")["uuid"]
    with closing(sqlite3.connect(tmp_path / ".regate" / "regate.db")) as database, database:
        (payload,) = database.execute("SELECT payload FROM journal WHERE seq = 2").fetchone()
        changed = payload[:-1] + bytes([payload[-1] ^ 1])
        database.execute("UPDATE journal SET payload = ? WHERE seq = 2", (changed,))
    found = regate.json("replay", uuid, code=1)
    assert (False, 2, "damaged") == (found["equal"], found["divergence"]["sequence"], found["divergence"]["cause"])
    assert ["sequence", "cause", "recorded", "computed", "written_by"] == list(found["divergence"])
    assert "diverged" in regate("replay", uuid, code=1).out


def test_a_run_is_cancelled_once_and_for_all(regate: Regate) -> None:
    """Cancelling twice is no error; an ended run cannot be cancelled."""
    uuid = regate.waiting()["uuid"]
    assert "cancelled" == regate.json("cancel", uuid)["status"]
    assert "cancelled" in regate("cancel", uuid).out
    ended = regate.json("run", "-c", "plain", "hi")["uuid"]
    assert "already_ended" == regate("cancel", ended, "--json", code=4).error["code"]


def test_a_failed_run_is_requeued_as_a_new_one(regate: Regate) -> None:
    """What the gate refused goes on once the policy lets it, with everything that it carries."""
    regate("catalog", "set", "configuration", "outside", "provider=cloud")
    failed = regate("run", "-c", "outside", "--snippet", "secret", "hi", "--json", code=1).document["uuid"]
    assert failed in [r["uuid"] for r in regate("runs", "--dead", "--json").documents]
    uuid = regate.json("requeue", failed)["uuid"]
    shown = regate.json("show", uuid)
    assert ("requeue", failed) == (shown["origin"], shown["lineage"]["from"])
    assert failed not in [r["uuid"] for r in regate("runs", "--dead", "--json").documents]
    assert "not_failed" == regate("requeue", uuid, "--json", code=4).error["code"]


def test_tools_are_listed_with_what_they_may_do(regate: Regate) -> None:
    """Effects, classes, gates; the operator's switch counts."""
    regate("catalog", "set", "tool", "http_get", "enabled=false")
    found = {tool["name"]: tool for tool in regate("tools", "--json").documents}
    keys = "name description effect data_class group enabled gated requires_admin input_required egress"
    assert keys.split() == list(found["refund_order"])
    assert (True, "non_idempotent_write") == (found["refund_order"]["gated"], found["refund_order"]["effect"])
    assert found["ask_person"]["input_required"]
    assert not found["http_get"]["enabled"]
    assert "host" == found["post_json"]["egress"]
    assert "switched off" in regate("tools").out


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("show", UNKNOWN), 3, "not_found"),
        (("events", UNKNOWN), 3, "not_found"),
        (("cancel", UNKNOWN), 3, "not_found"),
        (("replay", UNKNOWN), 3, "not_found"),
        (("show", "no-uuid"), 2, "usage"),
        (("run", "-c", "unknown", "hi"), 3, "unknown_configuration"),
        (("run", "-c", "plain", "--snippet", "unknown", "hi"), 3, "unknown_snippet"),
        (("run", "-c", "plain", "--skill", "unknown", "hi"), 3, "unknown_skill"),
        (("run", "-c", "plain", "--tool", "unknown", "hi"), 3, "unknown_tool"),
        (("enqueue", "-c", "plain", ""), 2, "usage"),
        (("run", "-c", "plain", "--tool", "lookup_order", "--no-tools", "hi"), 2, "usage"),
        (("run", "-c", "plain", "--max-iterations", "201", "hi"), 2, "usage"),
        (("runs", "--since", "soon"), 2, "usage"),
        (("runs", "--as", "nobody"), 3, "unknown_actor"),
        (("runs", "--http", "nowhere"), 2, "setting"),
        (("replay",), 2, "usage"),
        (("worker", "--as", "nobody"), 2, "usage"),
        (("nonsense",), 2, "usage"),
        (("up",), 2, "no_web"),
    ],
)
def test_what_goes_wrong_has_a_code(regate: Regate, arguments: tuple[str, ...], code: int, word: str) -> None:
    """One line on stderr, nothing on stdout, a stable word, and the exit code of its kind."""
    done = regate(*arguments, "--json", code=code)
    assert "" == done.out
    assert word == done.error["code"]
    assert {"code", "message", "paths", "uuid", "decided_by"} == set(done.error)


def test_faults_are_one_line_for_people(regate: Regate) -> None:
    """Without --json the line is a sentence."""
    done = regate("show", UNKNOWN, code=3)
    assert "regate: there is no such run\n" == done.err
    assert "" == done.out


@pytest.mark.parametrize("prompt", [b"\xff\xfe", b"caf\xe9"])
def test_a_prompt_is_utf8_or_refused(regate: Regate, prompt: bytes) -> None:
    """As an argument and on stdin."""
    assert 2 == regate("enqueue", "-c", "plain", "--json", prompt, code=2).code
    assert 2 == regate("enqueue", "-c", "plain", "--json", "-", code=2, input=prompt).code


def test_whoever_acts_has_their_own_rights(regate: Regate) -> None:
    """`--as`: what is not yours is not found, what you may not do is refused, and the audit says who came how."""
    regate("actor", "add", "ann", "--grant", "runs:start", "--max-class", "secret_adjacent")
    regate("actor", "add", "bob", "--grant", "runs:start")
    regate("actor", "add", "eve", "--grant", "runs:decide", "--grant", "runs:read", "--grant", "runs:content")
    shown = regate.json("run", "-c", "support", "--as", "ann", "hi")
    uuid = shown["uuid"]
    assert "ann" == shown["started_by"]
    assert [uuid] == [r["uuid"] for r in regate("runs", "--as", "ann", "--json").documents]
    assert [] == regate("runs", "--as", "bob", "--json").documents
    assert "not_found" == regate("show", uuid, "--as", "bob", "--json", code=3).error["code"]
    assert "not_permitted" == regate("approve", uuid, "--yes", "--as", "ann", "--json", code=1).error["code"]
    for refused in (("catalog", "list"), ("actor", "add", "x"), ("doctor",)):
        assert "not_permitted" == regate(*refused, "--as", "bob", "--json", code=1).error["code"]
    assert 1 == regate("run", "-c", "plain", "--snippet", "secret", "--as", "ann", "hi", code=1).code
    regate("deny", uuid, "--yes", "--as", "eve", "--reason", "no")
    rows: list[dict[str, Any]] = regate("audit", "--run", uuid, "--json").documents
    assert ("eve", "cli") in [(row["actor"], row["via"]) for row in rows]
    assert {"actor", "version"} == set(regate.json("actor", "disable", "bob"))
    assert "not_permitted" == regate("run", "-c", "plain", "--as", "bob", "hi", "--json", code=1).error["code"]
    assert "unknown_record" == regate("actor", "disable", "nobody", "--json", code=3).error["code"]
    assert "catalogue_refused" == regate("actor", "add", "x", "--grant", "nonsense", "--json", code=2).error["code"]
