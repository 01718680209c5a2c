"""Which tools a run is offered, and the one reason why not."""

from __future__ import annotations

from typing import Any

import pytest

from codec.actor import LiveActor
from codec.vocabulary import ActorKind, DeclaredClass, Enforcement, SourceKind, TrustZone
from tests.support.builders import facts, source, tool
from worker.core.offering import offer, policy_denial

SECRET = DeclaredClass.SECRET_ADJACENT
USER = LiveActor(kind=ActorKind.USER, name="dora", uid=7, enabled=True)
ADMIN = LiveActor(kind=ActorKind.USER, name="anna", uid=8, enabled=True, admin=True)
TOOLS = (tool("one"), tool("off", enabled=False), tool("two"))


def reason(actor: LiveActor = ADMIN, mode: Enforcement = Enforcement.ENFORCE, **changes: Any) -> str | None:
    """Give the reason against a tool that everything speaks against, less what is changed."""
    bad: dict[str, Any] = {"enabled": False, "requires_admin": True, "group": "other", "data_class": SECRET}
    subject = tool("t", **{**bad, **changes})
    policy = facts(zone=TrustZone.EXTERNAL_GLOBAL, enforcement=mode, tools=(subject,), allowed_tool_groups=("general",))
    denial = policy_denial(policy, "t", actor)
    return None if denial is None else denial.reason


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ("one", "two")),
        ((), ()),
        (("two", "one", "two"), ("one", "two")),
        (("off",), ()),
        (("nobody", "two"), ("two",)),
    ],
)
def test_an_allow_list_narrows_and_never_widens(allowed: tuple[str, ...] | None, names: tuple[str, ...]) -> None:
    """T166: none is the enabled set, an empty list is no tools; the order is the registry's."""
    assert names == offer(facts(tools=TOOLS), allowed).names


def test_reasons_stand_in_one_order() -> None:
    """Registered, enabled, admin, configuration, zone: the first that fails is told and hides the rest."""
    good: dict[str, Any] = {
        "enabled": True,
        "requires_admin": False,
        "group": "general",
        "data_class": DeclaredClass.PUBLIC_CONTENT,
    }
    found: list[str | None] = []
    changes: dict[str, Any] = {}
    for name, value in good.items():
        found.append(reason(USER, **changes))
        changes[name] = value

    assert ["tool_disabled", "requires_admin", "configuration_group", "trust_zone"] == found
    assert reason(USER, **changes) is None
    unknown = policy_denial(facts(), "nobody", ADMIN)
    assert unknown is not None
    assert ("not_registered", SECRET) == (unknown.reason, unknown.data_class)


def test_only_the_last_reason_tells_of_zones() -> None:
    """A tool that is denied for another reason never shows where the run could send."""
    for tools in (TOOLS[1:2], (tool("off", group="x"),)):
        denial = policy_denial(facts(tools=tools, allowed_tool_groups=("general",)), "off", ADMIN)
        assert denial is not None
        assert (None, None) == (denial.zone, denial.ceiling)


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        (USER, "requires_admin"),
        (ADMIN, None),
        (LiveActor(kind=ActorKind.USER, name="x", admin=True), "requires_admin"),
    ],
)
def test_a_tool_for_admins_needs_a_living_admin(actor: LiveActor, expected: str | None) -> None:
    """T167: and disabled beats admin."""
    plain: dict[str, Any] = {"enabled": True, "group": "general", "data_class": DeclaredClass.PUBLIC_CONTENT}

    assert expected == reason(actor, **plain)
    assert "tool_disabled" == reason(actor, **{**plain, "enabled": False})


@pytest.mark.parametrize(
    ("mode", "remote", "offered"),
    [
        (Enforcement.ENFORCE, False, False),
        (Enforcement.OBSERVE, False, True),
        (Enforcement.OBSERVE, True, False),
    ],
)
def test_a_class_above_the_ceiling(mode: Enforcement, remote: bool, offered: bool) -> None:
    """T169, T170: enforced, observed, and never observed for a remote tool."""
    tools = (tool("t", data_class=SECRET, remote=remote),)
    found = offer(facts(zone=TrustZone.EXTERNAL_EU, enforcement=mode, tools=tools), None)

    assert offered == ("t" in found.names)
    assert [("trust_zone", offered, TrustZone.EXTERNAL_EU)] == [(d.reason, d.observed, d.zone) for d in found.denials]


def test_the_configurations_skills_bound_the_tools() -> None:
    """The union of their lists; none declared is no opinion, an empty list is no tools; forced skills have no say."""

    def names(*lists: tuple[str, ...] | None, attached: bool = True, active: bool = True) -> tuple[str, ...]:
        skills = tuple(
            source(uid, None, kind=SourceKind.SKILL, allowed_tools=allowed, active=active)
            for uid, allowed in enumerate(lists, start=1)
        )
        policy = facts(tools=(tool("one"), tool("two")), sources=skills, skills=(1, 2) if attached else ())
        return offer(policy, None).names

    assert ("one", "two") == names(None, None)
    assert ("one",) == names(("one",), None)
    assert ("one", "two") == names(("one",), ("two",))
    assert () == names(())
    assert ("one", "two") == names((), attached=False)
    assert ("one", "two") == names((), active=False)


def test_a_run_without_a_configuration_is_offered_nothing() -> None:
    """Gone is no freedom."""
    assert () == offer(facts(gone=True, tools=TOOLS), None).names
