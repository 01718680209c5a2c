"""The gate: may these sources reach that zone under this policy? A pure function, and the only maker of permits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codec.commands import Permit, Target
from codec.decisions import Decision
from codec.facts import Facts, RouteFacts
from codec.vocabulary import DeclaredClass, Enforcement, TrustZone, Verdict
from worker.core.sources import Source, classify
from worker.core.zones import CEILING, ZoneView, permits, provider_of, zone_of

__all__ = ["decide", "decide_egress", "explain_refusal", "fixes", "permit", "route_of_hop"]


def decide(facts: Facts, sources: Sequence[Source], policy: int, high_water: DeclaredClass | None = None) -> Decision:
    """Judge a send: the sources' strictest class against the ceiling of the least trusted zone it can reach.

    Laws: deterministic; monotone (a stricter source, a less trusted zone or a lower ceiling never turns a refusal into
    a permission); nothing declared is permitted without a look at zones; what cannot be read is refused.
    """
    return _judge(facts, sources, policy, zone_of(facts), None, high_water)


def decide_egress(
    facts: Facts, sources: Sequence[Source], policy: int, tool: str, zone: TrustZone, host: str | None
) -> Decision:
    """Judge a tool call that reaches a zone of its own, by the same rule as a send."""
    return _judge(facts, sources, policy, ZoneView(zone=zone, provider=host or f"tool {tool}"), tool, None)


def _judge(
    facts: Facts,
    sources: Sequence[Source],
    policy: int,
    view: ZoneView,
    tool: str | None,
    high_water: DeclaredClass | None,
) -> Decision:
    configuration = facts.configuration
    decision = Decision(
        verdict=Verdict.PERMITTED,
        configuration="" if configuration is None else configuration.identifier,
        policy=policy,
        tool=tool,
        high_water=high_water,
    )
    if not facts.readable:
        return msgspec.structs.replace(decision, verdict=Verdict.REFUSED, readable=False)
    classified = classify(sources)
    if classified is None:
        return decision
    verdict, mode = Verdict.PERMITTED, None
    if not permits(view.zone, classified.data_class):
        mode = facts.enforcement
        # An unreadable class is refused in observe mode too: nobody has declared that it may be observed.
        observed = mode is Enforcement.OBSERVE and classified.data_class is not DeclaredClass.UNREADABLE
        verdict = Verdict.OBSERVED if observed else Verdict.REFUSED
    return msgspec.structs.replace(
        decision,
        verdict=verdict,
        mode=mode,
        data_class=classified.data_class,
        source=classified.source.name,
        zone=view.zone,
        provider=view.provider,
        ceiling=CEILING[view.zone],
    )


def route_of_hop(facts: Facts, hop: int) -> RouteFacts | None:
    """Give the way of a hop: 0 = the configuration's own, then its fallbacks in order; None when it leads nowhere."""
    configuration = facts.configuration
    if configuration is None:
        return None
    if hop == 0:
        return configuration.route
    chain = configuration.fallbacks
    return chain[hop - 1].route if hop <= len(chain) else None


def permit(facts: Facts, decision: Decision, hop: int) -> Permit | None:
    """Build the permit of a send; None when the hop's configuration has no living provider.

    Errors: `ValueError` when the decision is a refusal: nobody may ask for that.
    """
    route = route_of_hop(facts, hop)
    provider = provider_of(facts, route)
    if route is None or provider is None:
        return None
    target = Target(
        provider=provider.uid,
        identifier=provider.identifier,
        kind=provider.kind,
        configuration=route.identifier,
        model=route.model,
        zone=provider.zone,
        version=decision.policy,
        base_url=provider.base_url,
        key_variable=provider.api_key_env,
        script=provider.script,
        max_concurrency=provider.max_concurrency,
        requests_per_minute=provider.requests_per_minute,
    )
    return Permit(decision=decision, target=target)


def explain_refusal(decision: Decision) -> str:
    """Say in one sentence why: the source, its class, the zone, its ceiling, who set the zone. Never a text."""
    if not decision.readable:
        return "the catalogue cannot be read, so nothing is permitted"
    if decision.data_class is None or decision.zone is None:
        return f'nothing that "{decision.configuration}" carries declares a class'
    verb = "exceeds" if decision.verdict is not Verdict.PERMITTED else "is within"
    tail = " (observed only)" if decision.verdict is Verdict.OBSERVED else ""
    return (
        f"{decision.source} is {decision.data_class.value}, which {verb} {_ceiling(decision)}, the ceiling of "
        f'{decision.zone.value} set by {decision.provider} for configuration "{decision.configuration}"{tail}'
    )


def fixes(decision: Decision) -> tuple[str, ...]:
    """Name what an operator could change so that a refused decision would be permitted."""
    if decision.verdict is Verdict.PERMITTED or decision.data_class is None:
        return ()
    zones = [z.value for z in TrustZone if permits(z, decision.data_class)]
    found = [f"lower the class of {decision.source} to {_ceiling(decision)} or below", f"leave {decision.source} out"]
    if zones:
        found.append(f"use a provider in zone {' or '.join(zones)} instead of {decision.provider}")
    return tuple(found)


def _ceiling(decision: Decision) -> str:
    return "" if decision.ceiling is None else decision.ceiling.value
