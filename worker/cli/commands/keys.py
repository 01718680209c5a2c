"""The key ring from the command line: list its keys, add one, rotate to the newest."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from worker.cli.faults import REFUSED
from worker.cli.options import Asked, common
from worker.cli.pages.keeping import keys_page, rotation_page
from worker.cli.printing import print_json, print_line, print_people
from worker.cli.progress import Progress
from worker.cli.session import VIA, Session, in_session

__all__ = ["keys"]

_RIGHT = "keys"


@click.group()
def keys() -> None:
    """List, add and rotate the keys that wrap what is stored.

    On several hosts: add, copy the file to each, rotate --no-add, copy the file again, rotate --no-add.
    """


@keys.command("list")
@common
def list_keys(asked: Asked) -> int:
    """List every key that the ring or the database knows, and how much is wrapped by it."""

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "read about the key ring")
        found = await session.opened.keys.keys()
        if not asked.json:
            print_people(keys_page(found))
        for key in found if asked.json else ():
            print_json(key)

    return in_session(asked, work)


@keys.command()
@click.option("--force", is_flag=True, help="Although the database knows a newer key, of a file that is lost.")
@common
def add(asked: Asked, *, force: bool) -> int:
    """Put a new key into the ring, without using it yet: first copy the file to every host, then rotate."""

    async def work(session: Session) -> None:
        await session.must_hold(_RIGHT, "change the key ring")
        added = await session.opened.keys.add(force=force, actor=session.actor.name, via=VIA)
        if asked.json:
            print_json({"id": added})
        else:
            print_line(f"added {added} to {session.opened.settings.keys_file}; it is not active yet")

    return in_session(asked, work)


@keys.command()
@click.option("--no-add", is_flag=True, help="Add no key: other hosts would lack it.")
@common
def rotate(asked: Asked, *, no_add: bool) -> int:
    """Make the ring's newest key the active one, and wrap what the others wrapped anew under it.

    No content is sealed anew. A rotation that was interrupted is finished; else a key is added when none is new. Exit 1
    when something stays under another key.
    """

    async def work(session: Session) -> int:
        await session.must_hold(_RIGHT, "change the key ring")
        progress = Progress("re-wrapped", silent=asked.json)
        by = session.actor.name
        done = await session.opened.keys.rotate(add=not no_add, actor=by, via=VIA, progress=progress)
        left = sum(key.rows for key in done.left)
        print_json(asdict(done) | {"left": left}) if asked.json else print_people(rotation_page(done))
        return REFUSED if left else 0

    return in_session(asked, work)
