"""The parts that the runtime is made of, and the figures that it goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from worker.ports.catalogue import Catalogue
from worker.ports.clock import Clock
from worker.ports.models import Models
from worker.ports.runs import RunStore
from worker.ports.sealing import Sealer
from worker.ports.signals import Signals
from worker.ports.toolbox import Toolbox

__all__ = ["PERMIT_TTL_S", "Figures", "Parts"]

PERMIT_TTL_S: Final = 2.0
"""Seconds from the commit of a permit to its performance. It bounds how long a policy that was replaced can still act;
half would expire permits on a busy machine, double would double that bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Settings of a process. Units: seconds; `retry_s[n]` is the wait before retry n + 1."""

    lease_s: float = 30.0
    sweep_s: float = 5.0
    retry_s: tuple[float, ...] = (30.0, 60.0, 120.0)
    max_runs: int = 1000
    send_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything from outside, as ports. `log` takes an event name and content-free fields."""

    store: RunStore
    catalogue: Catalogue
    sealer: Sealer
    models: Models
    toolbox: Toolbox
    signals: Signals
    clock: Clock
    figures: Figures
    holder: str
    log: Callable[[str, dict[str, Any]], None]
