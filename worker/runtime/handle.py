"""What whoever stored a run holds in their hands."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Handle"]


class Handle:
    """A run that was stored. `is_new` is False when its idempotency key had been used for the same request."""

    __slots__ = ("_tell", "is_new", "uuid")

    def __init__(self, uuid: str, *, is_new: bool, tell: Callable[[str], None]) -> None:
        self.uuid = uuid
        self.is_new = is_new
        self._tell = tell

    def wake(self) -> None:
        """Tell a worker soon, after the commit that made the run visible; without it the sweeper finds the run.

        Never fails, and does no harm for a run that is not there. Call on the runtime's loop; a handle of
        `BlockingRuntime` may be woken on any thread.
        """
        self._tell(self.uuid)
