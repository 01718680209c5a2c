"""An editor of the catalogue: zones, classes, switches and rights change under the runs, and records go for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.content import ACTORS, CLASSES, CONFIGURATIONS, PROVIDERS, RECORDS, TOOLS
from tests.simulation.ledger import marked
from tests.simulation.watch import Known
from worker.ports.catalogue import CatalogueError, RecordSpec
from worker.ports.runs import StoreError

if TYPE_CHECKING:
    from tests.simulation.fleet import Process

__all__ = ["Editor", "install"]

_WHO: Final = "editor"
_VIA: Final = "cli"
_SNIPPETS: Final = ("tone", "plan", "incident", "remark")
_SKILLS: Final = ("refunds", "runbook")


class Editor:
    """Edits at a desk, one record at a time."""

    def __init__(self, desk: Process) -> None:
        self._desk = desk
        self._sim = desk.sim
        self._chance = desk.sim.chance(f"editor at {desk.name}")
        self._edition = 1

    async def edit_for_ever(self, every_s: float) -> None:
        """Edit until the storm is over."""
        while self._sim.storming:
            await asyncio.sleep(self._sim.pause(self._chance.uniform(0.1, 1.9) * every_s))
            await self._try()

    async def _try(self) -> None:
        if not self._sim.storming:
            return
        try:
            await self._edit()
        except (StoreError, CatalogueError) as error:
            self._sim.note(self._desk, "edit failed", error=str(error))

    async def _edit(self) -> None:
        edits = (self._zone, self._route, self._route, self._class, self._class, self._class, self._switch)
        rare = (self._text, self._mode, self._tool, self._rights, self._rights, self._chain, self._links, self._remove)
        await self._chance.choice((*edits, *edits, *rare))()

    async def _change(self, kind: str, identifier: str, **fields: Any) -> None:
        self._sim.note(self._desk, "edits", kind=kind, identifier=identifier, **fields)
        await self._desk.catalogue.change(
            RecordSpec(kind=kind, identifier=identifier, fields=fields), actor=_WHO, via=_VIA
        )

    def _aimed_at(self) -> Known | None:
        """Choose a run that lives and was composed, most of the time: an edit that meets nobody shows nothing."""
        living = [k for k in self._sim.watch.runs.values() if not k.row.final and k.row.seq]
        return self._chance.choice(living) if living and self._chance.random() < 0.8 else None

    def _configuration(self) -> str:
        run = self._aimed_at()
        named = None if run is None else self._sim.watch.policy.configuration_named(run.row.configuration_uid)
        return self._chance.choice(CONFIGURATIONS) if named is None else named

    async def _zone(self) -> None:
        await self._change(
            "provider", self._chance.choice(tuple(PROVIDERS)), trust_zone=self._chance.choice(tuple(PROVIDERS.values()))
        )

    async def _route(self) -> None:
        await self._change("configuration", self._configuration(), provider=self._chance.choice(tuple(PROVIDERS)))

    async def _class(self) -> None:
        kind, identifier = self._source()
        await self._change(kind, identifier, data_class=self._chance.choice((*CLASSES, None)))

    async def _switch(self) -> None:
        kind, identifier = self._source()
        await self._change(
            kind, identifier, **{"active" if kind == "snippet" else "enabled": self._chance.random() < 0.5}
        )

    async def _text(self) -> None:
        self._edition += 1
        kind, identifier = self._source()
        fields = {"text" if kind == "snippet" else "body": marked(kind, identifier, self._edition)}
        if self._chance.random() < 0.5:
            fields["data_class"] = self._chance.choice(CLASSES)
        await self._change(kind, identifier, **fields)

    async def _mode(self) -> None:
        await self._change(
            "policy", "policy", data_class_enforcement=self._chance.choice(("enforce", "enforce", "observe"))
        )

    async def _tool(self) -> None:
        await self._change("tool", self._chance.choice(TOOLS).name, enabled=self._chance.random() < 0.6)

    async def _rights(self) -> None:
        actor = self._chance.choice(ACTORS)
        answered = [k.row.answered_by for k in self._sim.watch.runs.values() if k.row.cause == "answer"]
        if answered and self._chance.random() < 0.8:
            actor = next((a for a in ACTORS if a["name"] in answered), actor)
        self._sim.note(self._desk, "edits", kind="actor", identifier=actor["name"])
        if self._chance.random() < 0.6:
            await self._desk.catalogue.disable_actor(actor["name"], by=_WHO, via=_VIA)
        else:
            await self._desk.catalogue.add_actor(actor, by=_WHO, via=_VIA)

    async def _chain(self) -> None:
        fallbacks = self._chance.choice(([], ["spare"], ["far"], ["spare", "far"]))
        await self._change("configuration", self._configuration(), fallbacks=fallbacks)

    async def _links(self) -> None:
        await self._change(
            "configuration",
            self._configuration(),
            snippets=self._chance.sample(_SNIPPETS, self._chance.randint(0, 2)),
            system_prompt_data_class=self._chance.choice((*CLASSES[:4], None)),
        )

    async def _remove(self) -> None:
        kind, identifier = self._source()
        if self._chance.random() < 0.1:
            kind, identifier = "configuration", self._chance.choice(CONFIGURATIONS)
        self._sim.note(self._desk, "deletes", kind=kind, identifier=identifier)
        await self._desk.catalogue.delete(kind, identifier, actor=_WHO, via=_VIA)

    def _source(self) -> tuple[str, str]:
        """Choose a source, of those that a living run carries if there is one."""
        run = self._aimed_at()
        carried = [] if run is None else [c for c in self._sim.watch.carried(run) if c.kind in ("snippet", "skill")]
        if carried:
            one = self._chance.choice(carried)
            named = self._sim.watch.policy.identifier_of(one.kind, one.uid)
            if named is not None:
                return one.kind, named
        if self._chance.random() < 0.7:
            return "snippet", self._chance.choice(_SNIPPETS)
        return "skill", self._chance.choice(_SKILLS)

    async def heal(self, *, whole: bool) -> None:
        """Let somebody be able to decide; if `whole`, everybody, switch every tool on, and observe only."""
        policy = self._sim.watch.policy
        for actor in ACTORS:
            if actor["name"] in policy.disabled and (whole or actor["name"] == "dave"):
                await self._desk.catalogue.add_actor(actor, by=_WHO, via=_VIA)
        if not whole:
            return
        for name in sorted(policy.switched_off):
            await self._change("tool", name, enabled=True)
        if policy.enforces:
            await self._change("policy", "policy", data_class_enforcement="observe")


async def install(desk: Process) -> None:
    """Write the catalogue that every schedule begins with."""
    await desk.catalogue.apply(RECORDS, prune=True, actor=_WHO, via=_VIA)
    for actor in ACTORS:
        await desk.catalogue.add_actor(actor, by=_WHO, via=_VIA)
