"""Starting runs: resolving names, explaining, assembling without sending, and writing the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from codec.actor import ANONYMOUS
from codec.catalogue import CatalogueSnapshot
from codec.errors import CodecError
from codec.facts import Facts
from codec.request import AgentRunRequest, RunAugmentation
from codec.request_codec import REQUEST_VERSION, AgentRunRequestCodec, clean_request
from codec.suspended import STATE_VERSION, DroppedSource
from codec.vocabulary import Origin, SourceKind, SourceOrigin
from codec.wire import DryRun, Explained, ExplainedSource
from worker.core.assembly import assemble
from worker.core.chain import GENESIS
from worker.core.gate import decide, fixes
from worker.core.offering import offer
from worker.core.sources import carried_sources
from worker.ports.records import Document, NewRun
from worker.runtime.errors import InvalidError, NotFoundError
from worker.runtime.feed import Composed
from worker.runtime.parts import Parts

__all__ = ["dry_run", "explain", "new_run", "resolved"]


def resolved(snapshot: CatalogueSnapshot, tools: Iterable[str], request: AgentRunRequest) -> AgentRunRequest:
    """Replace identifiers by uids and check what the caller named.

    Errors: `NotFoundError` for an unknown configuration, source or tool; `InvalidError` with paths for malformed input.
    """
    try:
        request = clean_request(request)
    except CodecError as error:
        raise InvalidError("invalid_request", str(error), paths=(error.path,)) from None
    known = set(tools)
    for name in request.allowed_tool_names or ():
        if name not in known:
            raise NotFoundError("unknown_tool", f"there is no tool named {name}")
    augmentation = request.augmentation
    return msgspec.structs.replace(
        request,
        configuration=_uid(snapshot.configurations, "configuration", request.configuration),
        augmentation=None if augmentation is None else _resolved(snapshot, augmentation),
    )


def _resolved(snapshot: CatalogueSnapshot, augmentation: RunAugmentation) -> RunAugmentation:
    return msgspec.structs.replace(
        augmentation,
        forced_snippet_uids=tuple(_uid(snapshot.snippets, "snippet", u) for u in augmentation.forced_snippet_uids),
        forced_skill_uids=tuple(_uid(snapshot.skills, "skill", u) for u in augmentation.forced_skill_uids),
    )


def _uid(records: Mapping[int, Any], kind: str, reference: int | str) -> int:
    # A uid that does not resolve is no error here: the record may be deleted before the run is composed, and is then
    # recorded as gone. A name that does not resolve is a caller's mistake.
    if isinstance(reference, int):
        if kind == "configuration" and reference not in records:
            raise NotFoundError("unknown_configuration", f"there is no configuration with uid {reference}")
        return reference
    found = next((uid for uid, record in records.items() if record.identifier == reference), None)
    if found is None:
        raise NotFoundError(f"unknown_{kind}", f"there is no {kind} named {reference}")
    return found


def explain(composed: Composed, request: AgentRunRequest) -> Explained:
    """Say what the gate would decide about composing this request now. Writes nothing.

    The same assembly and the same fold as the run's own, so that nobody is shown another verdict than the run gets.
    """
    assembly = assemble(request, composed.facts, composed.texts)
    sources = carried_sources(composed.facts, assembly.carried)
    decision = decide(composed.facts, sources, composed.policy)
    prompts = (SourceKind.SYSTEM_PROMPT, SourceKind.PROMPT_OVERRIDE)
    shown = [
        ExplainedSource(kind=s.kind, uid=s.uid, name=s.name, data_class=s.declared, origin=s.origin, counts=True)
        for s in sources
        if s.declared is not None or s.kind not in prompts  # a prompt without a class declares nothing
    ]
    shown.extend(_left_out(composed.facts, dropped) for dropped in assembly.dropped)
    return Explained(
        sources=tuple(shown),
        data_class=decision.data_class,
        source=decision.source,
        zone=decision.zone,
        provider=decision.provider,
        ceiling=decision.ceiling,
        mode=composed.facts.enforcement,
        verdict=decision.verdict,
        fix=fixes(decision),
    )


def _left_out(facts: Facts, dropped: DroppedSource) -> ExplainedSource:
    record = next((s for s in facts.sources if s.kind is dropped.kind and s.uid == dropped.uid), None)
    name = f'{dropped.kind.value} "{record.identifier}"' if record else f"{dropped.kind.value} uid {dropped.uid}"
    return ExplainedSource(
        kind=dropped.kind,
        uid=dropped.uid,
        name=name,
        data_class=None if record is None else record.declared,
        origin=SourceOrigin.FORCED,
        counts=False,
    )


def dry_run(composed: Composed, request: AgentRunRequest) -> DryRun:
    """Assemble what a live run would send first, and send nothing. Byte for byte the live run's transcript."""
    assembly = assemble(request, composed.facts, composed.texts)
    offered = offer(composed.facts, request.allowed_tool_names)
    return DryRun(
        messages=tuple(msgspec.to_builtins(m) for m in assembly.transcript),
        tools=offered.names,
        explain=explain(composed, request),
    )


def new_run(
    parts: Parts, snapshot: CatalogueSnapshot, request: AgentRunRequest, origin: Origin, *, claim: bool
) -> NewRun:
    """Build the row of a resolved request. `claim` = it is written as held by this process."""
    if request.augmentation is not None and request.augmentation.dry_run:
        raise InvalidError("dry_run", "a dry run is not stored; ask for it with dry_run()", paths=("$.augmentation",))
    key = parts.sealer.new_key()
    uuid = parts.clock.uuid()
    body = AgentRunRequestCodec.dehydrate(request)
    sealed = parts.sealer.seal(key.key, "request", uuid, "request", body)
    configuration = snapshot.configurations.get(int(request.configuration))
    if configuration is None:
        raise NotFoundError("unknown_configuration", "the configuration was deleted just now")
    idempotency = None
    if request.idempotency_key is not None:
        idempotency = parts.sealer.keyed_hash("idempotency", request.idempotency_key.encode())
    return NewRun(
        uuid=uuid,
        owner=request.actor.name,
        origin=origin,
        configuration_uid=configuration.uid,
        configuration=configuration.identifier,
        wrapped_key=key.wrapped,
        key_id=key.key_id,
        doc_version=max(STATE_VERSION, REQUEST_VERSION),
        documents=(Document(kind="request", version=REQUEST_VERSION, seq=0, payload=sealed),),
        cause="start",
        head=GENESIS,
        idempotency=idempotency,
        body=parts.sealer.keyed_hash("body", _asked(request)),
        claim_token=parts.clock.nonce() if claim else None,
        claim_holder=parts.holder if claim else None,
        lease_s=parts.figures.lease_s,
    )


def _asked(request: AgentRunRequest) -> bytes:
    # What is compared under an idempotency key is what was asked for, not the rights that the same actor had then.
    tags = dict(sorted(request.tags.items()))
    return AgentRunRequestCodec.dehydrate(msgspec.structs.replace(request, actor=ANONYMOUS, tags=tags))
