"""The environment of those we compare with: `.venv-bench`, from a hashed lock, apart from the project's own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["PYTHON", "install", "missing"]

_ROOT: Final = Path(__file__).parents[1]
_VENV: Final = _ROOT / ".venv-bench"
_LOCK: Final = _ROOT / "requirements" / "bench.lock"
_STAMP: Final = _VENV / "installed"
PYTHON: Final = _VENV / "bin" / "python"


def missing() -> str | None:
    """Say why the others cannot run; None when they can."""
    if not _STAMP.exists():
        return "not installed (python -m bench --install)"
    if _STAMP.read_text() != _digest():
        return "installed from an older lock (python -m bench --install)"
    return None


def install() -> None:
    """Install exactly what the lock names, unless it is there. Errors: `CalledProcessError`; pip has said why."""
    if missing() is None:
        return
    print("installing the others into .venv-bench", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(_VENV)], check=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*pip, "--require-hashes", "--only-binary=:all:", "-r", str(_LOCK)], check=True)
    _STAMP.write_text(_digest())


def _digest() -> str:
    return hashlib.sha256(_LOCK.read_bytes()).hexdigest()
