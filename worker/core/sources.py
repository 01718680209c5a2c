"""Which texts count, in which order, and what they amount to. One fold for gate, panel, explain, audit and replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from codec.facts import ConfigurationFacts, Facts, SourceFacts
from codec.suspended import CarriedSource, DroppedSource
from codec.vocabulary import DeclaredClass, DroppedWhen, DropReason, SourceKind, SourceOrigin
from worker.core.remembering import remembered
from worker.core.zones import class_rank, strictest

__all__ = ["Classified", "Source", "carried_sources", "classify", "dropped_forced", "gone_carried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One text that counts. `declared` None places no constraint."""

    kind: SourceKind
    uid: int
    name: str
    declared: DeclaredClass | None
    origin: SourceOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """The strictest declared class and the source that set it."""

    data_class: DeclaredClass
    source: Source


def classify(sources: Iterable[Source]) -> Classified | None:
    """Fold to the strictest declared class; on a tie the later source is named; None when nothing is declared."""
    found: Classified | None = None
    for source in sources:
        if source.declared is None:
            continue
        if found is None or class_rank(source.declared) >= class_rank(found.data_class):
            found = Classified(data_class=source.declared, source=source)
    return found


@remembered
def carried_sources(facts: Facts, carried: tuple[CarriedSource, ...]) -> tuple[Source, ...]:
    """Give what counts for a run that was composed: what it carries, and the live configuration's own sources.

    A carried source counts while its record lives, deactivated or detached too, with its live class; if its text was
    changed since it was injected, with the stricter of the live class and the class then seen. A deleted one counts
    for nothing.
    """
    configuration = facts.configuration
    judged = [(c, s) for c in carried if (s := _judge(facts, c)) is not None]
    prompts = [s for _, s in judged if s.kind in (SourceKind.SYSTEM_PROMPT, SourceKind.PROMPT_OVERRIDE)]
    live: list[Source] = []
    if configuration is not None:
        if not any(prompt.uid == configuration.uid for prompt in prompts):
            prompts += _live_prompt(configuration)
        live = list(_own(facts, configuration))
    ordered = [
        *prompts,
        *_of_kind(judged, live, SourceKind.SNIPPET),
        *_of_kind(judged, live, SourceKind.SKILL),
        *(s for _, s in judged if s.origin is SourceOrigin.FORCED and s.kind is SourceKind.SNIPPET),
        *(s for _, s in judged if s.origin is SourceOrigin.FORCED and s.kind is SourceKind.SKILL),
    ]
    return _unique(ordered)


def dropped_forced(facts: Facts, snippets: Iterable[int], skills: Iterable[int]) -> tuple[DroppedSource, ...]:
    """Give the forced sources that do not arrive at composing: skills first, then snippets, in the caller's order."""
    found: list[DroppedSource] = []
    for kind, uids in ((SourceKind.SKILL, skills), (SourceKind.SNIPPET, snippets)):
        for uid in dict.fromkeys(uids):
            record = _find(facts, kind, uid)
            if record is None or not record.active:
                reason = DropReason.GONE if record is None else DropReason.DEACTIVATED
                found.append(DroppedSource(kind=kind, uid=uid, reason=reason, when=DroppedWhen.COMPOSED))
    return tuple(found)


def gone_carried(facts: Facts, carried: Iterable[CarriedSource]) -> tuple[DroppedSource, ...]:
    """Give the carried sources whose record is deleted: their text stays, they count for nothing, it is recorded."""
    return tuple(
        DroppedSource(kind=c.kind, uid=c.uid, reason=DropReason.GONE, when=DroppedWhen.RESUMED)
        for c in carried
        if c.kind in (SourceKind.SNIPPET, SourceKind.SKILL) and _find(facts, c.kind, c.uid) is None
    )


def _find(facts: Facts, kind: SourceKind, uid: int) -> SourceFacts | None:
    return next((s for s in facts.sources if s.kind is kind and s.uid == uid), None)


def _of(record: SourceFacts, origin: SourceOrigin) -> Source:
    name = f'{record.kind.value} "{record.identifier}"'
    return Source(kind=record.kind, uid=record.uid, name=name, declared=record.declared, origin=origin)


def _live_prompt(configuration: ConfigurationFacts) -> Iterator[Source]:
    declared = configuration.prompt_class
    if declared is not None and configuration.prompt_hash is not None:
        yield Source(
            kind=SourceKind.SYSTEM_PROMPT,
            uid=configuration.uid,
            name=f'system prompt of "{configuration.identifier}"',
            declared=declared,
            origin=SourceOrigin.CONFIGURATION,
        )


def _own(facts: Facts, configuration: ConfigurationFacts) -> Iterator[Source]:
    # A snippet that is switched off is not selected; an attached skill counts whatever its switch says.
    for uid in configuration.snippets:
        record = _find(facts, SourceKind.SNIPPET, uid)
        if record is not None and record.active:
            yield _of(record, SourceOrigin.CONFIGURATION)
    for uid in configuration.skills:
        record = _find(facts, SourceKind.SKILL, uid)
        if record is not None:
            yield _of(record, SourceOrigin.CONFIGURATION)


def _judge(facts: Facts, carried: CarriedSource) -> Source | None:
    if carried.kind in (SourceKind.SYSTEM_PROMPT, SourceKind.PROMPT_OVERRIDE):
        declared = _prompt_class(facts.configuration, carried)
    else:
        record = _find(facts, carried.kind, carried.uid)
        if record is None:
            return None
        declared = record.declared
        if record.text_hash != carried.text_hash:
            declared = strictest(declared, carried.seen)
    return Source(kind=carried.kind, uid=carried.uid, name=carried.name, declared=declared, origin=carried.origin)


def _prompt_class(configuration: ConfigurationFacts | None, carried: CarriedSource) -> DeclaredClass | None:
    if configuration is None or configuration.uid != carried.uid:
        return carried.seen
    live = configuration.prompt_class
    if carried.kind is SourceKind.PROMPT_OVERRIDE:
        return live
    if configuration.prompt_hash is None:
        return live if live is not None else carried.seen
    return live if configuration.prompt_hash == carried.text_hash else strictest(live, carried.seen)


def _of_kind(judged: list[tuple[CarriedSource, Source]], live: list[Source], kind: SourceKind) -> Iterator[Source]:
    # What is carried keeps its order, so that a run names the same source before and after it waited; what is live but
    # not carried (a skill that is switched off, or one gained since) stands where the configuration has it.
    forced = {s.uid for c, s in judged if c.origin is SourceOrigin.FORCED and c.kind is kind}
    own = {s.uid: s for c, s in judged if c.origin is SourceOrigin.CONFIGURATION and c.kind is kind}
    others = [s for s in live if s.kind is kind and s.uid not in forced]
    for uid, source in own.items():
        place = next((i for i, s in enumerate(others) if s.uid == uid), -1)
        yield from (s for s in others[: place + 1] if s.uid not in own)
        others = others[place + 1 :]
        yield source
    yield from (s for s in others if s.uid not in own)


def _unique(sources: Iterable[Source]) -> tuple[Source, ...]:
    found: dict[tuple[SourceKind, int], Source] = {}
    for source in sources:
        found.setdefault((source.kind, source.uid), source)
    return tuple(found.values())
