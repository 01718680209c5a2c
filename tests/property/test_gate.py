"""The gate: its laws, and the cases that name what a run may send where."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from codec.decisions import Decision
from codec.facts import Facts, FallbackFacts, RouteFacts, SourceFacts
from codec.request import RunAugmentation
from codec.suspended import CarriedSource
from codec.vocabulary import DeclaredClass, Enforcement, SourceKind, SourceOrigin, TrustZone, Verdict
from tests.support.builders import PEOPLE, facts, fallback, provider, request, source, texts, tool
from tests.support.composing import composing_sources
from tests.support.strategies import CLASSES, ZONES, policies
from worker.core.assembly import assemble
from worker.core.gate import decide, decide_egress, explain_refusal, fixes, permit
from worker.core.offering import offer
from worker.core.sources import carried_sources, classify, dropped_forced, gone_carried
from worker.core.zones import class_rank, permits, strictest, zone_of

Class, Zone = DeclaredClass, TrustZone
PUBLIC, EDITOR, CODE, INTERNAL, DIAGNOSTICS, SECRET, UNREADABLE = DeclaredClass
GLOBAL = Zone.EXTERNAL_GLOBAL
ORDER = list(Verdict)
SKILL = SourceKind.SKILL
UIDS = st.lists(st.integers(1, 6), max_size=3)


def composed(policy: Facts, snippets: tuple[int, ...] = (), skills: tuple[int, ...] = ()) -> Decision:
    """Judge a run that is composed now."""
    return decide(policy, composing_sources(policy, snippets, skills), policy=1)


def carried(record: SourceFacts, origin: SourceOrigin = SourceOrigin.FORCED, **changes: Any) -> CarriedSource:
    """Give a record as it was carried when it was injected."""
    given = CarriedSource(
        kind=record.kind,
        uid=record.uid,
        name=f'{record.kind.value} "{record.identifier}"',
        origin=origin,
        seen=record.declared,
        text_hash=record.text_hash,
    )
    return msgspec.structs.replace(given, **changes)


def prompt(**changes: Any) -> CarriedSource:
    """Give the configuration's own prompt as it was carried."""
    given = CarriedSource(
        kind=SourceKind.SYSTEM_PROMPT,
        uid=1,
        name='system prompt of "support"',
        origin=SourceOrigin.CONFIGURATION,
        seen=SECRET,
        text_hash="hash-of-prompt",
    )
    return msgspec.structs.replace(given, **changes)


def declared_of(policy: Facts, *given: CarriedSource) -> list[tuple[str, DeclaredClass | None]]:
    """Name what a run carries and counts, with its class."""
    return [(found.name, found.declared) for found in carried_sources(policy, given)]


@given(policies(), UIDS, UIDS)
def test_the_gate_is_deterministic(policy: Facts, snippets: list[int], skills: list[int]) -> None:
    """The same facts and sources give the same decision."""
    assert composed(policy, (*snippets,), (*skills,)) == composed(policy, (*snippets,), (*skills,))


@given(policies(), UIDS, UIDS, CLASSES, st.integers(0, 5))
def test_a_stricter_source_never_permits(
    policy: Facts, snippets: list[int], skills: list[int], declared: DeclaredClass, place: int
) -> None:
    """Raising any one source's class never turns a refusal into a permission."""
    assume(policy.sources)
    index = place % len(policy.sources)
    record = policy.sources[index]
    raised = msgspec.structs.replace(record, declared=strictest(record.declared, declared))
    stricter = msgspec.structs.replace(policy, sources=(*policy.sources[:index], raised, *policy.sources[index + 1 :]))

    before, after = (composed(p, (*snippets,), (*skills,)).verdict for p in (policy, stricter))

    assert ORDER.index(before) <= ORDER.index(after)


@given(policies(), UIDS, UIDS, ZONES)
def test_a_less_trusted_hop_never_permits(
    policy: Facts, snippets: list[int], skills: list[int], zone: TrustZone
) -> None:
    """Adding a fallback, whatever its zone, never turns a refusal into a permission."""
    assert policy.configuration is not None
    chain = (*policy.configuration.fallbacks, fallback("more", 9))
    longer = msgspec.structs.replace(
        policy,
        configuration=msgspec.structs.replace(policy.configuration, fallbacks=chain),
        providers=(*policy.providers, provider(9, zone, "more")),
    )

    before, after = (composed(p, (*snippets,), (*skills,)).verdict for p in (policy, longer))

    assert ORDER.index(before) <= ORDER.index(after)


@given(policies(), UIDS, UIDS)
def test_observing_never_hides_a_verdict(policy: Facts, snippets: list[int], skills: list[int]) -> None:
    """Observe and enforce differ only in what becomes of a class above the ceiling; unreadable is refused in both."""
    watching = msgspec.structs.replace(policy, enforcement=Enforcement.OBSERVE)
    closing = msgspec.structs.replace(policy, enforcement=Enforcement.ENFORCE)

    seen = composed(watching, (*snippets,), (*skills,))
    refused = composed(closing, (*snippets,), (*skills,))

    assert (seen.verdict is Verdict.PERMITTED) == (refused.verdict is Verdict.PERMITTED)
    assert seen.verdict is not Verdict.OBSERVED or seen.data_class is not UNREADABLE
    assert seen.verdict is not Verdict.REFUSED or seen.data_class is UNREADABLE


@given(policies(), UIDS, UIDS)
def test_what_cannot_be_read_permits_nothing(policy: Facts, snippets: list[int], skills: list[int]) -> None:
    """An unreadable catalogue refuses whatever is carried, in observe mode too."""
    unreadable = msgspec.structs.replace(policy, readable=False)

    assert composed(unreadable, (*snippets,), (*skills,)).verdict is Verdict.REFUSED


@given(policies(), UIDS, UIDS, st.none() | st.just("be brief"), st.booleans())
def test_a_run_is_judged_alike_composing_and_right_after(
    policy: Facts, snippets: list[int], skills: list[int], override: str | None, prompted: bool
) -> None:
    """What composing would say is what every later send says, down to the source that is named."""
    augmentation = RunAugmentation(
        forced_snippet_uids=tuple(snippets), forced_skill_uids=tuple(skills), system_prompt_override=override
    )
    given_texts = texts(*policy.sources, prompt="be kind" if policy.configuration.prompt_hash else None)  # type: ignore[union-attr]
    assembly = assemble(request(augmentation=augmentation), policy, given_texts)

    composing = composing_sources(policy, snippets, skills, override=override is not None)
    carrying = carried_sources(policy, assembly.carried)

    assert classify(composing) == classify(carrying)
    assert decide(policy, composing, 1) == decide(policy, carrying, 1)


@given(policies(), policies(), UIDS, UIDS)
def test_a_carried_source_counts_as_long_as_it_lives(
    then: Facts, now: Facts, snippets: list[int], skills: list[int]
) -> None:
    """Whatever became of the configuration, a living carried source is judged at least by its live class."""
    augmentation = RunAugmentation(forced_snippet_uids=tuple(snippets), forced_skill_uids=tuple(skills))
    assembly = assemble(request(augmentation=augmentation), then, texts(*then.sources))
    found = classify(carried_sources(now, assembly.carried))
    living = {(s.kind, s.uid): s.declared for s in now.sources}

    for source_ in assembly.carried:
        declared = living.get((source_.kind, source_.uid))
        if declared is not None:
            assert found is not None and class_rank(found.data_class) >= class_rank(declared)


@given(policies(), UIDS, UIDS)
def test_forced_sources_arrive_or_are_recorded(policy: Facts, snippets: list[int], skills: list[int]) -> None:
    """Each forced uid is among the sources or among the dropped, skills first, and never twice."""
    listed = {(s.kind, s.uid) for s in composing_sources(policy, snippets, skills)}
    dropped = dropped_forced(policy, snippets, skills)
    asked = [(SKILL, uid) for uid in dict.fromkeys(skills)] + [
        (SourceKind.SNIPPET, uid) for uid in dict.fromkeys(snippets)
    ]

    names = [(d.kind, d.uid) for d in dropped]

    assert names == [name for name in asked if name in set(names)]
    assert set(asked) <= listed | set(names)


@pytest.mark.parametrize("zone", Zone)
@pytest.mark.parametrize("declared", [c for c in Class if c is not UNREADABLE])
def test_a_forced_source_is_judged_by_the_matrix(zone: TrustZone, declared: DeclaredClass) -> None:
    """T3, T4, T13, T14: all zones and classes."""
    policy = facts(zone=zone, sources=(source(41, declared, identifier="incident-report"),))

    found = composed(policy, (41,))

    assert permits(zone, declared) == (found.verdict is Verdict.PERMITTED)
    assert (declared, zone, "house") == (found.data_class, found.zone, found.provider)


def test_a_refusal_names_everything_but_the_text() -> None:
    """T1, T2: source, class, zone, ceiling, provider and configuration."""
    policy = facts(zone=GLOBAL, sources=(source(41, SECRET, identifier="incident-report", text="HIDDEN"),))

    found = composed(policy, (41,))
    told = explain_refusal(found)

    assert found.verdict is Verdict.REFUSED
    for word in (
        'snippet "incident-report"',
        "secret_adjacent",
        "external_global",
        "editor_content",
        "house",
        "support",
    ):
        assert word in told
    assert "HIDDEN" not in told + json.dumps(msgspec.to_builtins(found))
    assert any("local" in fix for fix in fixes(found))


def test_a_forced_skill_alone_is_refused_and_named() -> None:
    """T5."""
    found = composed(facts(zone=GLOBAL, sources=(source(77, SECRET, kind=SKILL, identifier="refunds"),)), (), (77,))

    assert (Verdict.REFUSED, 'skill "refunds"') == (found.verdict, found.source)


def test_nothing_forced_is_judged_as_a_plain_send() -> None:
    """T6, T22: the configuration's own sources alone."""
    policy = facts(zone=GLOBAL, sources=(source(3, SECRET),), snippets=(3,))

    assert composed(policy).verdict is Verdict.REFUSED
    assert composed(policy) == decide(policy, composing_sources(policy, [], []), 1)


def test_an_undeclared_forced_source_is_listed_and_constrains_nothing() -> None:
    """T7."""
    policy = facts(zone=GLOBAL, sources=(source(41, None),))

    listed = composing_sources(policy, [41], [])

    assert [None] == [s.declared for s in listed]
    assert composed(policy, (41,)).verdict is Verdict.PERMITTED


@pytest.mark.parametrize("mode", Enforcement)
@pytest.mark.parametrize("zone", Zone)
def test_an_unreadable_class_is_above_everything(mode: Enforcement, zone: TrustZone) -> None:
    """Instead of T8: a class that cannot be read is not "undeclared", in observe mode neither."""
    found = composed(facts(zone=zone, enforcement=mode, sources=(source(41, UNREADABLE),)), (41,))

    assert (Verdict.REFUSED, UNREADABLE) == (found.verdict, found.data_class)


@pytest.mark.parametrize(
    ("own", "forced", "named"),
    [(PUBLIC, SECRET, 'snippet "incident-report"'), (SECRET, PUBLIC, 'snippet "legal-policy"')],
)
def test_only_the_strictest_is_named(own: DeclaredClass, forced: DeclaredClass, named: str) -> None:
    """T9, T10."""
    sources = (source(3, own, identifier="legal-policy"), source(41, forced, identifier="incident-report"))

    assert named == composed(facts(zone=GLOBAL, sources=sources, snippets=(3,)), (41,)).source


def test_the_strictest_of_several_wins_and_a_tie_goes_to_the_later() -> None:
    """T11 and the rule of the fold."""
    one, two = source(1, CODE, identifier="a"), source(2, INTERNAL, kind=SKILL, identifier="b")
    tie = source(2, CODE, kind=SKILL, identifier="b")

    found = composed(facts(zone=GLOBAL, sources=(one, two)), (1,), (2,))

    assert (INTERNAL, 'skill "b"') == (found.data_class, found.source)
    assert 'skill "b"' == composed(facts(zone=GLOBAL, sources=(one, tie)), (1,), (2,)).source


def test_sources_stand_in_composition_order_once_each() -> None:
    """T15, T16, T71: prompt, own snippets, own skills, forced snippets, forced skills in the caller's order."""
    found = (
        source(1, PUBLIC),
        source(2, PUBLIC),
        source(9, PUBLIC),
        source(3, PUBLIC),
        source(1, PUBLIC, kind=SKILL),
        source(7, PUBLIC, kind=SKILL),
    )
    policy = facts(sources=found, prompt_class=PUBLIC, prompt_hash="h", snippets=(2, 1), skills=(1,))

    listed = composing_sources(policy, [9, 1, 3, 9], [7, 1])

    assert [
        'system prompt of "support"',
        'snippet "snippet-2"',
        'snippet "snippet-1"',
        'skill "skill-1"',
        'snippet "snippet-9"',
        'snippet "snippet-3"',
        'skill "skill-7"',
    ] == [s.name for s in listed]


def test_a_configuration_without_sources_declares_nothing() -> None:
    """T17, T49: no source, no zone is looked at; one forced source is one entry."""
    policy = facts(zone=GLOBAL, sources=(source(41, SECRET),))
    found = composed(policy)

    assert () == composing_sources(policy, [], [])
    assert Decision(verdict=Verdict.PERMITTED, configuration="support", policy=1) == found
    assert 1 == len(composing_sources(policy, [41], []))


@pytest.mark.parametrize(
    ("declared", "prompt_hash", "verdict", "listed"),
    [
        (None, "h", Verdict.PERMITTED, 0),
        (SECRET, "h", Verdict.REFUSED, 1),
        (SECRET, None, Verdict.PERMITTED, 0),
    ],
)
def test_the_prompt_counts_with_a_class_and_a_text(
    declared: DeclaredClass | None, prompt_hash: str | None, verdict: Verdict, listed: int
) -> None:
    """T27, T28, T29."""
    policy = facts(zone=GLOBAL, prompt_class=declared, prompt_hash=prompt_hash)

    assert listed == len(composing_sources(policy, [], []))
    assert verdict == composed(policy).verdict


def test_a_refusal_names_the_prompt_before_a_weaker_snippet() -> None:
    """T30."""
    policy = facts(zone=GLOBAL, prompt_class=SECRET, prompt_hash="h", sources=(source(1, PUBLIC),), snippets=(1,))

    assert 'system prompt of "support"' == composed(policy).source


def test_an_unattached_snippet_does_not_count_and_a_switched_off_skill_does() -> None:
    """A snippet that is switched off is not selected; an attached skill counts whatever its switch says."""
    snippet, skill = source(1, SECRET, active=False), source(2, SECRET, kind=SKILL, active=False)

    assert composed(facts(zone=GLOBAL, sources=(snippet,), snippets=(1,))).verdict is Verdict.PERMITTED
    assert composed(facts(zone=GLOBAL, sources=(skill,), skills=(2,))).verdict is Verdict.REFUSED
    assert composed(facts(zone=GLOBAL, sources=(snippet,))).verdict is Verdict.PERMITTED


@pytest.mark.parametrize(
    ("hop", "verdict", "setter"),
    [
        (GLOBAL, Verdict.REFUSED, "spare"),
        (Zone.PRIVATE_HOSTED, Verdict.REFUSED, "spare"),
        (Zone.LOCAL, Verdict.PERMITTED, "house"),
    ],
)
def test_the_chain_counts_with_its_least_trusted_hop(hop: TrustZone, verdict: Verdict, setter: str) -> None:
    """T38; the provider that set the zone is named, on a tie the earlier one."""
    policy = facts(
        providers=(provider(1), provider(2, hop, "spare")),
        fallbacks=(fallback("spare", 2),),
        sources=(source(41, SECRET),),
    )

    found = composed(policy, (41,))

    assert (verdict, setter) == (found.verdict, found.provider)


def test_what_does_not_resolve_is_the_least_trusted_zone() -> None:
    """T36, T37, T40: no provider, a provider that is gone, an identifier that nobody has."""
    lost = RouteFacts(identifier="lost", model="m", provider=None)
    gone = RouteFacts(identifier="lost", model="m", provider=99)

    for chain in (FallbackFacts(identifier="x"), FallbackFacts(identifier="x", route=lost), fallback("x", 99)):
        assert GLOBAL is zone_of(facts(fallbacks=(chain,))).zone
    for route in (lost, gone):
        own = facts()
        assert own.configuration is not None
        moved = msgspec.structs.replace(own.configuration, route=route)
        assert GLOBAL is zone_of(msgspec.structs.replace(own, configuration=moved)).zone
        assert permit(msgspec.structs.replace(own, configuration=moved), composed(own), 0) is None


def test_observing_lets_a_refusable_send_through_and_says_so() -> None:
    """T46, T47, T50."""
    sources = (source(41, SECRET),)
    seen = composed(facts(zone=GLOBAL, enforcement=Enforcement.OBSERVE, sources=sources), (41,))
    refused = composed(facts(zone=GLOBAL, sources=sources), (41,))

    assert (Verdict.OBSERVED, Enforcement.OBSERVE) == (seen.verdict, seen.mode)
    assert (Verdict.REFUSED, Enforcement.ENFORCE) == (refused.verdict, refused.mode)
    assert explain_refusal(seen).endswith("(observed only)")
    assert (SECRET, GLOBAL, EDITOR) == (refused.data_class, refused.zone, refused.ceiling)
    with pytest.raises(ValueError, match="no permit"):
        permit(facts(zone=GLOBAL), refused, 0)


def test_observing_does_not_let_remote_tools_through() -> None:
    """T56: one switch, one exception."""
    tools = (tool("near", data_class=SECRET), tool("far", data_class=SECRET, remote=True))
    policy = facts(zone=GLOBAL, enforcement=Enforcement.OBSERVE, tools=tools)

    offered = offer(policy, None)

    assert ("near",) == offered.names
    assert [("near", True), ("far", False)] == [(d.tool, d.observed) for d in offered.denials]


@given(policies(), UIDS, ZONES)
def test_egress_is_judged_by_the_same_rule(policy: Facts, snippets: list[int], zone: TrustZone) -> None:
    """A tool's destination and a provider of that zone get the same verdict."""
    sources = composing_sources(policy, snippets, [])
    assert policy.configuration is not None
    plain = msgspec.structs.replace(policy.configuration, fallbacks=())
    moved = msgspec.structs.replace(policy, configuration=plain, providers=(provider(1, zone, "there"),))

    send, call = decide(moved, sources, 1), decide_egress(policy, sources, 1, "post", zone, "there")

    assert send == msgspec.structs.replace(call, tool=None)


@pytest.mark.parametrize("kind", [SourceKind.SNIPPET, SKILL])
def test_a_deactivated_carried_source_still_counts(kind: SourceKind) -> None:
    """T64, T70: with its live class."""
    then = source(41, SECRET, kind=kind)
    now = facts(zone=GLOBAL, sources=(source(41, SECRET, kind=kind, active=False),))

    assert [(f'{kind.value} "{kind.value}-41"', SECRET)] == declared_of(now, carried(then))
    assert () == gone_carried(now, [carried(then)])


def test_a_deleted_carried_source_counts_for_nothing_and_is_recorded() -> None:
    """T67."""
    found = carried(source(41, SECRET))
    now = facts(zone=GLOBAL)

    assert [] == declared_of(now, found)
    assert [(SourceKind.SNIPPET, 41, "gone", "resumed")] == [
        (d.kind, d.uid, d.reason.value, d.when.value) for d in gone_carried(now, [found])
    ]


@pytest.mark.parametrize(
    ("seen", "live", "text", "judged"),
    [
        (SECRET, PUBLIC, "t", PUBLIC),  # T65: lowered
        (PUBLIC, SECRET, "t", SECRET),  # T66: raised
        (SECRET, PUBLIC, "other", SECRET),  # lowered together with a changed text
        (PUBLIC, SECRET, "other", SECRET),
        (SECRET, None, "t", None),
        (SECRET, None, "other", SECRET),
        (None, PUBLIC, "other", PUBLIC),
    ],
)
def test_a_carried_source_has_its_live_class_unless_its_text_was_changed(
    seen: DeclaredClass | None, live: DeclaredClass | None, text: str, judged: DeclaredClass | None
) -> None:
    """If the text was changed too, the stricter of the live class and the class then seen counts."""
    then, now = source(41, seen), source(41, live, text=text)

    assert [('snippet "snippet-41"', judged)] == declared_of(facts(sources=(now,)), carried(then))


def test_the_configurations_own_injected_sources_count_after_they_were_detached() -> None:
    """Detached, switched off, or both; and what the configuration gained since counts too."""
    mine, more = source(3, SECRET, active=False), source(4, PUBLIC)
    now = facts(sources=(mine, more), snippets=(4,))

    found = declared_of(now, carried(source(3, SECRET), SourceOrigin.CONFIGURATION))

    assert [('snippet "snippet-3"', SECRET), ('snippet "snippet-4"', PUBLIC)] == found


@pytest.mark.parametrize(
    ("prompt_class", "prompt_hash", "judged"),
    [
        (PUBLIC, "hash-of-prompt", PUBLIC),
        (None, "hash-of-prompt", None),
        (PUBLIC, "changed", SECRET),
        (PUBLIC, None, PUBLIC),
        (None, None, SECRET),
    ],
)
def test_a_carried_prompt_is_judged_live_also_when_it_was_emptied(
    prompt_class: DeclaredClass | None, prompt_hash: str | None, judged: DeclaredClass | None
) -> None:
    """Lowered, withdrawn, changed, emptied with and without a live class."""
    now = facts(prompt_class=prompt_class, prompt_hash=prompt_hash)

    assert [('system prompt of "support"', judged)] == declared_of(now, prompt())


def test_an_override_is_named_as_such_and_judged_by_the_prompts_class() -> None:
    """Also before the run is composed, and when the class is changed later."""
    override = prompt(
        kind=SourceKind.PROMPT_OVERRIDE, name="system prompt override", origin=SourceOrigin.OVERRIDE, text_hash="x"
    )
    policy = facts(prompt_class=INTERNAL, prompt_hash="h")

    listed = composing_sources(policy, [], [], override=True)

    assert [("system prompt override", INTERNAL)] == [(s.name, s.declared) for s in listed]
    assert [("system prompt override", INTERNAL)] == declared_of(policy, override)


def test_a_prompt_of_another_configuration_keeps_its_class_beside_the_live_one() -> None:
    """A run that goes on under another configuration carries the old prompt and counts the new one."""
    other = prompt(uid=7, name='system prompt of "old"')
    now = facts(prompt_class=PUBLIC, prompt_hash=None)
    prompted = facts(prompt_class=PUBLIC, prompt_hash="h")

    assert [('system prompt of "old"', SECRET)] == declared_of(now, other)
    assert [('system prompt of "old"', SECRET), ('system prompt of "support"', PUBLIC)] == declared_of(prompted, other)


def test_a_tie_names_the_same_source_before_and_after_the_run_waited() -> None:
    """A switched-off skill in front of an injected one does not move behind it."""
    off, on = source(1, SECRET, kind=SKILL, active=False), source(2, SECRET, kind=SKILL)
    policy = facts(zone=GLOBAL, sources=(off, on), skills=(1, 2))

    before = composed(policy)
    after = decide(policy, carried_sources(policy, (carried(on, SourceOrigin.CONFIGURATION),)), 1)

    assert 'skill "skill-2"' == before.source == after.source


def test_the_owner_takes_no_part_in_the_decision() -> None:
    """Who started the run changes what may be called, not what its text may reach."""
    sources = (source(41, SECRET),)
    other = msgspec.structs.replace(PEOPLE, name="dora", admin=False)

    assert composed(facts(sources=sources), (41,)) == composed(facts(sources=sources, owner=other), (41,))
