"""Readable defaults for tests: facts, requests and events; one keyword changes one thing."""

from __future__ import annotations

from typing import Any

from codec.actor import LOCAL, Actor, LiveActor
from codec.events import ModelReplied, RunStarted
from codec.facts import (
    ConfigurationFacts,
    EgressFacts,
    Facts,
    FallbackFacts,
    ProviderFacts,
    RouteFacts,
    SourceFacts,
    SourceText,
    Texts,
    ToolFacts,
)
from codec.request import AgentRunRequest, RunAugmentation
from codec.suspended import SuspendedRunState
from codec.transcript import ModelReply, RawCall, Usage
from codec.vocabulary import (
    ActorKind,
    DeclaredClass,
    Enforcement,
    FinishReason,
    SourceKind,
    ToolEffect,
    TrustZone,
)

RUN = "11111111-1111-4111-8111-111111111111"
PEOPLE = LiveActor(kind=ActorKind.LOCAL, name="local", enabled=True, admin=True)
DECIDER = LiveActor(kind=ActorKind.USER, name="dora", uid=7, enabled=True, grants=("runs:decide", "runs:content"))


def nonce(number: int) -> str:
    """Give a nonce that is unique per number."""
    return f"{number:032x}"


def provider(uid: int = 1, zone: TrustZone = TrustZone.LOCAL, identifier: str = "house") -> ProviderFacts:
    return ProviderFacts(uid=uid, identifier=identifier, kind="scripted", zone=zone, script="s.toml")


def source(
    uid: int,
    declared: DeclaredClass | None,
    *,
    kind: SourceKind = SourceKind.SNIPPET,
    identifier: str | None = None,
    active: bool = True,
    text: str = "t",
    allowed_tools: tuple[str, ...] | None = None,
) -> SourceFacts:
    return SourceFacts(
        kind=kind,
        uid=uid,
        identifier=identifier or f"{kind.value}-{uid}",
        active=active,
        text_hash=f"hash-of-{text}",
        declared=declared,
        allowed_tools=allowed_tools,
    )


def tool(name: str = "look", effect: ToolEffect = ToolEffect.READ_ONLY, **changes: Any) -> ToolFacts:
    defaults: dict[str, Any] = {
        "name": name,
        "description": f"Tool {name}.",
        "parameters": '{"type":"object","properties":{"n":{"type":"integer"}}}',
        "effect": effect,
        "data_class": DeclaredClass.PUBLIC_CONTENT,
        "group": "general",
    }
    return ToolFacts(**{**defaults, **changes})


LOOK = tool("look")
WRITE = tool("write", ToolEffect.NON_IDEMPOTENT_WRITE)
LABEL = tool("label", ToolEffect.IDEMPOTENT_WRITE)
ASK = tool(
    "ask",
    parameters='{"type":"object","properties":{"answer":{"type":"string"},"n":{"type":"integer"}},"required":["answer"]}',
    input_schema='{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}',
)
SHOWN = tool("shown", ToolEffect.NON_IDEMPOTENT_WRITE, preview=True)
POST = tool("post", ToolEffect.NON_IDEMPOTENT_WRITE, egress="host")
TOOLS = (LOOK, WRITE, LABEL, ASK, SHOWN, POST)


def facts(
    *,
    zone: TrustZone = TrustZone.LOCAL,
    providers: tuple[ProviderFacts, ...] | None = None,
    sources: tuple[SourceFacts, ...] = (),
    tools: tuple[ToolFacts, ...] = TOOLS,
    enforcement: Enforcement = Enforcement.ENFORCE,
    fallbacks: tuple[FallbackFacts, ...] = (),
    owner: LiveActor = PEOPLE,
    readable: bool = True,
    gone: bool = False,
    egress: tuple[EgressFacts, ...] = (),
    **configuration: Any,
) -> Facts:
    own = ConfigurationFacts(
        uid=1,
        identifier="support",
        route=RouteFacts(identifier="support", model="m", provider=1, context_length=128_000),
        fallbacks=fallbacks,
        **configuration,
    )
    return Facts(
        enforcement=enforcement,
        owner=owner,
        readable=readable,
        configuration=None if gone else own,
        providers=(provider(1, zone),) if providers is None else providers,
        sources=sources,
        tools=tools,
        egress=egress,
    )


def fallback(identifier: str = "spare", uid: int | None = 2) -> FallbackFacts:
    route = RouteFacts(identifier=identifier, model="m2", provider=uid, context_length=128_000)
    return FallbackFacts(identifier=identifier, route=route)


def texts(*sources: SourceFacts, prompt: str | None = None) -> Texts:
    found = [
        SourceText(kind=s.kind, uid=s.uid, label=s.identifier, text=f"text of {s.identifier}", text_hash=s.text_hash)
        for s in sources
    ]
    if prompt is not None:
        found.insert(
            0, SourceText(kind=SourceKind.SYSTEM_PROMPT, uid=1, label="", text=prompt, text_hash="hash-of-prompt")
        )
    return Texts(sources=tuple(found))


def request(
    *,
    snippets: tuple[int, ...] = (),
    skills: tuple[int, ...] = (),
    augmentation: RunAugmentation | None = None,
    actor: Actor = LOCAL,
    **changes: Any,
) -> AgentRunRequest:
    if augmentation is None and (snippets or skills):
        augmentation = RunAugmentation(forced_snippet_uids=snippets, forced_skill_uids=skills)
    defaults: dict[str, Any] = {"configuration": 1, "messages": ({"role": "user", "content": "hello"},)}
    return AgentRunRequest(augmentation=augmentation, actor=actor, **{**defaults, **changes})


def started(policy: Facts | None = None, asked: AgentRunRequest | None = None, **changes: Any) -> RunStarted:
    policy = facts() if policy is None else policy
    defaults: dict[str, Any] = {
        "nonce": nonce(1),
        "elapsed_ms": 0,
        "policy": 1,
        "run": RUN,
        "request": request() if asked is None else asked,
        "texts": texts(*policy.sources),
        "facts": policy,
    }
    return RunStarted(**{**defaults, **changes})


def replied(
    state: SuspendedRunState, *calls: tuple[str, str], number: int = 2, text: str = "", **changes: Any
) -> ModelReplied:
    """A reply with calls given as (tool, JSON arguments), answering the open send of `state`."""
    assert state.send is not None
    finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    defaults: dict[str, Any] = {
        "text": text or ("" if calls else "done"),
        "calls": tuple(RawCall(id=f"c{number}_{i}", name=name, arguments=a) for i, (name, a) in enumerate(calls)),
        "usage": Usage(input_tokens=10, output_tokens=5),
        "finish": finish,
    }
    reply = ModelReply(**{**defaults, **changes})
    return ModelReplied(nonce=nonce(number), elapsed_ms=number, policy=1, send=state.send.id, reply=reply)
