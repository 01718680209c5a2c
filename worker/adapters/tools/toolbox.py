"""The tools of this process behind one port. Whatever a tool does, its caller sees text or the class of a failure."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from codec.errors import CodecError
from codec.facts import ToolFacts
from codec.text import parse_object
from codec.vocabulary import FailureClass, TrustZone
from worker.adapters.tools.builtin import builtin_tools
from worker.adapters.tools.loading import load_tools
from worker.adapters.tools.results import preview_lines, result_text
from worker.adapters.tools.threads import EscapedError, OverdueError, Started, Threads
from worker.ports.toolbox import PREVIEW_LIMIT_S, NotExecuted, ToolCallInfo, ToolFault

__all__ = ["PythonToolbox"]

_MAX_THREADS: Final = 64  # blocking calls of one process at a time; half would queue behind slow hosts at 1000 runs
_MAX_NAME: Final = 100


@dataclass(slots=True)
class _Attempt:
    """One try to run a function: `text` is its result, or `failure` and `cause` say what became of it."""

    started: Started = field(default_factory=Started)
    value: Any = None
    failure: FailureClass | None = None
    cause: str = ""

    def fail(self, failure: FailureClass, cause: str) -> None:
        """Record a failure by its class and the name of the exception's class; keep nothing else of it."""
        self.failure = failure
        self.cause = cause[:_MAX_NAME]


def _ignore(_tool: str, _cause: str) -> None:
    """Tell nobody."""


class PythonToolbox:
    """The built-in tools and those of the modules given. Belongs to one event loop; nothing needs closing.

    `egress` gives the hosts that HTTP tools may reach now, by the `host` of the record. `on_fault` is told the tool's
    name and an exception's class for each call that failed, and nothing else.
    Errors: `ToolModuleError` and `ToolDeclarationError` when it is built.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        files_root: Path | None,
        egress: Callable[[], Awaitable[Mapping[str, TrustZone]]],
        on_fault: Callable[[str, str], None] = _ignore,
        max_threads: int = _MAX_THREADS,
    ) -> None:
        self._tools = load_tools(builtin_tools(files_root=files_root, egress=egress), modules)
        self._on_fault = on_fault
        self._threads = Threads(max_threads)

    def facts(self) -> Sequence[ToolFacts]:
        """Give all tools' facts: the built-ins, then the modules' in their order."""
        return tuple(registered.facts for registered in self._tools.values())

    async def call(self, name: str, arguments: str, info: ToolCallInfo, timeout_ms: int) -> str:
        """Run a tool as the port says. Errors: `ToolFault`; a call that never reached the tool is `not_executed`."""
        registered = self._tools.get(name)
        if registered is None:
            raise ToolFault(FailureClass.NOT_EXECUTED)
        function = _bound(registered.function, arguments, info if registered.wants_call else None)
        attempt = _Attempt()
        if function is None:
            attempt.fail(FailureClass.NOT_EXECUTED, TypeError.__name__)
        else:
            await self._attempt(attempt, function, result_text, timeout_ms)
        # Out here no handler is active: the fault must not drag the tool's exception along as its context.
        if attempt.failure is not None:
            self._on_fault(name, attempt.cause)
            raise ToolFault(attempt.failure)
        return str(attempt.value)

    async def preview(self, name: str, arguments: str, info: ToolCallInfo) -> tuple[tuple[str, ...], bool]:
        """Give a preview's lines and whether it failed, as the port says. Total; at most 10 seconds."""
        registered = self._tools.get(name)
        if registered is None or registered.preview is None:
            return ("This tool has no preview.",), True
        function = _bound(registered.preview, arguments, info if registered.preview_wants_call else None)
        if function is None:
            return ("The preview does not take these arguments.",), True
        attempt = _Attempt()
        await self._attempt(attempt, function, preview_lines, int(PREVIEW_LIMIT_S * 1000))
        if attempt.failure is not None:
            return (f"The preview failed: {attempt.cause}.",), True
        return (attempt.value, False) if attempt.value else (("The preview gave no lines.",), True)

    async def _attempt(
        self, attempt: _Attempt, function: Callable[[], Any], read: Callable[[Any], Any], timeout_ms: int
    ) -> None:
        """Run `function` within its time and `read` what it gives; afterwards `attempt` knows all there is to know."""
        scope = asyncio.timeout(timeout_ms / 1000)
        try:
            async with scope:
                attempt.value = read(await self._run(function, attempt.started))
        except NotExecuted:
            attempt.fail(FailureClass.NOT_EXECUTED, NotExecuted.__name__)
        except OverdueError:
            attempt.fail(FailureClass.PERMIT_EXPIRED, OverdueError.__name__)
        except asyncio.CancelledError as error:
            # Somebody wants this run to stop, unless nobody asked: then the tool has cancelled itself.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            attempt.fail(FailureClass.RAISED, type(error).__name__)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
            # A tool may raise anything. SystemExit and KeyboardInterrupt too: asyncio would pass them on to the loop,
            # and one tool would end the worker with all its runs. Signals reach the process by other ways.
            if not scope.expired():
                cause = error.name if isinstance(error, EscapedError) else type(error).__name__
                attempt.fail(FailureClass.RAISED, cause)
            elif attempt.started.begun:
                attempt.fail(FailureClass.TIMEOUT, TimeoutError.__name__)
            else:  # no thread was free in time
                attempt.fail(FailureClass.NOT_EXECUTED, TimeoutError.__name__)

    async def _run(self, function: Callable[[], Any], started: Started) -> Any:
        if _is_async(function):
            started.begun = True
            value = function()
        else:
            value = await self._threads.run(function, started)
        return await value if inspect.isawaitable(value) else value


def _bound(function: Callable[..., Any], arguments: str, call: ToolCallInfo | None) -> Callable[[], Any] | None:
    """Bind the arguments by name; None when they are no JSON object or the function cannot take them."""
    try:
        given = parse_object(arguments, "arguments")
        # The keyword is ours: a model that writes it must not pass for the runtime.
        if "call" in given:
            return None
        if call is not None:
            given["call"] = call
        inspect.signature(function).bind(**given)
    except (CodecError, TypeError):
        return None
    return partial(function, **given)


def _is_async(function: Callable[[], Any]) -> bool:
    # Looks through the partial, and at objects whose __call__ is a coroutine function.
    inner = function.func if isinstance(function, partial) else function
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004
