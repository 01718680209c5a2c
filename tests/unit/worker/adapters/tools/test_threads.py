import asyncio
import contextvars
import threading

import pytest

from worker.adapters.tools.threads import EscapedError, OverdueError, Started, Threads
from worker.ports.timeliness import performing

SHADE: contextvars.ContextVar[str] = contextvars.ContextVar("SHADE", default="none")


async def test_a_function_runs_in_a_thread_with_the_callers_context() -> None:
    SHADE.set("blue")

    def work() -> tuple[str, bool]:
        return SHADE.get(), threading.current_thread() is threading.main_thread()

    assert ("blue", False) == await Threads(1).run(work, Started())


async def test_its_exception_is_its_callers() -> None:
    def work() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        await Threads(1).run(work, Started())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()])
async def test_what_would_end_the_loop_is_made_harmless(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(EscapedError) as caught:
        await Threads(1).run(work, Started())

    assert type(error).__name__ == caught.value.name


async def test_no_more_than_the_limit_run_at_a_time() -> None:
    threads, begun, open_gate = Threads(2), threading.Semaphore(0), threading.Event()
    started = [Started() for _ in range(3)]

    def work() -> None:
        begun.release()
        open_gate.wait(10)

    async with asyncio.TaskGroup() as group:
        for one in started:
            group.create_task(threads.run(work, one))
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=10)

        assert [True, True, False] == [one.begun for one in started]

        open_gate.set()

    assert begun.acquire(timeout=10)


async def test_who_gives_up_before_the_beginning_runs_nothing() -> None:
    threads, open_gate, started = Threads(1), threading.Event(), Started()
    ran: list[str] = []
    first = asyncio.create_task(threads.run(open_gate.wait, Started()))
    await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.run(lambda: ran.append("second"), started)
    open_gate.set()
    await first
    await threads.run(lambda: ran.append("third"), Started())

    assert ["third"] == ran
    assert not started.begun


async def test_an_abandoned_function_keeps_its_place_until_it_ends() -> None:
    threads, open_gate, waiting = Threads(1), threading.Event(), Started()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.run(open_gate.wait, Started())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.run(lambda: None, waiting)
    assert not waiting.begun

    open_gate.set()
    async with asyncio.timeout(10):
        assert 7 == await threads.run(lambda: 7, Started())


def test_a_hanging_function_does_not_outlive_its_loop_in_the_way() -> None:
    open_gate = threading.Event()

    async def abandon() -> None:
        async with asyncio.timeout(0.01):
            await Threads(1).run(open_gate.wait, Started())

    with pytest.raises(TimeoutError):
        asyncio.run(abandon())  # would wait here for a pool's thread
    left = [thread for thread in threading.enumerate() if thread.name == "regate-tool" and thread.is_alive()]

    assert left
    assert all(thread.daemon for thread in left)

    open_gate.set()
    for thread in left:
        thread.join(10)


async def test_a_function_is_not_begun_when_its_place_comes_too_late_for_the_permit() -> None:
    begun: list[str] = []
    threads, started, busy = Threads(1), Started(), threading.Event()
    holding = asyncio.ensure_future(threads.run(busy.wait, Started()))
    permitted = [True]

    async def late() -> None:
        with performing(lambda: permitted[0]):
            await threads.run(lambda: begun.append("late"), started)

    waiting = asyncio.ensure_future(late())
    await asyncio.sleep(0)
    permitted[0] = False
    busy.set()
    await holding
    with pytest.raises(OverdueError):
        await waiting

    assert ([], False) == (begun, started.begun)
    assert 7 == await threads.run(lambda: 7, Started())
