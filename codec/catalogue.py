"""The catalogue as data: one snapshot of everything living, without texts, and the records that edits write."""

from __future__ import annotations

import msgspec

from codec.actor import LiveActor
from codec.facts import EgressFacts, ProviderFacts
from codec.ids import Uid
from codec.vocabulary import DeclaredClass, Enforcement

__all__ = ["CatalogueSnapshot", "ConfigurationRecord", "SkillRecord", "SnippetRecord"]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    uid: Uid
    identifier: str


class ConfigurationRecord(_Record, frozen=True, kw_only=True):
    """A living configuration as stored. `provider` None = no living provider; links are uids in order."""

    provider: Uid | None
    model: str
    has_prompt: bool
    prompt_hash: str
    prompt_class: DeclaredClass | None = None
    snippets: tuple[Uid, ...] = ()
    skills: tuple[Uid, ...] = ()
    fallbacks: tuple[str, ...] = ()
    allowed_tool_groups: tuple[str, ...] = ()
    require_second_approver: bool = False
    approval_ttl_s: int = 0
    max_iterations: int = 10
    max_total_tokens: int = 0
    max_duration_s: int = 0
    context_length: int = 128_000


class SnippetRecord(_Record, frozen=True, kw_only=True):
    """A living snippet without its text. `active` False = deactivated."""

    label: str
    text_hash: str
    declared: DeclaredClass | None = None
    active: bool = True


class SkillRecord(_Record, frozen=True, kw_only=True):
    """A living skill without its body. `active` is its `enabled` switch."""

    name: str
    text_hash: str
    declared: DeclaredClass | None = None
    active: bool = True
    allowed_tools: tuple[str, ...] | None = None


class CatalogueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything living, read in one database snapshot together with its version.

    Shape: records by uid, actors by name. `tool_switches` maps a tool's name to its operator's switch. `readable`
    False = something in it cannot be read, so nothing is permitted until it is mended.
    """

    version: int
    enforcement: Enforcement
    readable: bool = True
    providers: dict[int, ProviderFacts] = {}
    configurations: dict[int, ConfigurationRecord] = {}
    snippets: dict[int, SnippetRecord] = {}
    skills: dict[int, SkillRecord] = {}
    tool_switches: dict[str, bool] = {}
    egress: tuple[EgressFacts, ...] = ()
    actors: dict[str, LiveActor] = {}
