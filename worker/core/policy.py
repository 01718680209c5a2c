"""From a snapshot of the whole catalogue to the facts of one run. Pure; the same for run, explain and what-if."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from codec.actor import Actor, LiveActor
from codec.catalogue import CatalogueSnapshot, ConfigurationRecord
from codec.facts import ConfigurationFacts, Facts, FallbackFacts, ProviderFacts, RouteFacts, SourceFacts, ToolFacts
from codec.vocabulary import ActorKind, SourceKind

__all__ = ["facts_for", "live_actor"]


def live_actor(snapshot: CatalogueSnapshot, actor: Actor) -> LiveActor:
    """Give what an actor may do now: the intersection of the rights that travelled with it and its live rights."""
    if actor.kind is ActorKind.LOCAL:
        return LiveActor(kind=ActorKind.LOCAL, name=actor.name, enabled=True, admin=True)
    if actor.kind is ActorKind.ANONYMOUS:
        return LiveActor(kind=ActorKind.ANONYMOUS, name=actor.name)
    live = snapshot.actors.get(actor.name)
    if live is None or live.uid != actor.uid or live.kind is not actor.kind:
        return LiveActor(kind=actor.kind, name=actor.name, uid=actor.uid)
    return msgspec.structs.replace(
        live,
        admin=live.admin and actor.admin,
        groups=_common(live.groups, actor.groups),
        # An admin holds every grant, so only the live list can take one away from somebody who was one.
        grants=live.grants if actor.admin else _common(live.grants, actor.grants),
        scopes=_common(live.scopes, actor.scopes),
    )


def facts_for(
    snapshot: CatalogueSnapshot,
    tools: Sequence[ToolFacts],
    *,
    configuration: int,
    owner: Actor,
    snippets: Iterable[int],
    skills: Iterable[int],
) -> Facts:
    """Select everything that decisions of one run may depend on.

    Shape: `snippets` and `skills` are the uids that the run was given or carries; the configuration's own are added.
    """
    record = snapshot.configurations.get(configuration)
    providers: dict[int, ProviderFacts] = {}
    own = None if record is None else _configuration(snapshot, record, providers)
    snippet_uids = dict.fromkeys([*(own.snippets if own else ()), *snippets])
    skill_uids = dict.fromkeys([*(own.skills if own else ()), *skills])
    return Facts(
        enforcement=snapshot.enforcement,
        owner=live_actor(snapshot, owner),
        readable=snapshot.readable,
        configuration=own,
        providers=tuple(providers.values()),
        sources=tuple(
            [_snippet(snapshot, uid) for uid in snippet_uids if uid in snapshot.snippets]
            + [_skill(snapshot, uid) for uid in skill_uids if uid in snapshot.skills]
        ),
        tools=tuple(_switched(tool, snapshot.tool_switches) for tool in tools),
        egress=snapshot.egress,
    )


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item for item in first if item in second)


def _configuration(
    snapshot: CatalogueSnapshot, record: ConfigurationRecord, providers: dict[int, ProviderFacts]
) -> ConfigurationFacts:
    named = {c.identifier: c for c in snapshot.configurations.values()}
    chain = []
    for identifier in record.fallbacks:
        other = named.get(identifier)
        route = None if other is None else _route(snapshot, other, providers)
        chain.append(FallbackFacts(identifier=identifier, route=route))
    return ConfigurationFacts(
        uid=record.uid,
        identifier=record.identifier,
        route=_route(snapshot, record, providers),
        fallbacks=tuple(chain),
        prompt_class=record.prompt_class,
        prompt_hash=record.prompt_hash if record.has_prompt else None,
        snippets=record.snippets,
        skills=record.skills,
        allowed_tool_groups=record.allowed_tool_groups,
        require_second_approver=record.require_second_approver,
        approval_ttl_s=record.approval_ttl_s,
        max_iterations=record.max_iterations,
        max_total_tokens=record.max_total_tokens,
        max_duration_s=record.max_duration_s,
    )


def _route(snapshot: CatalogueSnapshot, record: ConfigurationRecord, providers: dict[int, ProviderFacts]) -> RouteFacts:
    uid = record.provider
    provider = None if uid is None else snapshot.providers.get(uid)
    if provider is not None:
        providers[provider.uid] = provider
    return RouteFacts(
        identifier=record.identifier,
        model=record.model,
        provider=None if provider is None else provider.uid,
        context_length=record.context_length,
    )


def _snippet(snapshot: CatalogueSnapshot, uid: int) -> SourceFacts:
    record = snapshot.snippets[uid]
    return SourceFacts(
        kind=SourceKind.SNIPPET,
        uid=uid,
        identifier=record.identifier,
        active=record.active,
        text_hash=record.text_hash,
        declared=record.declared,
    )


def _skill(snapshot: CatalogueSnapshot, uid: int) -> SourceFacts:
    record = snapshot.skills[uid]
    return SourceFacts(
        kind=SourceKind.SKILL,
        uid=uid,
        identifier=record.identifier,
        active=record.active,
        text_hash=record.text_hash,
        declared=record.declared,
        allowed_tools=record.allowed_tools,
    )


def _switched(tool: ToolFacts, switches: dict[str, bool]) -> ToolFacts:
    enabled = switches.get(tool.name)
    return tool if enabled is None else msgspec.structs.replace(tool, enabled=enabled)
