"""The story: an approved write is held back because the policy changed while the run waited, and then goes through.

Nothing is told that was not looked up, and every sentence that matters is checked.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from worker.demo.stage import Ended, Stage, wait_for
from worker.demo.telling import StepError, Teller

__all__ = ["tell"]

_WAIT_S: Final = 30.0
_DENIALS: Final = 3
_SNIPPET: Final = 'snippet "incident-report"'


def tell(stage: Stage, teller: Teller) -> None:
    """Tell the whole story. Errors: `StepError` at the first sentence that is not true."""
    who = "The models are scripted and say so." if stage.model is None else f"{stage.model.model} is asked for real."
    teller.begin(
        "regate: a run is judged again whenever it resumes",
        f"{who} Everything else is real: SQLite, a Valkey, a worker process,",
        "an HTTP endpoint that waits for a write, and the command line that you see.",
    )
    _Story(stage, teller).tell()


class _Story:
    def __init__(self, stage: Stage, teller: Teller) -> None:
        self._stage = stage
        self._teller = teller
        self._run = ""
        self._question = ""

    def tell(self) -> None:
        """Tell it step by step."""
        self._catalogue()
        self._enqueue()
        self._wait()
        self._move_outside()
        self._approve()
        self._resume()
        self._look_back()

    def _catalogue(self) -> None:
        self._teller.step("An operator says what may go where.")
        applied = self._regate("catalog", "apply", "catalogue.toml")
        self._teller.say("provider house is local, provider cloud is external_global;")
        self._teller.say(f"{_SNIPPET} is secret_adjacent: only a local provider may read it.")
        self._teller.check(
            f"{len(applied.document['created'])} records are version {applied.document['version']} of the catalogue",
            len(applied.document["created"]) == 5,
        )

    def _enqueue(self) -> None:
        self._teller.step("A run is enqueued, with that snippet forced onto it. A worker process picks it up.")
        self._teller.command("worker &")
        worker = self._stage.start_worker()
        self._teller.check(f"the worker is process {worker}, with an embedded Valkey for wake-ups", worker > 0)
        tools = () if self._stage.model is None else ("--tool", "post_json")
        words = ("enqueue", "-c", "on-call", "--snippet", "incident-report", *tools)
        stored = self._regate(*words, "'Open a ticket for db-7, please.'")
        self._run = stored.document["uuid"]
        self._teller.check(f"stored as {self._run}", bool(self._run))

    def _wait(self) -> None:
        self._teller.step("The model wants to write somewhere. The run waits for a person, and holds no worker.")
        wait_for(self._rests, _WAIT_S * self._stage.patience)
        shown = self._show()
        self._teller.command("show", self._run)
        waiting = shown["waiting"] or {"calls": [], "question": ""}
        self._question = waiting["question"]
        for call in waiting["calls"]:
            self._teller.say(f"{call['id']}  {call['name']}  ({call['effect']})", "yellow")
            for line in call["preview"]["lines"]:
                self._teller.say(f"    {line}")
        self._teller.check("it waits for approval", shown["status"] == "waiting_for_approval", shown["status"])
        self._teller.check("house was asked once; it may read the snippet", self._answers() == 1)
        self._nothing_written()

    def _move_outside(self) -> None:
        self._teller.step("While it waits, the operator moves the configuration to a provider outside.")
        self._regate("catalog", "set", "configuration", "on-call", "provider=cloud")
        verdict = self._regate("explain", "-c", "on-call", "--snippet", "incident-report").document["verdict"]
        self._teller.check(f"the gate would now say: {verdict}", verdict == "refused")

    def _approve(self) -> None:
        self._teller.step("A person approves. The answer is stored; then the run is judged again, and refused.")
        ended = self._regate("approve", self._run, "--question", self._question, "--wait", code=1)
        blocked = ended.document["blocked"] or {}
        told = "{source} is {data_class}, above {ceiling}, the ceiling of {zone} set by {provider}"
        self._teller.say(told.format_map(_Named(blocked)), "red")
        self._teller.check("the run is blocked, and the source is named", blocked.get("source") == _SNIPPET, blocked)
        self._nothing_written()
        self._teller.check("the provider outside has received nothing", self._stage.sent("cloud") == 0)
        by = ended.document["waiting"]["answered_by"]
        self._teller.check(f"the answer of {by} is kept, unspent", by == "local", by)

    def _resume(self) -> None:
        self._teller.step("The operator moves it back and resumes the run. Nobody is asked again.")
        self._regate("catalog", "set", "configuration", "on-call", "provider=house")
        shown = self._regate("resume", self._run, "--wait").document
        if self._stage.model is not None:
            shown = self._enough(shown)
        self._teller.say(f"answer: {shown['answer']}", "green")
        self._teller.check("the run is completed", shown["status"] == "completed", shown["status"])
        received = self._stage.received
        self._teller.check("the endpoint has received exactly one write", len(received) == 1, len(received))
        self._teller.check(
            f"with the key of this call, the same at any repetition: {received[0].key[:16]}…",
            (self._stage.model is not None or received[0].body["run"] == self._run) and len(received[0].key) > 16,
        )

    def _look_back(self) -> None:
        self._teller.step("Months later: who decided what, and would it be decided so again?")
        rows = self._regate("audit", "--run", self._run).documents
        for row in rows:
            self._teller.say(_audited(row))
        decisions = [row["decision"] for row in rows]
        told = ["answer_given", "context_blocked", "resume_requested"]
        served = decisions[: len(told)] == told  # a real model may have asked again afterwards
        self._teller.check("one refusal, one resume, and one answer that served both times", served, rows)
        report = self._regate("replay", self._run).document
        refused = sum(send["recorded"] == "refused" for send in report["sends"])
        counts = f"{report['entries']} entries, {len(report['sends'])} decisions about sends, {refused} of them refused"
        self._teller.check(f"folded again, everything is equal: {counts}", report["equal"] and refused == 1, report)

    def _regate(self, *words: str, code: int = 0) -> Ended:
        self._teller.command(*words)
        ended = self._stage.regate(*(word.strip("'") for word in words))
        if ended.code != code:
            raise StepError(f"regate {words[0]} ended with {ended.code}, not with {code}: {ended.error}")
        return ended

    def _rests(self) -> bool:
        shown = self._show()
        return shown["waiting"] is not None or shown["status"] in ("completed", "failed")

    def _answers(self) -> int:
        """Count what house answered."""
        events = self._stage.regate("events", self._run).documents
        return sum(event["kind"] == "model_replied" for event in events)

    def _enough(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Deny what a real model asks for once the ticket is open; it cannot know that one is enough."""
        for _ in range(_DENIALS):
            if shown["waiting"] is None:
                break
            words = ("deny", self._run, "--yes", "--wait", "--reason", "'The ticket is open; just say so.'")
            shown = self._regate(*words).document
        return shown

    def _show(self) -> dict[str, Any]:
        ended = self._stage.regate("show", self._run)
        if ended.code != 0:
            raise StepError(f"the run cannot be shown: {ended.error}")
        return dict(ended.document)

    def _nothing_written(self) -> None:
        self._teller.check("the endpoint has received nothing", not self._stage.received, len(self._stage.received))


class _Named(dict[str, Any]):
    """Fields of a document; one that is missing is told as such and found by the check that follows."""

    def __missing__(self, key: str) -> str:
        return f"(no {key})"


def _audited(row: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(row["at"]).astimezone()
    about = row["detail"] or (f"{row['source']} → {row['provider']} ({row['zone']})" if row["source"] else "")
    return f"{at:%H:%M:%S}  {row['decision']:<17} {row['actor']} via {row['via']}  {about}".rstrip()
