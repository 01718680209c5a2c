"""A run that this process holds: its row, its key, its state and where its journal stands."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from codec.suspended import SuspendedRunState
from worker.ports.records import ExposureWrite, RunRow
from worker.runtime.suspects import Turn

__all__ = ["Hold"]


@dataclass(slots=True, kw_only=True)
class Hold:
    """What a segment knows. Changed by its driver only; `cancelled`, `draining` and `proved_at` by the process.

    Units: `proved_at` is the monotonic second at which the lease was last known to be ours, `deadline` the one by which
    what is in the air must have come back.
    """

    row: RunRow
    token: str
    key: bytes = field(repr=False)
    actor: str
    via: str
    state: SuspendedRunState | None = field(default=None, repr=False)
    seq: int = 0
    head: bytes = b""
    began_at: float = 0.0
    before_ms: int = 0
    proved_at: float = 0.0
    deadline: float = math.inf
    last_sent: tuple[ExposureWrite, ...] = ()
    attention: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    draining: bool = False
    drained: bool = False
    yielding: bool = False
    spared: bool = False
    turn: Turn | None = None

    @property
    def interrupted(self) -> bool:
        """Whether nothing new is to be begun: the run was cancelled, or this process drains."""
        return self.cancelled or self.draining

    def allow(self, until: float) -> None:
        """Give what is in the air time until then; of several the last one counts."""
        self.deadline = until if math.isinf(self.deadline) else max(self.deadline, until)

    def elapsed_ms(self, now: float) -> int:
        """Executing time of the run so far, this segment included."""
        return self.before_ms + max(0, int((now - self.began_at) * 1000))
