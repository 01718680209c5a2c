"""The tool policy: which tools a run may be offered, and which calls may go through. Conditions in one fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codec.actor import LiveActor
from codec.decisions import Decision, ToolDenial
from codec.facts import Facts, ToolFacts
from codec.vocabulary import DeclaredClass, Enforcement, SourceKind, TrustZone, Verdict
from worker.core.gate import decide_egress
from worker.core.hosts import DestinationError, read_url, zone_of_host
from worker.core.remembering import remembered
from worker.core.sources import Source
from worker.core.zones import CEILING, permits, zone_of

__all__ = ["Offer", "egress_decision", "is_admin", "offer", "policy_denial", "tool_named"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Tools that may be offered, in the registry's order, and what was denied or only observed."""

    tools: tuple[ToolFacts, ...]
    denials: tuple[ToolDenial, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the offered tools."""
        return tuple(tool.name for tool in self.tools)


def tool_named(facts: Facts, name: str) -> ToolFacts | None:
    """Give a registered tool."""
    return next((tool for tool in facts.tools if tool.name == name), None)


def is_admin(actor: LiveActor) -> bool:
    """Whether an actor is a living admin."""
    return actor.enabled and actor.admin


@remembered
def offer(facts: Facts, allowed: tuple[str, ...] | None) -> Offer:
    """Give the tools for a send.

    Shape: `allowed` None asks for every enabled tool, `()` for none; requested unknown names are denied.
    """
    wanted = [t.name for t in facts.tools if t.enabled] if allowed is None else list(dict.fromkeys(allowed))
    denials = {name: d for name in wanted if (d := policy_denial(facts, name, facts.owner)) is not None}
    offered = {name for name in wanted if name not in denials or denials[name].observed}
    return Offer(tuple(t for t in facts.tools if t.name in offered), tuple(denials.values()))


def policy_denial(facts: Facts, name: str, actor: LiveActor) -> ToolDenial | None:
    """Judge one tool for an actor.

    Order: registered, enabled, admin, configuration (skills' lists and groups), zone; the first that fails is the
    reason, so a tool that is denied for another reason never tells about zones. Observing lets a tool through whose
    class is above the zone's ceiling, unless it is remote.
    """
    tool = tool_named(facts, name)
    configuration = "" if facts.configuration is None else facts.configuration.identifier
    if tool is None:
        return ToolDenial(
            tool=name, reason="not_registered", configuration=configuration, data_class=DeclaredClass.SECRET_ADJACENT
        )
    reason = _plain_reason(facts, tool, actor)
    if reason is not None:
        return ToolDenial(tool=name, reason=reason, configuration=configuration, data_class=tool.data_class)
    zone = zone_of(facts).zone
    if permits(zone, tool.data_class):
        return None
    return ToolDenial(
        tool=name,
        reason="trust_zone",
        configuration=configuration,
        observed=facts.enforcement is Enforcement.OBSERVE and not tool.remote,
        data_class=tool.data_class,
        zone=zone,
        ceiling=CEILING[zone],
    )


def egress_decision(
    facts: Facts, tool: ToolFacts, arguments: dict[str, Any], sources: Sequence[Source], policy: int
) -> Decision | None:
    """Judge where a call's data would go; None when the tool has no network reach.

    A tool whose egress is `host` goes where its `url` argument says; a host that is not listed is nobody's declaration,
    so it is refused, whatever is carried and in observe mode too.
    """
    if tool.egress is None:
        return None
    if tool.egress != "host":
        return decide_egress(facts, sources, policy, tool.name, TrustZone(tool.egress), None)
    zone = _zone_of_url(facts, arguments.get("url"))
    if zone is None:
        return Decision(
            verdict=Verdict.REFUSED,
            configuration="" if facts.configuration is None else facts.configuration.identifier,
            policy=policy,
            tool=tool.name,
            provider="host not listed",
        )
    return decide_egress(facts, sources, policy, tool.name, zone, f"egress of {tool.name}")


def _plain_reason(facts: Facts, tool: ToolFacts, actor: LiveActor) -> str | None:
    if not tool.enabled:
        return "tool_disabled"
    if tool.requires_admin and not is_admin(actor):
        return "requires_admin"
    return None if _in_configuration(facts, tool) else "configuration_group"


def _in_configuration(facts: Facts, tool: ToolFacts) -> bool:
    configuration = facts.configuration
    if configuration is None:
        return False
    lists = [
        s.allowed_tools
        for s in facts.sources
        if s.kind is SourceKind.SKILL and s.active and s.uid in configuration.skills and s.allowed_tools is not None
    ]
    if lists and not any(tool.name in allowed for allowed in lists):
        return False
    return not configuration.allowed_tool_groups or tool.group in configuration.allowed_tool_groups


def _zone_of_url(facts: Facts, url: object) -> TrustZone | None:
    """Give the zone of the listed host that a URL names, read exactly as the tools read it; None when there is none."""
    try:
        return zone_of_host(read_url(url), {e.host: e.zone for e in facts.egress}) if isinstance(url, str) else None
    except DestinationError:
        return None
