"""A send stands on a permit: neither code nor a type checker lets one be built without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from mypy import api

from codec.commands import CallModel, CallTool, Permit, Target
from codec.decisions import Decision
from codec.vocabulary import DeclaredClass, ToolEffect, TrustZone, Verdict
from tests.support.builders import facts, fallback, provider, request, source
from tests.support.driving import Driven
from worker.core.gate import decide, permit, route_of_hop

ROOT = Path(__file__).parents[4]
PERMITTED = Decision(verdict=Verdict.PERMITTED, configuration="support", policy=1)
TARGET = Target(
    provider=1, identifier="house", kind="scripted", configuration="support", model="m", zone=TrustZone.LOCAL, version=1
)
SEND: dict[str, Any] = {
    "send": "s",
    "round": 1,
    "hop": 0,
    "length": 1,
    "offered": (),
    "request_hash": "h",
    "key": "k",
}
SNIPPET = """\
from codec.commands import CallModel, Permit
from codec.decisions import Decision


def broken(decision: Decision) -> None:
    CallModel(send="s", round=1, hop=0, length=1, offered=(), request_hash="h", key="k")
    CallModel(send="s", permit=None, round=1, hop=0, length=1, offered=(), request_hash="h", key="k")
    CallModel(send="s", permit=decision, round=1, hop=0, length=1, offered=(), request_hash="h", key="k")
    Permit(decision=decision)
"""


@pytest.mark.parametrize(
    "decision",
    [
        msgspec.structs.replace(PERMITTED, verdict=Verdict.REFUSED),
        msgspec.structs.replace(PERMITTED, readable=False),
        msgspec.structs.replace(PERMITTED, policy=2),
    ],
    ids=["a refusal", "an unreadable catalogue", "another policy"],
)
def test_a_permit_is_built_from_a_permission_of_the_same_policy(decision: Decision) -> None:
    """Also where it is read from bytes."""
    with pytest.raises(ValueError, match=r"no permit|different policies"):
        Permit(decision=decision, target=TARGET)
    fields = {"decision": msgspec.to_builtins(decision), "target": msgspec.to_builtins(TARGET)}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Permit)


def test_an_observed_refusal_is_a_permit() -> None:
    """The policy only records it."""
    observed = msgspec.structs.replace(PERMITTED, verdict=Verdict.OBSERVED)

    assert observed == Permit(decision=observed, target=TARGET).decision


@pytest.mark.parametrize("given", [None, PERMITTED, True, {"decision": PERMITTED, "target": TARGET}])
def test_a_send_cannot_be_built_without_a_permit(given: Any) -> None:
    """Whatever a caller's type checker says."""
    with pytest.raises(TypeError):
        CallModel(**SEND, permit=given)
    with pytest.raises(TypeError):
        CallModel(**SEND)
    assert CallModel(**SEND, permit=Permit(decision=PERMITTED, target=TARGET)).permit.target is TARGET


def test_a_call_whose_egress_was_refused_cannot_be_built() -> None:
    """The same rule for what a tool reaches."""
    refused = msgspec.structs.replace(PERMITTED, verdict=Verdict.REFUSED)
    call: dict[str, Any] = {"call": "c", "tool": "t", "effect": ToolEffect.READ_ONLY, "key": "k", "timeout_ms": 1}

    with pytest.raises(ValueError, match="no permit"):
        CallTool(**call, decision=refused)
    assert CallTool(**call, decision=PERMITTED).decision == PERMITTED


def test_a_type_checker_finds_a_send_without_a_permit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, None, and a mere decision in its place."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET, encoding="utf-8")
    monkeypatch.chdir(ROOT)

    out, _, status = api.run(["--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), str(snippet)])

    lines = [line.split(":", 1)[1] for line in out.splitlines() if ": error:" in line]
    assert status == 1
    assert ["6", "7", "8", "9"] == [line.split(":")[0] for line in lines]
    assert all("permit" in line for line in lines[:3])


def test_the_permit_is_the_target_of_each_hop() -> None:
    """Provider, model, zone and version of the hop; the decision covers the whole chain."""
    policy = facts(
        providers=(provider(), provider(2, TrustZone.PRIVATE_HOSTED, "spare")),
        fallbacks=(fallback("spare", 2),),
        sources=(source(5, DeclaredClass.SYSTEM_DIAGNOSTICS),),
    )
    run = Driven(policy, request(snippets=(5,)))
    first = run.send.permit
    second = run.fail_send().send.permit

    assert (1, "house", "m", "support", TrustZone.LOCAL, 1) == _told(first.target)
    assert (2, "spare", "m2", "spare", TrustZone.PRIVATE_HOSTED, 1) == _told(second.target)
    assert {("spare", TrustZone.PRIVATE_HOSTED)} == {(p.decision.provider, p.decision.zone) for p in (first, second)}
    assert run.steps[0].commands != run.steps[1].commands


def test_a_hop_that_leads_nowhere_has_no_permit() -> None:
    """Out of the chain, unresolved, or without a configuration."""
    policy = facts(fallbacks=(fallback("lost", None),))
    decision = decide(policy, (), 1)

    assert permit(policy, decision, 0) is not None
    for hop in (1, 2, 99):
        assert permit(policy, decision, hop) is None
    assert route_of_hop(facts(gone=True), 0) is None


def _told(target: Target) -> tuple[Any, ...]:
    return (target.provider, target.identifier, target.model, target.configuration, target.zone, target.version)
