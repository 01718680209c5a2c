"""Answering from the command line: which question, which calls, who was first, and what follows."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.command import Done, Regate


@pytest.fixture(scope="module")
def regate(tmp_path_factory: pytest.TempPathFactory) -> Regate:
    made = Regate(tmp_path_factory.mktemp("answers"))
    made.set_up()
    return made


def executed(regate: Regate, run: str) -> list[dict[str, Any]]:
    """What the tools really did for a run."""
    ledger = regate.folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [line for line in map(json.loads, lines) if line["run"] == run]


def test_the_question_is_named(regate: Regate) -> None:
    """By its id or by --yes; with neither and nobody to ask, nothing is answered."""
    shown = regate.waiting()
    uuid, question = shown["uuid"], shown["waiting"]["question"]
    assert "question_missing" == regate("approve", uuid, "--json", code=2).error["code"]
    assert "stale_question" == regate("approve", uuid, "--question", "0" * 32, "--json", code=4).error["code"]
    assert [] == executed(regate, uuid)
    assert "completed" == regate.json("approve", uuid, "--question", question)["status"]
    assert {"refund_order", "set_label", "lookup_order"} == {line["tool"] for line in executed(regate, uuid)}
    late = regate("approve", uuid, "--question", question, "--json", code=4).error
    assert ("local", uuid) == (late["decided_by"], late["uuid"])


def test_calls_are_named_and_the_rest_is_spoken_of(regate: Regate) -> None:
    """With `--call` the rest needs a word; a call that is not pending decides nothing."""
    uuid = regate.waiting()["uuid"]
    missing = regate("approve", uuid, "--yes", "--call", "c1", "--json", code=2).error
    assert ("verdict_missing", ["$.verdict"]) == (missing["code"], missing["paths"])
    assert "not_pending" == regate("approve", uuid, "--yes", "--call", "c3", "--json", code=4).error["code"]
    assert "usage" == regate("approve", uuid, "--yes", "--rest", "deny", "--json", code=2).error["code"]
    assert regate.json("show", uuid)["waiting"]["answered_by"] is None
    regate("approve", uuid, "--yes", "--call", "c1", "--rest", "deny", "--reason", "marker-of-a-reason")
    assert ["refund_order"] == [line["tool"] for line in executed(regate, uuid) if line["tool"] != "lookup_order"]
    sent = [json.loads(line) for line in (regate.folder / "house.jsonl").read_text().splitlines()]
    (last,) = [line for line in sent if line["run"] == uuid][1:]
    results = {m["tool_call_id"]: m["content"] for m in last["messages"] if m["role"] == "tool"}
    assert "Refunded order 7." == results["c1"]
    assert "marker-of-a-reason" in results["c2"]


def test_a_denial_is_the_same_the_other_way_round(regate: Regate) -> None:
    """Named calls are denied, the rest approved."""
    uuid = regate.waiting()["uuid"]
    regate("deny", uuid, "--yes", "--call", "c1", "--rest", "approve")
    assert {"set_label", "lookup_order"} == {line["tool"] for line in executed(regate, uuid)}
    denied = regate.waiting()["uuid"]
    assert "completed" == regate.json("deny", denied, "--yes")["status"]
    assert ["lookup_order"] == [line["tool"] for line in executed(regate, denied)]


def test_arguments_are_edited(regate: Regate) -> None:
    """`--edit` approves that call with other arguments; those that do not fit decide nothing."""
    uuid = regate.waiting()["uuid"]
    for edit in ('c1={"order": "seven"}', "c1={", "c1"):
        assert 2 == regate("approve", uuid, "--yes", "--edit", edit, "--rest", "deny", "--json", code=2).code
    regate("approve", uuid, "--yes", "--edit", 'c1={"order": 8}', "--rest", "deny")
    (refund,) = [line for line in executed(regate, uuid) if line["tool"] == "refund_order"]
    assert {"order": 8} == refund["arguments"]


def test_input_is_supplied(regate: Regate) -> None:
    """What does not fit what was asked for is refused; the other kinds of answer are a conflict."""
    shown = regate.waiting("asker")
    uuid = shown["uuid"]
    assert ("waiting_for_input", "ask_person") == (shown["status"], shown["waiting"]["input"]["tool"])
    assert "regate submit" in regate("show", uuid).out
    assert "wrong_question" == regate("approve", uuid, "--yes", "--json", code=4).error["code"]
    assert 2 == regate("submit", uuid, "--yes", "--data", "{}", "--json", code=2).code
    assert 2 == regate("submit", uuid, "--yes", "--data", "nonsense", "--json", code=2).code
    done = regate("submit", uuid, "--yes", "--data", "-", "--json", input=b'{"answer": "marker-of-an-input"}').document
    assert ("completed", "thanks") == (done["status"], done["answer"])


@pytest.mark.parametrize(
    ("word", "status"),
    [(("--happened", "it did"), "completed"), (("--run",), "waiting_for_approval"), (("--stop",), "failed")],
)
def test_an_outcome_is_settled(regate: Regate, word: tuple[str, ...], status: str) -> None:
    """A write that failed half-way asks what became of it; approving is no answer to that."""
    uuid = regate.waiting("fragile")["uuid"]
    asked = regate.json("approve", uuid, "--yes")
    assert ("waiting_for_approval", "outcome") == (asked["status"], asked["waiting"]["kind"])
    assert "wrong_question" == regate("approve", uuid, "--yes", "--json", code=4).error["code"]
    assert "wrong_question" == regate("deny", uuid, "--yes", "--json", code=4).error["code"]
    assert 2 == regate("settle", uuid, "--yes", "--call", "f1", "--json", code=2).code
    assert "not_pending" == regate("settle", uuid, "--yes", "--call", "zz", "--run", "--json", code=4).error["code"]
    assert "regate settle" in regate("show", uuid).out
    assert status == regate.json("settle", uuid, "--yes", "--call", "f1", *word)["status"]


def test_of_many_answers_one_counts(regate: Regate) -> None:
    """Ten approve and one cancels at once: one answer is stored, the others are told whose it is."""
    shown = regate.waiting()
    uuid, question = shown["uuid"], shown["waiting"]["question"]
    calls = [("approve", uuid, "--question", question)] * 10 + [("cancel", uuid)]

    def call(arguments: tuple[str, ...]) -> Done:
        with regate.process(*arguments, "--json") as started:
            out, _ = started.communicate(timeout=120)
            return Done(code=started.returncode, out=out, err=regate.last_stderr(started))

    with ThreadPoolExecutor(len(calls)) as pool:
        *answers, cancelled = pool.map(call, calls)
    given = [done for done in answers if done.code == 0]
    assert len(given) <= 1
    for done in answers:
        if done.code != 0:
            assert 4 == done.code, done
            assert done.error["decided_by"] == ("local" if given else None), done
    assert cancelled.code in (0, 4), cancelled
    rows = [row["decision"] for row in regate("audit", "--run", uuid, "--json").documents]
    assert len(given) == rows.count("answer_given")
    assert len(executed(regate, uuid)) in (0, 3)
    assert (regate.json("show", uuid)["status"] == "cancelled") == (cancelled.code == 0)


def test_a_refused_resume_waits_and_the_same_answer_lets_it_finish(regate: Regate) -> None:
    """An answer that the gate refuses to act on is kept: nothing runs, nothing is sent, a person tries again."""
    uuid = regate.waiting("movable", "--snippet", "secret")["uuid"]
    assert "not_blocked" == regate("resume", uuid, "--json", code=4).error["code"]
    regate("catalog", "set", "configuration", "movable", "provider=cloud")
    blocked = regate.json("approve", uuid, "--yes")
    assert ("context", 'snippet "secret"', "cloud", "movable") == tuple(
        blocked["blocked"][name] for name in ("reason", "source", "provider", "configuration")
    )
    assert "local" == blocked["waiting"]["answered_by"]
    assert [] == executed(regate, uuid)
    page = regate("show", uuid).out
    assert 'snippet "secret" is secret_adjacent, above editor_content' in page
    assert f"regate resume {uuid}" in page
    listed = {r["uuid"]: r for r in regate("runs", "--json").documents}
    assert "context" == listed[uuid]["blocked"]["reason"]
    assert f"run {uuid}" in [check["name"] for check in regate.json("doctor")["checks"]]
    assert "already_answered" == regate("approve", uuid, "--yes", "--json", code=4).error["code"]
    assert "context" == regate.json("resume", uuid)["blocked"]["reason"]
    assert "context" == regate.json("resume", uuid, "--wait", code=1)["blocked"]["reason"]
    regate("catalog", "set", "configuration", "movable", "provider=house")
    assert "completed" == regate.json("resume", uuid)["status"]
    assert 3 == len(executed(regate, uuid))
    assert regate.json("replay", uuid)["equal"]


def test_waiting_says_how_it_went(regate: Regate) -> None:
    """With `--wait` a refusal is an exit code; without it the stored answer is a success."""
    uuid = regate.waiting("movable", "--snippet", "secret")["uuid"]
    regate("catalog", "set", "configuration", "movable", "provider=cloud")
    assert "context" == regate.json("approve", uuid, "--yes", "--wait", code=1)["blocked"]["reason"]
    regate("catalog", "set", "configuration", "movable", "provider=house")
    assert "completed" == regate.json("resume", uuid, "--wait")["status"]
