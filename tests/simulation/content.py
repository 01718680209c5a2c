"""The small installation that every schedule begins with: who there is, what may be carried, and which tools there are.

Made once by the real catalogue and kept as bytes, so that a schedule begins in no time.
"""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import Any, Final

from codec.facts import ToolFacts
from codec.vocabulary import DeclaredClass, ToolEffect, TrustZone
from tests.simulation.ledger import marked
from worker.adapters.sealing import KeyRing
from worker.ports.catalogue import RecordSpec

__all__ = ["ACTORS", "CLASSES", "CONFIGURATIONS", "PROVIDERS", "RECORDS", "TOOLS", "ring_of"]

PROVIDERS: Final = {"house": "local", "lab": "private_hosted", "eu": "external_eu", "globe": "external_global"}
CONFIGURATIONS: Final = ("support", "chained", "careful")
"""Those that runs are started with; `spare` and `far` are fallbacks."""
CLASSES: Final = tuple(c.value for c in DeclaredClass if c is not DeclaredClass.UNREADABLE)


def _configuration(identifier: str, provider: str, **fields: Any) -> RecordSpec:
    text = {"system_prompt": marked("system_prompt", identifier)}
    return RecordSpec(
        kind="configuration",
        identifier=identifier,
        fields={"provider": provider, "model": f"m-{identifier}", "max_iterations": 3} | text | fields,
    )


def _snippet(identifier: str, data_class: str | None) -> RecordSpec:
    fields = {"label": identifier, "text": marked("snippet", identifier), "data_class": data_class}
    return RecordSpec(kind="snippet", identifier=identifier, fields=fields)


def _skill(identifier: str, data_class: str) -> RecordSpec:
    fields = {"name": identifier, "body": marked("skill", identifier), "data_class": data_class}
    return RecordSpec(kind="skill", identifier=identifier, fields=fields)


RECORDS: Final = (
    *(
        RecordSpec(
            kind="provider",
            identifier=name,
            fields={
                "kind": "openai",
                "base_url": f"http://{name}.test/v1",
                "trust_zone": zone,
                "max_concurrency": 1 if name == "lab" else 0,
            },
        )
        for name, zone in PROVIDERS.items()
    ),
    _snippet("tone", "public_content"),
    _snippet("plan", "internal_configuration"),
    _snippet("incident", "secret_adjacent"),
    _snippet("remark", None),
    _skill("refunds", "editor_content"),
    _skill("runbook", "system_diagnostics"),
    _configuration("spare", "eu"),
    _configuration("far", "globe"),
    _configuration(
        "support", "house", system_prompt_data_class="editor_content", snippets=["tone"], skills=["refunds"]
    ),
    _configuration("chained", "house", snippets=["plan"], fallbacks=["spare"]),
    _configuration("careful", "lab", require_second_approver=True, approval_ttl_s=3, snippets=["remark"]),
)

_DECIDER: Final = {
    "grants": ["runs:start", "runs:read", "runs:content", "runs:decide", "runs:cancel"],
    "max_class": "secret_adjacent",
}
ACTORS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "alice", "grants": ["runs:start", "sources:force"], "max_class": "secret_adjacent"},
    {"name": "bob", **_DECIDER},
    {"name": "carol", **_DECIDER},
    {"name": "dave", "admin": True},
    {"name": "robot", "kind": "service", "scopes": ["runs:start", "sources:force"]},
)

_PARAMETERS: Final = (
    '{"properties":{"note":{"type":"string"},"ticket":{"type":"integer"}},"required":["ticket"],"type":"object"}'
)
_SUPPLIED: Final = '{"properties":{"note":{"type":"string"}},"required":["note"],"type":"object"}'


def _tool(name: str, effect: ToolEffect = ToolEffect.READ_ONLY, **more: Any) -> ToolFacts:
    fields: dict[str, Any] = {"data_class": DeclaredClass.PUBLIC_CONTENT, "group": "general", "timeout_ms": 4000} | more
    return ToolFacts(name=name, description=name, parameters=_PARAMETERS, effect=effect, **fields)


TOOLS: Final = (
    _tool("look"),
    _tool("peek", requires_approval=True),
    _tool("label", ToolEffect.IDEMPOTENT_WRITE, preview=True),
    _tool("pay", ToolEffect.NON_IDEMPOTENT_WRITE),
    _tool("wire", ToolEffect.NON_IDEMPOTENT_WRITE, preview=True),
    _tool("consult", input_schema=_SUPPLIED),
    _tool("secrets", data_class=DeclaredClass.SECRET_ADJACENT),
    _tool("reach", egress=TrustZone.EXTERNAL_EU.value),
)


def ring_of(generation: int) -> KeyRing:
    """Give the key ring after so many rotations: every key so far, the last one active. Always the same keys."""
    keys = {f"k-{n:08x}": hashlib.sha256(f"key {n}".encode()).digest() for n in range(generation + 1)}
    return KeyRing(keys=MappingProxyType(keys), active=f"k-{generation:08x}", subkey=hashlib.sha256(b"subkey").digest())
