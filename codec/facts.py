"""The policy as facts: everything the machine must know of the catalogue, the tools and the owner, without any text.

Facts enter a run with RunStarted, RunResumed and PolicyReplaced and are journalled, so that replay depends on neither
today's catalogue nor today's modules.
"""

from __future__ import annotations

import msgspec

from codec.actor import LiveActor
from codec.ids import Uid
from codec.vocabulary import DeclaredClass, Enforcement, SourceKind, ToolEffect, TrustZone

__all__ = [
    "ConfigurationFacts",
    "EgressFacts",
    "Facts",
    "FallbackFacts",
    "ProviderFacts",
    "RouteFacts",
    "SourceFacts",
    "SourceText",
    "Texts",
    "ToolFacts",
]


class _Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Common shape of everything in this module."""


class ProviderFacts(_Facts, frozen=True, kw_only=True):
    """A provider as its target: all that an adapter needs to send to exactly this place.

    Shape: `zone` is the resolved one, an unknown stored word being `external_global`. Units: limits of 0 = none.
    """

    uid: Uid
    identifier: str
    kind: str
    zone: TrustZone
    base_url: str | None = None
    api_key_env: str | None = None
    script: str | None = None
    max_concurrency: int = 0
    requests_per_minute: int = 0


class RouteFacts(_Facts, frozen=True, kw_only=True):
    """A configuration's way to a model. `provider` is None when no living provider resolves."""

    identifier: str
    model: str
    provider: Uid | None = None
    context_length: int = 0


class FallbackFacts(_Facts, frozen=True, kw_only=True):
    """One entry of the chain as written; `route` is None when no living configuration resolves."""

    identifier: str
    route: RouteFacts | None = None


class ConfigurationFacts(_Facts, frozen=True, kw_only=True):
    """A living configuration. Units: `approval_ttl_s`, `max_duration_s` in seconds, 0 = never and no limit.

    Shape: `prompt_hash` is None when the prompt has no text. `snippets` and `skills` are uids in the catalogue's order.
    """

    uid: Uid
    identifier: str
    route: RouteFacts
    fallbacks: tuple[FallbackFacts, ...] = ()
    prompt_class: DeclaredClass | None = None
    prompt_hash: str | None = None
    snippets: tuple[Uid, ...] = ()
    skills: tuple[Uid, ...] = ()
    allowed_tool_groups: tuple[str, ...] = ()
    require_second_approver: bool = False
    approval_ttl_s: int = 0
    max_iterations: int = 10
    max_total_tokens: int = 0
    max_duration_s: int = 0


class SourceFacts(_Facts, frozen=True, kw_only=True):
    """A living snippet or skill. A deleted one has no facts. `declared` None = declared nothing.

    Shape: `text_hash` is the keyed hash of the live text; `allowed_tools` is None when a skill says nothing.
    """

    kind: SourceKind
    uid: Uid
    identifier: str
    active: bool
    text_hash: str
    declared: DeclaredClass | None = None
    allowed_tools: tuple[str, ...] | None = None


class ToolFacts(_Facts, frozen=True, kw_only=True):
    """A registered tool. `data_class` of an undeclared one is secret_adjacent already.

    Shape: `parameters` and `input_schema` are JSON text. `egress` is a zone's value, the word `host` (looked up from
    the `url` argument), or None for a tool without network reach. Units: `timeout_ms` in milliseconds.
    """

    name: str
    description: str
    parameters: str
    effect: ToolEffect
    data_class: DeclaredClass
    group: str
    enabled: bool = True
    requires_admin: bool = False
    requires_approval: bool = False
    input_schema: str | None = None
    preview: bool = False
    egress: str | None = None
    remote: bool = False
    timeout_ms: int = 60_000

    @property
    def gated(self) -> bool:
        """Whether a person must approve each call: by declaration, or because it writes."""
        return self.requires_approval or self.effect.is_write


class EgressFacts(_Facts, frozen=True, kw_only=True):
    """A host that tools may reach and the zone it stands in."""

    host: str
    zone: TrustZone


class Facts(_Facts, frozen=True, kw_only=True):
    """Everything that a decision of one run may depend on.

    Shape: `readable` False = the catalogue cannot be read; nothing is permitted and nothing is gone. `configuration`
    None = it is gone. `sources` holds the living ones among the configuration's, the carried and the forced.
    """

    enforcement: Enforcement
    owner: LiveActor
    readable: bool = True
    configuration: ConfigurationFacts | None = None
    providers: tuple[ProviderFacts, ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    tools: tuple[ToolFacts, ...] = ()
    egress: tuple[EgressFacts, ...] = ()


class SourceText(_Facts, frozen=True, kw_only=True):
    """The text of one source at the moment of composing. `label` heads a snippet, names a skill."""

    kind: SourceKind
    uid: Uid
    label: str
    text: str
    text_hash: str


class Texts(_Facts, frozen=True, kw_only=True):
    """The texts that assembly may inject: of the configuration, of the forced sources, and the caller's override."""

    sources: tuple[SourceText, ...] = ()
