"""The world outside of a process, behind the ports: models, tools, wake-ups, the clock and randomness.

Everything that it does is drawn from the seed; everything that reaches it is in the ledger before anybody can tell.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from codec.commands import Permit
from codec.facts import ToolFacts
from codec.transcript import ModelReply, RawCall, Usage
from codec.vocabulary import FailureClass, FinishReason, Role
from tests.simulation.content import TOOLS
from worker.ports.models import ModelRequest, ModelSendError
from worker.ports.timeliness import in_time
from worker.ports.toolbox import ToolCallInfo, ToolFault

if TYPE_CHECKING:
    from tests.simulation.fleet import Process
    from tests.simulation.ledger import Send
    from tests.simulation.loop import Kernel

__all__ = ["Models", "Signals", "Tools", "VirtualClock"]

_BEFORE: Final = (FailureClass.CONNECTION, FailureClass.AUTH, FailureClass.CONFIGURATION)
_AFTER: Final = (
    FailureClass.CONNECTION,
    FailureClass.RATE_LIMIT,
    FailureClass.SERVER_ERROR,
    FailureClass.SERVER_ERROR,
    FailureClass.CLIENT_ERROR,
    FailureClass.INVALID_REPLY,
)
_CUT: Final = ('{"ticket": ', '{"ticket": NaN}', "[]", "")


class VirtualClock:
    """The port `Clock`: each host counts from a moment of its own."""

    def __init__(self, kernel: Kernel, chance: random.Random) -> None:
        self._kernel = kernel
        self._chance = chance
        self._offset = chance.uniform(0.0, 1e6)

    def monotonic(self) -> float:
        """See the port."""
        return self._kernel.now + self._offset

    def nonce(self) -> str:
        """See the port."""
        return f"{self._chance.getrandbits(128):032x}"

    def uuid(self) -> str:
        """See the port."""
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))


class Signals:
    """The port `Signals`: lost, late, repeated, out of order, and beside them ids of nobody."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sim = process.sim

    async def wake(self, uuids: Sequence[str]) -> bool:
        """See the port."""
        await self._process.point("wake.leaving")
        weather = self._sim.weather
        await asyncio.sleep(weather.transit() / 10)
        if weather.away("broker"):
            return False
        for run in uuids:
            for _ in range(weather.copies()):
                self._sim.kernel.after(weather.transit(), self._sim.fleet.deliver, run)
        if weather.happens(weather.rates.garbage):
            self._sim.kernel.after(weather.transit(), self._sim.fleet.deliver, self._process.clock.uuid())
        return True


class Models:
    """The port `Models`: providers that answer with texts and calls, fail in every class, and take their time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sim = process.sim
        self._chance = process.sim.chance("models")

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """See the port."""
        weather = self._sim.weather
        await self._process.point("send.leaving")
        await asyncio.sleep(weather.handshake())
        if not in_time():
            raise ModelSendError(FailureClass.PERMIT_EXPIRED)
        if weather.happens(weather.rates.model_fails / 4):
            raise ModelSendError(self._chance.choice(_BEFORE))
        send = self._sim.sent(self._process, permit, request)
        try:
            return await self._answer(send, request)
        finally:
            send.flying = False

    async def _answer(self, send: Send, request: ModelRequest) -> ModelReply:
        weather = self._sim.weather
        await self._process.point("send.arrived")
        await asyncio.sleep(weather.taking())
        if weather.happens(weather.rates.model_fails):
            if self._chance.random() < 0.1:
                raise RuntimeError("a provider's adapter has a fault of its own")
            raise ModelSendError(self._chance.choice(_AFTER), self._chance.choice((0, 0, 700)))
        return self._reply(send, request)

    def _reply(self, send: Send, request: ModelRequest) -> ModelReply:
        send.tokens = tokens = self._sim.count()
        answered = sum(message.role is Role.ASSISTANT for message in request.messages)
        chance = self._chance
        usage = Usage(input_tokens=tokens, output_tokens=1)
        if not request.tools or chance.random() < 0.05 + 0.2 * answered:
            return ModelReply(text=f"answer {tokens}", usage=usage, model=send.permit.target.model)
        calls = tuple(self._call(request) for _ in range(chance.choice((1, 1, 2, 3))))
        finish = FinishReason.LENGTH if chance.random() < 0.03 else FinishReason.TOOL_CALLS
        return ModelReply(text="", calls=calls, usage=usage, finish=finish, model=send.permit.target.model)

    def _call(self, request: ModelRequest) -> RawCall:
        chance, ticket = self._chance, self._sim.count()
        tools = [tool for tool in request.tools if tool.effect.is_write or chance.random() < 0.5] or request.tools
        name = chance.choice(tools).name if chance.random() < 0.95 else "nonsense"
        identity = f"c{ticket}" if chance.random() < 0.9 else chance.choice(("", "same"))
        if chance.random() < 0.04:
            return RawCall(id=identity, name=name, arguments=chance.choice(_CUT))
        return RawCall(id=identity, name=name, arguments=json.dumps({"ticket": ticket}))


class Tools:
    """The port `Toolbox`: each call that happens is in the ledger, whatever its caller learns of it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sim = process.sim
        self._chance = process.sim.chance("tools")
        self._by_name = {tool.name: tool for tool in TOOLS}

    def facts(self) -> Sequence[ToolFacts]:
        """See the port."""
        return TOOLS

    async def call(self, name: str, arguments: str, info: ToolCallInfo, timeout_ms: int) -> str:
        """See the port."""
        weather = self._sim.weather
        await self._process.point("tool.leaving")
        await asyncio.sleep(weather.handshake())
        if not in_time():
            raise ToolFault(FailureClass.PERMIT_EXPIRED)
        fate = self._chance.random() if weather.happens(weather.rates.tool_fails) else 1.0
        if fate < 0.3:
            raise ToolFault(FailureClass.NOT_EXECUTED)
        given: dict[str, Any] = json.loads(arguments)
        self._sim.executed(self._process, self._by_name[name], given["ticket"], arguments, info)
        await self._process.point("tool.begun")
        if weather.happens(weather.rates.tool_fails / 8):
            await self._hang()
        taking = weather.taking()
        if taking > timeout_ms / 1000:
            await asyncio.sleep(timeout_ms / 1000)
            raise ToolFault(FailureClass.TIMEOUT)
        await asyncio.sleep(taking)
        if fate < 0.8:
            raise ToolFault(FailureClass.RAISED)
        if fate < 1.0:
            raise RuntimeError("a toolbox has a fault of its own")
        return f"result of {name} {given['ticket']}"

    async def _hang(self) -> None:
        """Obey no timeout, and not the first cancellation either."""
        try:
            await asyncio.sleep(20.0)
        except asyncio.CancelledError:
            if self._sim.storming and self._chance.random() < 0.5:
                await asyncio.sleep(5.0)
            raise

    async def preview(self, name: str, arguments: str, info: ToolCallInfo) -> tuple[tuple[str, ...], bool]:
        """See the port."""
        await self._process.point("preview")
        await asyncio.sleep(self._sim.weather.handshake())
        if self._sim.weather.happens(self._sim.weather.rates.tool_fails):
            return ("The preview failed.",), True
        return (f"{name} would do it.",), False
