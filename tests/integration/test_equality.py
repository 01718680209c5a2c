"""A run is the same whether it is started synchronously or queued: what is sent, what is kept, and how it ends."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from codec.actor import LOCAL
from codec.request import AgentRunRequest, ModelOptions, RunAugmentation
from codec.suspended import SuspendedRunState
from codec.vocabulary import FINAL_STATUSES
from codec.wire import Shown
from tests.support.world import CATALOGUE, World, call, merged, open_world, reply

TEXT: Final = st.text(st.characters(), max_size=6)
MESSAGE: Final = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "assistant", "system"]), "content": TEXT}
)
OPTIONS: Final = st.builds(
    ModelOptions,
    temperature=st.none() | st.sampled_from([0.0, 0.3, 2.0]),
    max_tokens=st.none() | st.integers(1, 5000),
    stop=st.none() | st.lists(TEXT, max_size=2).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    think=st.none() | st.booleans(),
)
FORCED: Final = st.lists(st.sampled_from(["incident", "tone", "extra"]), max_size=4)
AUGMENTATION: Final = st.none() | st.builds(
    RunAugmentation,
    forced_snippet_uids=FORCED,
    forced_skill_uids=st.lists(st.sampled_from(["refunds", "style"]), max_size=3),
    system_prompt_override=st.none() | TEXT,
)
REQUESTS: Final = st.builds(
    AgentRunRequest,
    configuration=st.sampled_from(["support", "spare"]),
    messages=st.lists(MESSAGE, min_size=1, max_size=3),
    allowed_tool_names=st.none()
    | st.lists(st.sampled_from(["refund_order", "needs_person", "echo", "read_secret"]), max_size=4, unique=True),
    options=OPTIONS,
    max_iterations=st.none() | st.integers(1, 4),
    augmentation=AUGMENTATION,
    tags=st.dictionaries(st.sampled_from(["a", "b"]), TEXT, max_size=2),
)
TURNS: Final = st.lists(
    st.lists(st.sampled_from(["refund_order", "needs_person", "echo", "nobody"]), min_size=1, max_size=3, unique=True),
    min_size=1,
    max_size=2,
)
EDITS: Final = st.lists(
    st.sampled_from(
        [
            ("configuration", "support", {"provider": "world"}),
            ("configuration", "support", {"provider": "eu"}),
            ("configuration", "support", {"fallbacks": ["spare"]}),
            ("configuration", "support", {"snippets": []}),
            ("snippet", "incident", {"active": False}),
            ("snippet", "incident", {"data_class": "public_content", "text": "Other."}),
            ("snippet", "tone", {"data_class": "source_code"}),
            ("skill", "refunds", {"enabled": False}),
            ("snippet", "extra", None),
            ("policy", "policy", {"data_class_enforcement": "observe"}),
        ]
    ),
    max_size=3,
)
DOCUMENT: Final = merged(
    CATALOGUE,
    configuration__support={"snippets": ["tone"], "skills": ["style"]},
    snippet__extra={"label": "Extra", "text": "More."},
    skill__style={"name": "Style", "body": "Style rules.", "data_class": "editor_content"},
)
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "refund_order": {"order": 7},
    "needs_person": {"topic": "x"},
    "echo": {"text": "x"},
    "nobody": {},
}


def write_script(world: World, turns: Sequence[Sequence[str]]) -> None:
    usage = {"input_tokens": 10, "output_tokens": 3}
    replies = [
        reply(f"turn {n}", *(call(name, f"c{n}{i}", **ARGUMENTS[name]) for i, name in enumerate(names)), usage=usage)
        for n, names in enumerate(turns)
    ]
    world.script(*replies, reply("the end", usage=usage))


def what_left(world: World, uuid: str) -> list[dict[str, Any]]:
    """Give everything that was sent but for ids and times."""
    return [{k: v for k, v in line.items() if k not in ("run", "key", "at")} for line in world.sent(uuid)]


def plain_state(state: SuspendedRunState) -> dict[str, Any]:
    """Give a state but for ids, keys and times."""
    found: dict[str, Any] = msgspec.to_builtins(state)
    for name in ("run", "seed"):
        del found[name]
    found["counters"]["elapsed_ms"] = 0
    for one in found["calls"]:
        del one["key"]
    if found["question"]:
        del found["question"]["id"]
    return found


def plain(shown: Shown) -> dict[str, Any]:
    """Give a show document but for ids, keys, origin and times."""
    found: dict[str, Any] = msgspec.to_builtins(shown)
    for name in ("uuid", "origin", "attempts"):
        del found[name]
    if found["waiting"]:
        del found["waiting"]["question"]
        for one in found["waiting"]["calls"]:
            del one["key"]
    return found


async def check_equal(world: World, first: str, second: str) -> None:
    assert what_left(world, first) == what_left(world, second)
    assert plain(await world.show(first)) == plain(await world.show(second))
    assert plain_state(await world.state(first)) == plain_state(await world.state(second))
    assert sorted(await world.kinds(first)) == sorted(await world.kinds(second))  # calls return in any order


async def answer_both(world: World, first: str, second: str) -> None:
    """Answer until both rest for good: ended, or blocked."""
    for _ in range(12):
        shown = await world.show(first)
        if shown.status in FINAL_STATUSES or shown.blocked is not None:
            return
        await world.answer(first)
        await world.answer(second)
        await world.rest(first, drive=True)
        await world.rest(second)
        await check_equal(world, first, second)
    raise AssertionError("it asks for ever")


@settings(max_examples=30, phases=[Phase.explicit, Phase.generate])  # each example is two whole runs
@given(request=REQUESTS, turns=TURNS, edits=EDITS)
def test_a_synchronous_and_a_queued_run_are_the_same(
    request: AgentRunRequest, turns: list[list[str]], edits: list[tuple[str, str, dict[str, Any] | None]]
) -> None:
    async def both(folder: Path) -> None:
        async with open_world(folder, document=DOCUMENT) as world:
            write_script(world, turns)
            first = (await world.run(request)).uuid
            second = (await world.queue(request)).uuid
            await check_equal(world, first, second)
            for kind, identifier, fields in edits:
                if fields is not None:
                    await world.change(kind, identifier, **fields)
                elif await _lives(world, identifier):
                    await world.delete(kind, identifier)
            await answer_both(world, first, second)
            if (await world.show(first)).blocked is not None:
                await finish_blocked(world, first, second)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(both(Path(folder)))


async def _lives(world: World, identifier: str) -> bool:
    snapshot = await world.runtime.feed.current()
    return any(record.identifier == identifier for record in snapshot.snippets.values())


async def finish_blocked(world: World, first: str, second: str) -> None:
    """Point back and resume both: they come to the same end."""
    await world.change("configuration", "support", provider="house", fallbacks=[])
    await world.change("configuration", "spare", provider="house")
    for uuid in (first, second):
        await world.runtime.resume(LOCAL, uuid, via="test")
    await world.rest(first, drive=True)
    await world.rest(second)
    await check_equal(world, first, second)
    await answer_both(world, first, second)
