"""What people may do: rights, four eyes, service accounts, clearance; and the facts of one run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codec.actor import ANONYMOUS, LOCAL, Actor, LiveActor
from codec.catalogue import CatalogueSnapshot, ConfigurationRecord, SkillRecord, SnippetRecord
from codec.suspended import Call
from codec.vocabulary import ActorKind, CallStatus, DeclaredClass, Enforcement, SourceKind, ToolEffect, TrustZone
from tests.support.builders import PEOPLE, TOOLS, facts, provider, request, source, tool
from tests.support.driving import Driven
from tests.support.walking import DORA
from worker.core.people import holds, may_decide, may_read_content, reading_class, release_problem
from worker.core.policy import facts_for, live_actor

SECRET, EDITOR = DeclaredClass.SECRET_ADJACENT, DeclaredClass.EDITOR_CONTENT
OLGA = Actor(kind=ActorKind.USER, name="olga", uid=3, grants=("runs:start",))


def person(**changes: Any) -> LiveActor:
    return msgspec.structs.replace(DORA, **changes)


def service(*scopes: str) -> LiveActor:
    return LiveActor(kind=ActorKind.SERVICE, name="bot", uid=9, enabled=True, scopes=scopes, max_class=SECRET)


def pending(name: str = "write", effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE, *, gated: bool = True) -> Call:
    return Call(
        id="c",
        name=name,
        proposed="{}",
        status=CallStatus.ASK,
        effect=effect,
        key="k",
        gated=gated,
        data_class=EDITOR,
    )


def problem(actor: LiveActor, call: Call | None = None, *, owner: Actor = OLGA, **changes: Any) -> str | None:
    policy = facts(**changes)
    return release_problem(policy, owner, pending() if call is None else call, actor, None)


@pytest.mark.parametrize(
    ("actor", "holder"),
    [
        (person(), True),
        (person(grants=("runs:read",)), False),
        (person(enabled=False), False),
        (person(admin=True, grants=()), True),
        (person(admin=True, grants=(), enabled=False), False),
        (service("runs:decide"), True),
        (service("*"), False),
        (service("runs"), False),
        (msgspec.structs.replace(service(), admin=True, grants=("runs:decide",)), False),
        (PEOPLE, True),
        (LiveActor(kind=ActorKind.ANONYMOUS, name="anonymous"), False),
    ],
)
def test_a_right_is_a_grant_or_a_scope_held_now(actor: LiveActor, holder: bool) -> None:
    """T143: admins hold every grant, service accounts only their scopes, and there is no wildcard."""
    assert holder == holds(actor, "runs:decide") == may_decide(actor)


@pytest.mark.parametrize(
    ("actor", "call", "expected"),
    [
        (person(), pending(), None),
        (person(grants=()), pending(), "not_permitted"),
        (service("runs:decide"), pending(), "service_account"),
        (service("runs:decide"), pending("label", ToolEffect.IDEMPOTENT_WRITE), "service_account"),
        (service("runs:decide"), pending("ask", ToolEffect.READ_ONLY, gated=False), "service_account"),
        (service("runs:decide", "runs:content"), pending("look", ToolEffect.READ_ONLY), None),
        (person(), pending("nothing"), "not_registered"),
        (person(grants=("runs:decide",)), pending(), "not_cleared"),
    ],
)
def test_who_may_release_a_call(actor: LiveActor, call: Call, expected: str | None) -> None:
    """T138, T140, T152: the right, no service account for writes or input, the policy for the decider, clearance."""
    assert expected == problem(actor, call)


def test_a_tool_for_admins_is_released_by_admins_only() -> None:
    """T138: the policy is asked for the decider, not for the owner."""
    tools = (tool("write", ToolEffect.NON_IDEMPOTENT_WRITE, requires_admin=True),)

    assert "requires_admin" == problem(person(), tools=tools)
    assert problem(person(admin=True), tools=tools) is None


@pytest.mark.parametrize(
    ("owner", "actor", "expected"),
    [
        (Actor(kind=ActorKind.USER, name="dora", uid=7), person(), "second_approver"),
        (Actor(kind=ActorKind.USER, name="dora", uid=7), person(admin=True), "second_approver"),
        (OLGA, person(), None),
        (Actor(kind=ActorKind.SERVICE, name="dora", uid=7), person(), None),
        (ANONYMOUS, person(), None),
        (LOCAL, PEOPLE, "second_approver"),
    ],
)
def test_four_eyes_mean_a_second_person(owner: Actor, actor: LiveActor, expected: str | None) -> None:
    """T142: admins are no exception; who is no human was never the first pair."""
    assert expected == problem(actor, owner=owner, require_second_approver=True)
    assert problem(actor, owner=owner) is None


def test_an_outcome_that_runs_nothing_does_not_ask_the_tools_policy() -> None:
    """All the rest it does ask."""
    off = facts(tools=(tool("write", ToolEffect.NON_IDEMPOTENT_WRITE, enabled=False),))
    call = pending()

    assert "tool_disabled" == release_problem(off, OLGA, call, person(), None)
    assert release_problem(off, OLGA, call, person(), None, executes=False) is None
    assert "service_account" == release_problem(off, OLGA, call, service("runs:decide"), None, executes=False)


@pytest.mark.parametrize(
    ("actor", "high_water", "reads"),
    [
        (person(max_class=None), None, True),
        (person(max_class=None), DeclaredClass.PUBLIC_CONTENT, False),
        (person(max_class=EDITOR), EDITOR, True),
        (person(max_class=EDITOR), SECRET, False),
        (person(max_class=SECRET), DeclaredClass.UNREADABLE, False),
        (person(grants=(), max_class=SECRET), EDITOR, False),
        (person(name="olga", grants=(), max_class=SECRET), EDITOR, True),
        (person(name="olga", grants=(), max_class=EDITOR), SECRET, False),
        (person(name="olga", enabled=False), None, False),
        (person(admin=True, max_class=None), DeclaredClass.UNREADABLE, True),
        (person(admin=True, max_class=EDITOR), SECRET, False),
        (PEOPLE, DeclaredClass.UNREADABLE, True),
    ],
)
def test_content_is_for_the_cleared(actor: LiveActor, high_water: DeclaredClass | None, reads: bool) -> None:
    """Owner or `runs:content`, and a clearance as high as the run ever was."""
    assert reads == may_read_content(actor, "olga", high_water)


def test_a_run_is_as_secret_as_it_ever_was() -> None:
    """Sources as first seen and as they are now, and what its tools returned."""
    low, high = source(41, EDITOR), source(41, SECRET)
    run = Driven(facts(sources=(high,)), request(snippets=(41,)))
    assert SECRET is reading_class(run.policy(facts(sources=(low,))).state)

    risen = Driven(facts(sources=(low,)), request(snippets=(41,))).policy(facts(sources=(high,)))
    assert SECRET is reading_class(risen.state)

    diagnosed = (tool("look", data_class=DeclaredClass.SYSTEM_DIAGNOSTICS),)
    called = Driven(facts(sources=(low,), tools=diagnosed), request(snippets=(41,))).reply(("look", "{}"))
    assert EDITOR is reading_class(called.state)
    assert DeclaredClass.SYSTEM_DIAGNOSTICS is reading_class(called.returns().state)


def snapshot(**changes: Any) -> CatalogueSnapshot:
    defaults: dict[str, Any] = {"version": 3, "enforcement": Enforcement.ENFORCE}
    return CatalogueSnapshot(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("stored", "live", "expected"),
    [
        ({"grants": ("a", "b")}, {"grants": ("b", "c")}, ("b",)),
        ({"grants": ("a",), "admin": True}, {"grants": ("b",)}, ("b",)),
        ({"grants": ("a",)}, {"grants": ("a",), "admin": True}, ("a",)),
    ],
)
def test_what_counts_is_the_intersection(stored: dict[str, Any], live: dict[str, Any], expected: Any) -> None:
    """Neither what was granted since nor what was taken away."""
    actor = Actor(kind=ActorKind.USER, name="dora", uid=7, **stored)
    known = LiveActor(kind=ActorKind.USER, name="dora", uid=7, enabled=True, **live)

    found = live_actor(snapshot(actors={"dora": known}), actor)

    assert (expected, False, True) == (found.grants, found.admin, found.enabled)


def test_somebody_else_of_the_same_name_is_nobody() -> None:
    """Uid and kind must be the same; who is not there has no rights; anonymous never has."""
    actor = Actor(kind=ActorKind.USER, name="dora", uid=7, admin=True, grants=("a",))
    others: tuple[dict[str, Any], ...] = ({"uid": 8}, {"kind": ActorKind.SERVICE}, {"enabled": False})
    for other in others:
        known = person(admin=True, grants=("a",), **other)
        assert not holds(live_actor(snapshot(actors={"dora": known}), actor), "a")
    assert not live_actor(snapshot(), actor).enabled
    assert not live_actor(snapshot(), ANONYMOUS).enabled
    assert live_actor(snapshot(), LOCAL).admin


def test_the_facts_of_a_run_hold_all_that_it_may_depend_on() -> None:
    """Its configuration, chain, providers, own and given sources, switches; and nothing of others."""
    known = snapshot(
        providers={1: provider(1), 2: provider(2, TrustZone.EXTERNAL_EU, "spare"), 3: provider(3)},
        configurations={
            1: ConfigurationRecord(
                uid=1,
                identifier="support",
                provider=1,
                model="m",
                has_prompt=False,
                prompt_hash="h",
                snippets=(5,),
                skills=(6,),
                fallbacks=("spare", "nobody"),
            ),
            2: ConfigurationRecord(
                uid=2, identifier="spare", provider=2, model="n", has_prompt=True, prompt_hash="g", fallbacks=("x",)
            ),
        },
        snippets={u: SnippetRecord(uid=u, identifier=f"s{u}", label="", text_hash="h") for u in (5, 7, 8)},
        skills={6: SkillRecord(uid=6, identifier="k", name="K", text_hash="h", active=False, allowed_tools=())},
        tool_switches={"look": False},
    )

    found = facts_for(known, TOOLS, configuration=1, owner=LOCAL, snippets=(7, 99, 5), skills=(6,))

    assert found.configuration is not None
    assert found.configuration.prompt_hash is None
    assert [("spare", 2), ("nobody", None)] == [
        (f.identifier, None if f.route is None else f.route.provider) for f in found.configuration.fallbacks
    ]
    assert {1, 2} == {p.uid for p in found.providers}
    assert [(SourceKind.SNIPPET, 5), (SourceKind.SNIPPET, 7), (SourceKind.SKILL, 6)] == [
        (s.kind, s.uid) for s in found.sources
    ]
    assert {"look": False, "write": True} == {t.name: t.enabled for t in found.tools if t.name in ("look", "write")}
    assert facts_for(known, TOOLS, configuration=9, owner=LOCAL, snippets=(), skills=()).configuration is None
