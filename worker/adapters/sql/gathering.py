"""Requests that share: what queues up during one transaction is served together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import sqlalchemy as sa

from worker.adapters.sql.errors import LockedError, RefusedError
from worker.ports.runs import StoreError

__all__ = ["Gathering"]

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")

_MOST: Final = 256
"""Requests in one transaction. With more the first ones would wait long for the last one."""

_Many = Callable[[sa.Connection, Sequence[Any]], Sequence[Any]]
_Run = Callable[[Callable[[sa.Connection], list[Sequence[Any]]]], Awaitable[list[Sequence[Any]]]]
"""Runs a unit of work in a transaction: `Database.read` or `Database.transact`."""


@dataclass(frozen=True, slots=True)
class _Request:
    many: _Many
    key: Any
    answer: asyncio.Future[Any]


class Gathering:
    """Serves small requests of one event loop; those of a batch share a transaction and see the same moment.

    A request that fails fails alone, unless the database itself does. A waiter that is cancelled before its batch
    begins is forgotten; afterwards nothing is withdrawn.
    """

    def __init__(self, run: _Run) -> None:
        """Serve through `run`: `Database.read` or `Database.transact`."""
        self._run = run
        self._queue: list[_Request] = []
        self._task: asyncio.Task[None] | None = None

    async def call(self, work: Callable[Concatenate[sa.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(connection, …)` beside the others. Errors: `StoreError`, and what `work` raises."""

        def alone(connection: sa.Connection, _: Sequence[None]) -> Sequence[T]:
            return [work(connection, *args, **kwargs)]

        return await self.one_of(alone, None)

    async def one_of(self, many: Callable[[sa.Connection, Sequence[K]], Sequence[T]], key: K) -> T:
        """Ask `many` for one key; it is called once for all keys that wait, and answers in their order.

        Errors: `StoreError`, and what `many` raises for this key alone.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._queue.append(_Request(many, key, answer))
        if self._task is None:
            self._task = loop.create_task(self._serve())  # kept here; `close` waits for it
        return await answer

    async def close(self) -> None:
        """Serve what waits, then return."""
        while self._task is not None:
            await asyncio.wait([self._task])  # whoever is cancelled while waiting takes nothing from those who asked

    async def _serve(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:_MOST], self._queue[_MOST:]
                await self._serve_batch([request for request in batch if not request.answer.done()])
        finally:
            self._task = None

    async def _serve_batch(self, batch: Sequence[_Request]) -> None:
        if not batch:
            return
        kinds: dict[_Many, list[_Request]] = {}
        for request in batch:
            kinds.setdefault(request.many, []).append(request)
        try:
            results = await self._run(partial(_serve_all, kinds))
        except Exception as error:  # noqa: BLE001 - whatever it raises belongs to its waiter, not to this task
            await self._failed(batch, error)
        else:
            for requests, found in zip(kinds.values(), results, strict=True):
                for request, result in zip(requests, found, strict=True):
                    if not request.answer.done():
                        request.answer.set_result(result)

    async def _failed(self, batch: Sequence[_Request], error: Exception) -> None:
        """Find the request that failed by serving each alone; when the database failed, all did.

        A lock that one of them waited for in vain is nothing to the others.
        """
        if isinstance(error, StoreError) and not isinstance(error, RefusedError | LockedError):
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(StoreError(error.problem))
        elif len(batch) > 1:
            for request in batch:
                await self._serve_batch([request])
        elif not batch[0].answer.done():
            batch[0].answer.set_exception(error)


def _serve_all(kinds: Mapping[_Many, Sequence[_Request]], connection: sa.Connection) -> list[Sequence[Any]]:
    return [many(connection, [request.key for request in requests]) for many, requests in kinds.items()]
