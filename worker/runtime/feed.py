"""The live policy of a process: one snapshot of the catalogue, shared by all its runs, read again when it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from codec.actor import Actor
from codec.catalogue import CatalogueSnapshot
from codec.facts import Facts, SourceText, Texts
from codec.request import AgentRunRequest
from codec.vocabulary import SourceKind
from worker.core.policy import facts_for
from worker.ports.catalogue import Catalogue
from worker.ports.runs import StoreError
from worker.ports.sealing import Sealer
from worker.ports.toolbox import Toolbox
from worker.runtime.errors import UnavailableError

__all__ = ["Composed", "PolicyFeed"]

_TRIES: Final = 20
"""Attempts to read texts and snapshot of the same version; more means an editor that writes without pause."""
_FACTS: Final = 1024
"""Sets of facts that are kept, all of one snapshot."""
_TEXTS: Final = 64
"""Compositions whose texts are kept, all of one version: what many runs of a configuration inject is read once."""


_Composition = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A configuration and the snippets and skills to inject, by uid."""


class Composed:
    """Facts, texts and version of one moment."""

    __slots__ = ("facts", "policy", "texts")

    def __init__(self, facts: Facts, texts: Texts, policy: int) -> None:
        self.facts = facts
        self.texts = texts
        self.policy = policy


class PolicyFeed:
    """Gives facts as of now. A stale snapshot is harmless: the commit of a step checks its version."""

    def __init__(self, catalogue: Catalogue, toolbox: Toolbox, sealer: Sealer) -> None:
        self._catalogue = catalogue
        self._tools = tuple(toolbox.facts())
        self._sealer = sealer
        self._snapshot: CatalogueSnapshot | None = None
        self._reading: asyncio.Task[CatalogueSnapshot] | None = None
        self._facts: dict[tuple[int, Actor, tuple[int, ...], tuple[int, ...]], Facts] = {}
        self._facts_of: CatalogueSnapshot | None = None
        self._texts: dict[_Composition, tuple[SourceText, ...]] = {}
        self._texts_of = 0  # the version that they belong to

    async def current(self) -> CatalogueSnapshot:
        """The live snapshot. Callers that come while one read is under way share the next."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        # Shielded: a cancelled run must not take the read from its neighbours.
        return await asyncio.shield(self._reading)

    @property
    def held(self) -> CatalogueSnapshot:
        """The snapshot read last. Errors: `UnavailableError` before the first read."""
        if self._snapshot is None:
            raise UnavailableError("catalogue_unread", "the catalogue was not read yet")
        return self._snapshot

    async def _read(self) -> CatalogueSnapshot:
        await asyncio.sleep(0)  # lets everybody who needs it in this turn of the loop join
        self._reading = None
        snapshot = await self._catalogue.snapshot(self._snapshot)
        # Two reads can overlap; the older one must not replace what the newer one brought.
        if self._snapshot is None or snapshot.version >= self._snapshot.version:
            self._snapshot = snapshot
        return snapshot

    def facts(
        self,
        snapshot: CatalogueSnapshot,
        *,
        configuration: int,
        owner: Actor,
        snippets: Iterable[int],
        skills: Iterable[int],
    ) -> Facts:
        """The facts of one run in a snapshot; the same object for all runs to which the same applies."""
        if self._facts_of is not snapshot or len(self._facts) >= _FACTS:
            self._facts_of, self._facts = snapshot, {}
        place = (configuration, owner, tuple(snippets), tuple(skills))
        found = self._facts.get(place)
        if found is None:
            found = self._facts[place] = facts_for(
                snapshot, self._tools, configuration=configuration, owner=owner, snippets=place[2], skills=place[3]
            )
        return found

    async def compose(self, request: AgentRunRequest) -> Composed:
        """Facts and texts of one version, for a run that is composed now.

        Errors: `UnavailableError` when the catalogue does not hold still; `StoreError` from the port.
        """
        augmentation = request.augmentation
        snippets = () if augmentation is None else tuple(int(u) for u in augmentation.forced_snippet_uids)
        skills = () if augmentation is None else tuple(int(u) for u in augmentation.forced_skill_uids)
        configuration = int(request.configuration)
        for _ in range(_TRIES):
            snapshot = await self.current()
            facts = self.facts(
                snapshot, configuration=configuration, owner=request.actor, snippets=snippets, skills=skills
            )
            if facts.configuration is None or not facts.readable:
                return Composed(facts, Texts(), snapshot.version)
            own = facts.configuration
            wanted = (configuration, (*own.snippets, *snippets), (*own.skills, *skills))
            try:
                version, texts = await self._texts_at(snapshot.version, wanted)
            except StoreError as error:
                if error.problem != "unreadable":
                    raise
                # A text that cannot be opened is no text that is gone: nothing is permitted until it is mended.
                unreadable = msgspec.structs.replace(facts, readable=False)
                return Composed(unreadable, Texts(), snapshot.version)
            if version == snapshot.version:
                return Composed(facts, Texts(sources=texts + self._override(request)), version)
        raise UnavailableError("catalogue_busy", "the catalogue changes faster than it can be read")

    async def _texts_at(self, version: int, wanted: _Composition) -> tuple[int, tuple[SourceText, ...]]:
        """Give texts and the version they belong to. Those of a version never change, so they are read once."""
        if self._texts_of == version and wanted in self._texts:
            return version, self._texts[wanted]
        read, texts = await self._catalogue.texts(*wanted)
        if self._texts_of != read or len(self._texts) >= _TEXTS:
            self._texts_of, self._texts = read, {}
        self._texts[wanted] = texts
        return read, texts

    def _override(self, request: AgentRunRequest) -> tuple[SourceText, ...]:
        text = None if request.augmentation is None else request.augmentation.system_prompt_override
        if not text:
            return ()
        hashed = self._sealer.keyed_hash("text", text.encode())
        # The text itself stands in the request already; only its hash is needed.
        return (
            SourceText(
                kind=SourceKind.PROMPT_OVERRIDE, uid=int(request.configuration), label="", text="", text_hash=hashed
            ),
        )
