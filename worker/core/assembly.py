"""Assembly: the first transcript of a run, rendered once. Nobody adds text to it later, no adapter and no hop."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from codec.facts import Facts, SourceText, Texts
from codec.request import AgentRunRequest, RunAugmentation
from codec.suspended import CarriedSource, DroppedSource
from codec.transcript import Message
from codec.vocabulary import DeclaredClass, DroppedWhen, DropReason, Role, SourceKind, SourceOrigin
from worker.core.sources import dropped_forced

__all__ = ["SKILL_BUDGET", "Assembly", "assemble"]

SKILL_BUDGET: Final = 24_000
"""Bytes of the whole skill block (the reference system's figure); what does not fit is dropped from the tail."""
_PREAMBLE: Final = "The operator of this system wrote the following skills. Follow them where they apply."
_BEGIN: Final = "===== BEGIN SKILLS ====="
_END: Final = "===== END SKILLS ====="
# Possessive, and from the first `=` of a row only: linear on any text.
_FENCE: Final = re.compile(r"(?<!=)={3,}+\s*+(?:BEGIN|END)\s++SKILLS\s*+={3,}+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What assembly made: the transcript, how many of its first messages are the lead, what it carries and lacks."""

    transcript: tuple[Message, ...]
    lead: int
    carried: tuple[CarriedSource, ...]
    dropped: tuple[DroppedSource, ...]


@dataclass(frozen=True, slots=True)
class _Forced:
    snippets: tuple[int, ...]
    skills: tuple[int, ...]


def assemble(request: AgentRunRequest, facts: Facts, texts: Texts) -> Assembly:
    """Render the transcript.

    Order: system prompt with the configuration's snippets, one system message per forced snippet, then the caller's
    messages with the skill block (the configuration's, then the forced) in front of the first user message. The lead is
    written when there is an augmentation, even an empty one, or when the caller brought no system message.
    Law: a dry run and a live run assemble the same bytes.
    """
    augmentation = request.augmentation
    forced = _forced(augmentation)
    found = {(t.kind, t.uid): t for t in texts.sources}
    dropped = list(dropped_forced(facts, forced.snippets, forced.skills))
    lead: list[Message] = []
    carried: list[CarriedSource] = []
    if augmentation is not None or not any(m.role is Role.SYSTEM for m in request.messages):
        lead = _lead(facts, found, augmentation, forced, carried)
    block = _skill_block(facts, found, forced, carried, dropped)
    messages = _with_block(request.messages, block)
    return Assembly(transcript=(*lead, *messages), lead=len(lead), carried=tuple(carried), dropped=tuple(dropped))


def _forced(augmentation: RunAugmentation | None) -> _Forced:
    if augmentation is None:
        return _Forced((), ())
    return _Forced(
        tuple(uid for uid in augmentation.forced_snippet_uids if isinstance(uid, int)),
        tuple(uid for uid in augmentation.forced_skill_uids if isinstance(uid, int)),
    )


_Found = dict[tuple[SourceKind, int], SourceText]


def _lead(
    facts: Facts,
    found: _Found,
    augmentation: RunAugmentation | None,
    forced: _Forced,
    carried: list[CarriedSource],
) -> list[Message]:
    prompt = _prompt(facts, found, augmentation, carried)
    blocks = [_block(text) for text in _own_snippets(facts, found, carried)]
    effective = "\n\n".join(part for part in (prompt, *blocks) if part)
    lead = [Message(role=Role.SYSTEM, content=effective)] if effective else []
    own = {c.uid for c in carried if c.kind is SourceKind.SNIPPET}
    for uid in dict.fromkeys(forced.snippets):
        text = _active(facts, found, SourceKind.SNIPPET, uid)
        if text is None:
            continue
        if uid not in own:
            carried.append(_carry(facts, text, SourceOrigin.FORCED))
        rendered = _block(text)
        if rendered and rendered not in effective:
            lead.append(Message(role=Role.SYSTEM, content=rendered))
    return lead


def _prompt(facts: Facts, found: _Found, augmentation: RunAugmentation | None, carried: list[CarriedSource]) -> str:
    configuration = facts.configuration
    if configuration is None:
        return ""
    override = None if augmentation is None else augmentation.system_prompt_override
    if override:
        text = found.get((SourceKind.PROMPT_OVERRIDE, configuration.uid))
        carried.append(
            CarriedSource(
                kind=SourceKind.PROMPT_OVERRIDE,
                uid=configuration.uid,
                name="system prompt override",
                origin=SourceOrigin.OVERRIDE,
                seen=configuration.prompt_class,
                text_hash="" if text is None else text.text_hash,
            )
        )
        return override
    text = found.get((SourceKind.SYSTEM_PROMPT, configuration.uid))
    if text is None or not text.text:
        return ""
    carried.append(
        CarriedSource(
            kind=SourceKind.SYSTEM_PROMPT,
            uid=configuration.uid,
            name=f'system prompt of "{configuration.identifier}"',
            origin=SourceOrigin.CONFIGURATION,
            seen=configuration.prompt_class,
            text_hash=text.text_hash,
        )
    )
    return text.text


def _own_snippets(facts: Facts, found: _Found, carried: list[CarriedSource]) -> Iterable[SourceText]:
    configuration = facts.configuration
    for uid in () if configuration is None else configuration.snippets:
        text = _active(facts, found, SourceKind.SNIPPET, uid)
        if text is not None:
            carried.append(_carry(facts, text, SourceOrigin.CONFIGURATION))
            yield text


def _block(text: SourceText) -> str:
    return f"{text.label}:\n{text.text}" if text.text else ""


def _active(facts: Facts, found: _Found, kind: SourceKind, uid: int) -> SourceText | None:
    record = next((s for s in facts.sources if s.kind is kind and s.uid == uid), None)
    return found.get((kind, uid)) if record is not None and record.active else None


def _carry(facts: Facts, text: SourceText, origin: SourceOrigin) -> CarriedSource:
    record = next(s for s in facts.sources if s.kind is text.kind and s.uid == text.uid)
    seen: DeclaredClass | None = record.declared
    return CarriedSource(
        kind=text.kind,
        uid=text.uid,
        name=f'{text.kind.value} "{record.identifier}"',
        origin=origin,
        seen=seen,
        text_hash=text.text_hash,
    )


def _skill_block(
    facts: Facts, found: _Found, forced: _Forced, carried: list[CarriedSource], dropped: list[DroppedSource]
) -> str:
    configuration = facts.configuration
    own = () if configuration is None else configuration.skills
    chosen = dict.fromkeys([*own, *forced.skills])
    texts = [t for uid in chosen if (t := _active(facts, found, SourceKind.SKILL, uid)) is not None]
    while texts and len(_rendered(texts).encode()) > SKILL_BUDGET:
        last = texts.pop()
        dropped.append(
            DroppedSource(kind=last.kind, uid=last.uid, reason=DropReason.OVER_BUDGET, when=DroppedWhen.COMPOSED)
        )
    for text in texts:
        origin = SourceOrigin.CONFIGURATION if text.uid in own else SourceOrigin.FORCED
        carried.append(_carry(facts, text, origin))
    return _rendered(texts)


def _rendered(texts: list[SourceText]) -> str:
    sections = [_FENCE.sub(_defused, f"## {text.label}\n{text.text}") for text in texts if text.text]
    return "\n\n".join([_PREAMBLE, _BEGIN, *sections, _END]) if sections else ""


def _defused(fence: re.Match[str]) -> str:
    # Taking it out could join what stands around it to a new one.
    return fence[0].replace("=", "-")


def _with_block(messages: tuple[Message, ...], block: str) -> tuple[Message, ...]:
    first = next((i for i, m in enumerate(messages) if m.role is Role.USER), None)
    if not block or first is None:
        return messages
    user = messages[first]
    joined = msgspec.structs.replace(user, content=f"{block}\n\n{user.content}")
    return (*messages[:first], joined, *messages[first + 1 :])
