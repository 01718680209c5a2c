"""What the gate decides: content-free, comparable, and enough to explain itself."""

from __future__ import annotations

import msgspec

from codec.vocabulary import DeclaredClass, Enforcement, TrustZone, Verdict

__all__ = ["Decision", "ToolDenial"]


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The verdict on letting the carried sources reach a zone.

    Shape: with nothing declared, `data_class`, `source`, `zone`, `provider` and `ceiling` are None and the verdict is
    permitted. `provider` is the one that set the zone; `tool` is set when a call's egress was judged instead of a
    send. `readable` is False when the catalogue itself could not be read, which permits nothing. `high_water` is the
    strictest class of tool output in the transcript; it is shown, not enforced. `fresh` marks the first of its kind
    within the run: only those reach the audit.
    """

    verdict: Verdict
    configuration: str
    policy: int
    data_class: DeclaredClass | None = None
    source: str | None = None
    zone: TrustZone | None = None
    provider: str | None = None
    ceiling: DeclaredClass | None = None
    mode: Enforcement | None = None
    tool: str | None = None
    readable: bool = True
    high_water: DeclaredClass | None = None
    fresh: bool = False


class ToolDenial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool that the policy does not offer or does not let through, for the audit.

    Shape: `reason` is one of the reference's words: not_registered, tool_disabled, requires_admin,
    configuration_group, trust_zone, egress, not_offered. `observed` means that it was let through and recorded.
    """

    tool: str
    reason: str
    configuration: str
    observed: bool = False
    data_class: DeclaredClass | None = None
    zone: TrustZone | None = None
    ceiling: DeclaredClass | None = None
