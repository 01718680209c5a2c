"""What ends a run of itself: rounds, tokens, time, window, crashes, failures; and how a requeued run begins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codec.events import CancelRequested, RunStarted, StateCorrupted, ToolReturned
from codec.request import ModelOptions
from codec.suspended import SuspendedRunState
from codec.transcript import Usage
from codec.vocabulary import DeclaredClass, FailureClass, Phase, ResumeCause, TerminationReason, TrustZone
from tests.support.builders import facts, fallback, nonce, provider, request, source, started
from tests.support.driving import Driven
from worker.core.errors import ProtocolError
from worker.core.machine import continued, step
from worker.core.replies import PERMIT_CAP
from worker.core.transitions import CRASH_CAP
from worker.core.work import Step

SPARE = facts(providers=(provider(), provider(2, identifier="spare")), fallbacks=(fallback(),))
BUSY = FailureClass.PERMIT_EXPIRED
OTHER = "22222222-2222-4222-8222-222222222222"


def test_at_the_cap_a_last_send_asks_for_the_synthesis() -> None:
    """T175: cap 2, a tool each round; then one send without tools, whose calls are ignored; usage is summed."""
    run = Driven(facts(max_iterations=2)).reply(("look", "{}")).returns().reply(("look", "{}"))
    run.returns()

    assert ((), 3) == (run.send.offered, run.send.round)
    run.reply(("write", "{}"), text="so far")
    counters = run.state.counters
    assert (["end max_iterations"], 2, 30, 15) == (
        run.words(),
        counters.rounds,
        counters.input_tokens,
        counters.output_tokens,
    )
    assert run.state.reason is not None and run.state.reason.truncated


@pytest.mark.parametrize(
    ("configured", "asked", "rounds"), [(10, None, 10), (10, 3, 3), (10, 50, 10), (500, 200, 200), (0, None, 1)]
)
def test_the_configuration_bounds_the_rounds(configured: int, asked: int | None, rounds: int) -> None:
    """Instead of T179; whatever it says, the state can be read back."""
    run = Driven(facts(max_iterations=configured), request(max_iterations=asked))

    assert rounds == run.state.limits.rounds
    assert run.state == SuspendedRunState.decode(run.state.encode())


def test_tokens_bound_the_run_over_all_segments() -> None:
    """T176: no further send, also after a crash; a provider that counts backwards gives nothing back."""
    run = Driven(facts(max_total_tokens=30)).reply(("look", "{}")).returns()
    assert ["send to house"] == run.words()

    run.reply(("look", "{}")).crash().returns()
    assert ["end budget_exhausted"] == run.words()

    backwards = Driven(facts()).reply(usage=Usage(input_tokens=-5, output_tokens=-5))
    assert 0 == backwards.state.counters.input_tokens
    assert backwards.state == SuspendedRunState.decode(backwards.state.encode())


def test_time_bounds_the_run_and_never_runs_backwards() -> None:
    """Executing milliseconds over all segments, as the driver counts them."""
    run = Driven(facts(max_duration_s=1)).reply(("look", "{}"))
    run.number = 1000
    run.returns()

    assert ["end budget_exhausted"] == run.words()
    early = Driven(facts(), elapsed_ms=500)
    assert 500 == early.reply(("look", "{}")).state.counters.elapsed_ms


def test_a_transcript_that_does_not_fit_ends_the_run() -> None:
    """T177: nothing is sent."""
    run = Driven(facts(), request(messages=({"role": "user", "content": "x" * 500_000},)))

    assert ["end context_truncated"] == run.words()


def test_what_was_fitted_is_what_is_kept() -> None:
    """Whole turns leave the state with the send that needed the room; the lead stays."""
    run = Driven(facts(max_iterations=50), request(options=ModelOptions(max_tokens=122_000)))
    for number in range(6):
        run.reply(("look", '{"n":1}', f"c{number}")).returns(result="r" * 1500)

    assert run.send.length == len(run.state.transcript) < 13
    assert run.state == SuspendedRunState.decode(run.state.encode())


def test_a_failed_send_tries_the_chain_then_waits_then_gives_up() -> None:
    """T189: each hop once, parked as often as the run allows, from the first hop again."""
    run = Driven(SPARE, retries=2)
    for number in (1, 2):
        assert ["send to spare"] == run.fail_send().words()
        assert (["wait for retry"], Phase.PARKED) == (run.fail_send().words(), run.state.phase)
        assert number == run.state.retries
        assert ["send to house"] == run.resume(ResumeCause.RETRY).words()

    assert ["end retries_exhausted"] == run.fail_send().fail_send().words()


@pytest.mark.parametrize("failure", [f for f in FailureClass if not f.retryable and f is not BUSY])
def test_what_would_fail_again_ends_the_run(failure: FailureClass) -> None:
    """T190: at once, without a hop."""
    assert ["end not_retryable"] == Driven(SPARE).fail_send(failure).words()


def test_an_answer_makes_the_chain_and_the_retries_fresh() -> None:
    """The next round begins at the configuration's own provider."""
    run = Driven(SPARE, retries=1).fail_send().fail_send().resume(ResumeCause.RETRY).fail_send()
    assert (1, 1) == (run.state.hop, run.state.retries)

    run.reply(("look", "{}")).returns()

    assert (["send to house"], 0, 0) == (run.words(), run.state.hop, run.state.retries)


def test_a_hop_that_left_the_chain_is_not_the_configurations_end() -> None:
    """After a crash the send goes to what the configuration has now."""
    run = Driven(SPARE).fail_send()
    assert ["send to spare"] == run.words()

    assert ["send to house"] == run.crash(facts()).words()


def test_a_fallback_without_a_provider_is_skipped() -> None:
    """It sets the zone, and nothing can be sent to it."""
    chain = (fallback("lost", None), fallback("spare", 2))
    run = Driven(facts(providers=(provider(), provider(2, identifier="spare")), fallbacks=chain))

    assert ["send to spare"] == run.fail_send().words()


def test_a_run_that_kills_its_process_is_given_up() -> None:
    """Recovered segments in a row that added nothing; anything that happens in between counts as progress."""
    run = Driven(facts()).reply(("look", "{}"))
    for _ in range(CRASH_CAP):
        assert ["call look"] == run.crash().words()
    progress = run.returns().state.counters.barren
    assert 0 == progress

    for _ in range(CRASH_CAP):
        assert ["send to house"] == run.crash().words()
    assert ["end retries_exhausted"] == run.crash().words()


def test_a_late_event_is_no_progress() -> None:
    """Otherwise a run could be kept crashing for ever by its own echoes."""
    run = Driven(facts()).reply(("look", "{}"))
    for _ in range(CRASH_CAP):
        run.crash()
        run.take(msgspec.structs.replace(_late(), **run.stamp()))
    assert ["end retries_exhausted"] == run.crash().words()


def test_permits_that_expire_are_given_anew_until_it_is_a_failure() -> None:
    """In a row: a send that was performed begins the count anew, failed or answered."""
    run = Driven(facts(), retries=1)
    for _ in range(PERMIT_CAP):
        assert ["send to house"] == run.fail_send(BUSY).words()
    run.fail_send().resume(ResumeCause.RETRY)
    for _ in range(PERMIT_CAP):
        run.fail_send(BUSY)
    run.reply(("look", "{}"))
    for _ in range(PERMIT_CAP):
        assert ["call look"] == run.fails(failure=BUSY).words()
    assert ["send to house"] == run.fails(failure=BUSY).words()
    assert ["Error: look did nothing."] == run.results
    for _ in range(PERMIT_CAP):
        assert ["send to house"] == run.fail_send(BUSY).words()
    assert ["wait for retry"] == run.fail_send(BUSY).words()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gone": True}, TerminationReason.CONFIGURATION_GONE),
        ({"readable": False}, TerminationReason.CONTEXT_BLOCKED),
        ({"providers": ()}, TerminationReason.CONFIGURATION_GONE),
        ({"zone": TrustZone.EXTERNAL_GLOBAL}, None),
    ],
)
def test_a_run_that_may_not_begin_ends_before_anything_is_sent(
    changes: dict[str, Any], reason: TerminationReason | None
) -> None:
    """Gone, unreadable, or without a provider; with nothing declared the zone does not matter."""
    run = Driven(facts(**changes))

    assert reason == run.state.reason
    assert (["send to house"] if reason is None else [f"end {reason}"]) == run.words()


def test_an_owner_who_is_disabled_while_a_run_works_stops_it() -> None:
    """No send and no call in its name, and not only at the next segment."""
    gone = facts(owner=msgspec.structs.replace(facts().owner, enabled=False))
    run = Driven(facts()).policy(gone).reply(("look", "{}"))

    assert ["end policy_denied"] == run.words()
    assert ["end policy_denied"] == Driven(gone).words()


def test_a_configuration_that_is_deleted_while_a_run_works_says_so() -> None:
    """Not that its context was refused."""
    secret = (source(5, DeclaredClass.SECRET_ADJACENT),)
    run = Driven(facts(sources=secret), request(snippets=(5,)))

    run.policy(facts(sources=secret, gone=True)).fail_send(BUSY)

    assert ["end configuration_gone"] == run.words()


def test_a_catalogue_that_becomes_unreadable_while_a_run_works_lets_nothing_through() -> None:
    """Neither the calls of the answer on its way nor the next send."""
    run = Driven(facts()).policy(facts(readable=False)).reply(("look", "{}"))

    assert ["end context_blocked"] == run.words()
    assert ["Error: look is not available to this run."] == run.results


@pytest.mark.parametrize(
    ("run", "phase", "words"),
    [
        (Driven(facts()).fail_send(FailureClass.AUTH), Phase.PARKED, ["send to house"]),
        (Driven(facts()).reply(("write", "{}")).resume().decide().fails().resume().settle(), Phase.TOOLS, None),
        (Driven(facts()).reply(("look", "{}")).crash(facts(gone=True)), Phase.TOOLS, ["call look"]),
    ],
)
def test_a_failed_run_goes_on_where_it_stopped(run: Driven, phase: Phase, words: list[str] | None) -> None:
    """Under a new name, with everything it carries, and open calls met as after a crash."""
    again = continued(run.state, OTHER)
    assert (phase, OTHER, None) == (again.phase, again.run, again.reason)
    assert again == SuspendedRunState.decode(again.encode())

    run.steps.append(Step(state=again))
    run.resume(ResumeCause.REQUEUE, facts())

    assert (words or ["wait for outcome"]) == run.words()


@pytest.mark.parametrize(
    "run",
    [
        Driven(facts()),
        Driven(facts()).reply(),
        Driven(facts(max_iterations=1)).reply(("look", "{}")).returns().reply(),
        Driven(facts()).take(CancelRequested(nonce=nonce(9), elapsed_ms=9, policy=1, by="dora")),
    ],
    ids=["working", "completed", "truncated", "cancelled"],
)
def test_only_a_failed_run_can_be_continued(run: Driven) -> None:
    """Not one that works, that completed, or that somebody cancelled."""
    with pytest.raises(ProtocolError):
        continued(run.state, OTHER)


@pytest.mark.parametrize("kind", [CancelRequested, StateCorrupted])
def test_a_run_can_end_before_it_was_composed(kind: Any) -> None:
    """It carries nothing, is not continued, and is stored like any other."""
    more = {"by": "dora"} if kind is CancelRequested else {}
    state = step(None, kind(nonce=nonce(1), elapsed_ms=0, policy=1, **more)).state

    assert (Phase.DONE, (), ()) == (state.phase, state.carried, state.transcript)
    assert state == SuspendedRunState.decode(state.encode())
    with pytest.raises(ProtocolError):
        continued(state, OTHER)


def test_a_run_starts_once() -> None:
    """And nothing else makes a state."""
    event: RunStarted = started()
    with pytest.raises(ProtocolError):
        step(step(None, event).state, event)
    with pytest.raises(ProtocolError):
        step(None, msgspec.structs.replace(_late(), nonce=nonce(1)))


def _late() -> ToolReturned:
    return ToolReturned(nonce=nonce(1), elapsed_ms=0, policy=1, call="long ago", result="late")
