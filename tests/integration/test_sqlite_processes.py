"""One database, several processes: writers and readers wait for each other and none is turned away."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.stores import FILES, append, claim, created, database_url, open_store
from worker.adapters.sql.migrate import migrate
from worker.ports.records import CommitStatus, RunFilter

ROOT = Path(__file__).parents[2]
RUNS = 15
STEPS = 12


async def write(url: str, name: str) -> dict[str, int]:
    """Create, claim and drive runs, all at once."""
    async with open_store(url, create=False) as both:
        store = both.store
        rows = await asyncio.gather(*(created(store, owner=name) for _ in range(RUNS)))
        held = await claim(store, RUNS, token=name, uuids=[row.uuid for row in rows])

        async def drive(index: int) -> int:
            done = [await store.commit(append(held[index], seq)) for seq in range(1, STEPS + 1)]
            await store.renew([(held[index].row.uid, name)], 30.0)
            return sum(commit.status is CommitStatus.COMMITTED for commit in done)

        return {"committed": sum(await asyncio.gather(*(drive(index) for index in range(RUNS))))}


async def read(url: str) -> dict[str, int]:
    """Read without a pause until both writers are done; what is seen of a run never shrinks or has a gap."""
    reads = 0
    async with open_store(url, create=False) as both:
        seen: dict[int, int] = {}
        while sum(seen.values()) < 2 * RUNS * STEPS:
            for row in await both.store.runs(RunFilter()):
                entries = await both.store.entries(row.uid)
                assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
                assert len(entries) >= max(row.seq, seen.get(row.uid, 0))
                seen[row.uid] = len(entries)
                reads += 1
    return {"reads": reads}


async def outputs_of(commands: Iterable[list[str]]) -> list[str]:
    """Run Python several times at once and give what each prints; all must end well."""

    async def output_of(arguments: list[str]) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        async with asyncio.timeout(120):
            printed, _ = await process.communicate()
        assert 0 == process.returncode
        return printed.decode()

    return await asyncio.gather(*(output_of(arguments) for arguments in commands))


@pytest.mark.parametrize("kind", FILES)
async def test_writers_and_readers_share_a_database(kind: str, tmp_path: Path) -> None:
    with database_url(kind, tmp_path) as url:
        if kind == "sqlite":
            await asyncio.to_thread(migrate, url)
        roles = (["write", url, "a"], ["write", url, "b"], ["read", url], ["read", url])

        outputs = [
            json.loads(text)
            for text in await outputs_of(["-m", "tests.integration.test_sqlite_processes", *role] for role in roles)
        ]

    assert [{"committed": RUNS * STEPS}] * 2 == outputs[:2]
    assert all(output["reads"] > 0 for output in outputs[2:])


async def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    code = "import sys; from worker.adapters.sql.migrate import current; print(current(sys.argv[1]))"

    assert ["None\n"] * 4 == await outputs_of(["-c", code, url] for _ in range(4))


if __name__ == "__main__":
    role, url, *rest = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(write(url, *rest) if role == "write" else read(url))))
