"""The two ladders and the table between them: data classes, trust zones, and the highest class a zone may get.

Laws: `strictest` and `least_trusted` are idempotent, commutative up to their tie rule, and associative; a higher class
or a less trusted zone never turns a refusal into a permission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codec.facts import Facts, ProviderFacts, RouteFacts
from codec.vocabulary import DeclaredClass, TrustZone
from worker.core.remembering import remembered

__all__ = ["CEILING", "ZoneView", "class_rank", "least_trusted", "permits", "provider_of", "strictest", "zone_of"]

_CLASS_RANK: Final = {value: rank for rank, value in enumerate(DeclaredClass)}
_ZONE_RANK: Final = {value: rank for rank, value in enumerate(TrustZone)}

CEILING: Final = {
    TrustZone.LOCAL: DeclaredClass.SECRET_ADJACENT,
    TrustZone.PRIVATE_HOSTED: DeclaredClass.SYSTEM_DIAGNOSTICS,
    TrustZone.EXTERNAL_EU: DeclaredClass.INTERNAL_CONFIGURATION,
    TrustZone.EXTERNAL_GLOBAL: DeclaredClass.EDITOR_CONTENT,
}
"""The highest class that may reach a zone. Nothing reads an unreadable class: it ranks above all of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneView:
    """A zone and the provider that set it (the fallback's own name when it resolves to no provider)."""

    zone: TrustZone
    provider: str


def class_rank(value: DeclaredClass) -> int:
    """Give the position on the ladder, 0 = public."""
    return _CLASS_RANK[value]


def strictest(first: DeclaredClass | None, second: DeclaredClass | None) -> DeclaredClass | None:
    """Give the higher class; None declares nothing and never wins."""
    if first is None or second is None:
        return first if second is None else second
    return second if _CLASS_RANK[second] > _CLASS_RANK[first] else first


def permits(zone: TrustZone, declared: DeclaredClass) -> bool:
    """Whether a class may reach a zone: equal to the ceiling is allowed."""
    return _CLASS_RANK[declared] <= _CLASS_RANK[CEILING[zone]]


def least_trusted(first: TrustZone, second: TrustZone) -> TrustZone:
    """Give the less trusted zone."""
    return second if _ZONE_RANK[second] > _ZONE_RANK[first] else first


def provider_of(facts: Facts, route: RouteFacts | None) -> ProviderFacts | None:
    """Give a route's living provider, or None."""
    if route is None or route.provider is None:
        return None
    return next((p for p in facts.providers if p.uid == route.provider), None)


@remembered
def zone_of(facts: Facts) -> ZoneView:
    """Give the least trusted zone that the run can reach: the configuration's provider and its chain, one level deep.

    Shape: what does not resolve counts as external_global. On a tie the earlier one is named.
    """
    configuration = facts.configuration
    if configuration is None:
        return ZoneView(zone=TrustZone.EXTERNAL_GLOBAL, provider="")
    view = _view(facts, configuration.route, configuration.identifier)
    for fallback in configuration.fallbacks:
        other = _view(facts, fallback.route, fallback.identifier)
        if _ZONE_RANK[other.zone] > _ZONE_RANK[view.zone]:
            view = other
    return view


def _view(facts: Facts, route: RouteFacts | None, identifier: str) -> ZoneView:
    provider = provider_of(facts, route)
    if provider is None:
        return ZoneView(zone=TrustZone.EXTERNAL_GLOBAL, provider=f"none (configuration {identifier})")
    return ZoneView(zone=provider.zone, provider=provider.identifier)
