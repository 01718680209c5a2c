"""What a run would carry if it were composed now, told anew from the rules and apart from assembly.

Composition order: the system prompt when it declares a class and has text (an override is judged by the same class),
the configuration's active snippets, its skills, then the active forced snippets and skills in the caller's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from codec.facts import Facts, SourceFacts
from codec.vocabulary import SourceKind, SourceOrigin
from worker.core.sources import Source

__all__ = ["composing_sources"]


def composing_sources(
    facts: Facts, forced_snippets: Iterable[int], forced_skills: Iterable[int], *, override: bool = False
) -> tuple[Source, ...]:
    """Give the sources in composition order, each once."""
    configuration = facts.configuration
    if configuration is None:
        return ()
    listed = [
        *_prompt(facts, override=override),
        *_records(facts, SourceKind.SNIPPET, configuration.snippets, SourceOrigin.CONFIGURATION),
        *_records(facts, SourceKind.SKILL, configuration.skills, SourceOrigin.CONFIGURATION),
        *_records(facts, SourceKind.SNIPPET, forced_snippets, SourceOrigin.FORCED),
        *_records(facts, SourceKind.SKILL, forced_skills, SourceOrigin.FORCED),
    ]
    first: dict[tuple[SourceKind, int], Source] = {}
    for source in listed:
        first.setdefault((source.kind, source.uid), source)
    return tuple(first.values())


def _prompt(facts: Facts, *, override: bool) -> Iterator[Source]:
    configuration = facts.configuration
    if configuration is None or configuration.prompt_class is None:
        return
    if not override and configuration.prompt_hash is None:
        return
    yield Source(
        kind=SourceKind.PROMPT_OVERRIDE if override else SourceKind.SYSTEM_PROMPT,
        uid=configuration.uid,
        name="system prompt override" if override else f'system prompt of "{configuration.identifier}"',
        declared=configuration.prompt_class,
        origin=SourceOrigin.OVERRIDE if override else SourceOrigin.CONFIGURATION,
    )


def _records(facts: Facts, kind: SourceKind, uids: Iterable[int], origin: SourceOrigin) -> Iterator[Source]:
    known: dict[int, SourceFacts] = {s.uid: s for s in facts.sources if s.kind is kind}
    for uid in uids:
        record = known.get(uid)
        # An attached skill counts whatever its switch says.
        attached = kind is SourceKind.SKILL and origin is SourceOrigin.CONFIGURATION
        if record is not None and (record.active or attached):
            name = f'{kind.value} "{record.identifier}"'
            yield Source(kind=kind, uid=uid, name=name, declared=record.declared, origin=origin)
