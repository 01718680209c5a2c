"""Answers of people: partial, edited, denied, by somebody who lost the right, and to the wrong question."""

from __future__ import annotations

import msgspec
import pytest

from codec.events import CallVerdict, DecisionGiven, Expired, InputGiven, OutcomeGiven
from codec.request import ModelOptions
from codec.vocabulary import BlockedReason, CallStatus, DeclaredClass, FailureClass, Phase, TrustZone
from tests.support.builders import DECIDER, PEOPLE, TOOLS, facts, request, source
from tests.support.driving import Driven
from tests.support.walking import DORA, NOBODY

SECRET = source(5, DeclaredClass.SECRET_ADJACENT)
REFUSING = facts(zone=TrustZone.EXTERNAL_GLOBAL, sources=(SECRET,))


def asking(*names: str) -> Driven:
    """Give a run that waits for a decision about these tools, in a segment that has begun."""
    run = Driven(facts(sources=(SECRET,)), request(snippets=(5,)))
    run.reply(*((name, '{"n":1}', f"c{i}") for i, name in enumerate(names)))
    return run.resume()


def test_a_denied_call_is_answered_and_the_run_goes_on() -> None:
    """T144: with the person's words, marked as theirs; nothing executes and the run completes."""
    run = asking("write", "write").decide(c0=CallVerdict(approve=False, reason="too much"), c1=False)

    assert ["send to house"] == run.words()
    assert "(untrusted): too much" in run.results[0]
    assert all("denied" in result for result in run.results)
    assert ["end completed"] == run.reply().words()


def test_verdicts_are_per_call_and_nothing_executes_before_all_are_given() -> None:
    """What was not named is asked again, as another question about what is left."""
    run = asking("write", "look", "write")
    first = run.question

    run.decide(c0=True)
    assert ["wait for approval"] == run.words()
    assert (("c2",), 2) == (run.question.calls, run.question.number)
    assert first.id != run.question.id

    run.resume().decide(c2=False)
    assert ["call write", "call look"] == run.words()


def test_an_edit_is_executed_and_all_three_texts_are_kept() -> None:
    """Proposed, approved and executed are told apart."""
    run = asking("write").decide(c0=CallVerdict(approve=True, arguments='{ "n": 2 }'))
    call = run.call()

    assert ["call write"] == run.words()
    assert ('{"n":1}', '{ "n": 2 }', '{"n":2}') == (call.proposed, call.approved, call.executed)
    assert ("dora", True) == (call.decided_by, call.decided)


@pytest.mark.parametrize("edited", ['{"n":"x"}', "{", "[]", ""])
def test_an_edit_that_cannot_be_used_is_not_executed(edited: str) -> None:
    """Neither is what the model proposed in its place."""
    run = asking("write").decide(c0=CallVerdict(approve=True, arguments=edited))

    assert ["send to house"] == run.words()
    assert run.results[0].startswith("Error")


def test_somebody_who_lost_the_right_releases_nothing() -> None:
    """The same calls are asked about again; a denial needs the right to decide too."""
    for actor in (NOBODY, msgspec.structs.replace(DORA, enabled=False)):
        for approve in (True, False):
            run = asking("write").decide(actor, c0=approve)
            assert ["wait for approval"] == run.words()
            assert (("c0",), 2) == (run.question.calls, run.question.number)


def test_who_may_not_read_the_call_in_full_may_deny_it() -> None:
    """But not release it: the run carries more than this person is cleared for."""
    assert ["wait for approval"] == asking("write").decide(DECIDER, c0=True).words()
    assert ["send to house"] == asking("write").decide(DECIDER, c0=False).words()


def test_a_mixed_answer_of_somebody_with_half_the_rights_is_asked_again_in_part() -> None:
    """What may stand stands, the rest is another question."""
    tools = tuple(msgspec.structs.replace(t, requires_admin=t.name == "label") for t in TOOLS)
    run = Driven(facts(tools=tools)).reply(("write", "{}", "c0"), ("label", "{}", "c1")).resume()

    run.decide(c0=True, c1=True)
    assert (["wait for approval"], ("c1",)) == (run.words(), run.question.calls)

    run.resume().decide(PEOPLE)
    assert ["call write", "call label"] == run.words()


def test_only_the_asked_kind_of_answer_to_the_open_question_counts() -> None:
    """T151: another kind, an older question, a blocked run: stale, and nothing is spent."""
    run = asking("write")
    state = run.state
    stamp = {**run.stamp(), "decider": DORA}
    for event in (
        InputGiven(**stamp, question=run.question.id, data="{}"),
        OutcomeGiven(**stamp, question=run.question.id, call="c0", run=True),
        DecisionGiven(**stamp, question="0" * 32, verdicts={"c0": CallVerdict(approve=True)}),
    ):
        assert run.take(event).last.stale
        assert state == run.state


def test_an_answer_is_kept_while_the_run_is_blocked_and_counts_afterwards() -> None:
    """A refused resume spends nothing: the same answer to the same question is folded when the gate permits."""
    run = asking("write").resume(facts=REFUSING)
    assert ["blocked by context"] == run.words()
    assert run.state.blocked is not None
    assert BlockedReason.CONTEXT is run.state.blocked.reason

    assert run.decide().last.stale
    run.resume(facts=facts(sources=(SECRET,))).decide()
    assert ["call write"] == run.words()


def test_a_policy_that_moves_between_resume_and_answer_blocks_too() -> None:
    """An approval that meets a refusing policy releases nothing."""
    run = asking("write").policy(REFUSING)
    assert ["blocked by context"] == run.words()

    run.decide()
    assert run.last.stale
    run.policy(facts(sources=(SECRET,)))
    assert ([], True) == (run.words(), run.state.blocked is not None)


def test_input_is_laid_over_the_arguments() -> None:
    """T148: only what the schema declares; allow-list and options are as they were."""
    options = ModelOptions(temperature=0.3, max_tokens=512)
    run = Driven(facts(), request(options=options, allowed_tool_names=("ask",)))
    run.reply(("ask", '{"answer":"model","n":4}')).resume()
    assert (["wait for input"], "ask") == (run.words(), run.question.input.tool if run.question.input else "")

    run.supply('{"answer":"person","n":9}')
    assert '{"n":4,"answer":"person"}' == run.call().executed
    run.returns()
    assert (options, ("ask",)) == (run.state.options, run.send.offered)


@pytest.mark.parametrize(
    "data", ["{}", '{"answer":7}', "5", "[]", "", "{", '{"answer":NaN}', '{"answer":"a","answer":""}']
)
def test_input_that_does_not_fit_is_asked_for_again(data: str) -> None:
    """Nothing executes, and nothing breaks on what is no JSON at all."""
    run = Driven(facts()).reply(("ask", "{}")).resume().supply(data)

    assert (["wait for input"], 2) == (run.words(), run.question.number)


def test_one_input_serves_one_call() -> None:
    """T152, T182: each is asked for by itself, after the approvals; nothing executes in between."""
    run = Driven(facts()).reply(("ask", "{}"), ("ask", "{}"), ("write", "{}"))

    assert ["wait for approval"] == run.words()
    assert ["wait for input"] == run.resume().decide().words()
    assert ["wait for input"] == run.resume().supply().words()
    assert ["call ask", "call ask", "call write"] == run.resume().supply().words()


def test_an_unknown_outcome_is_settled_by_a_person() -> None:
    """It happened, with this result; it did not, run it; or stop."""
    for word, expected in (
        ({"happened": "it did"}, ["send to house"]),
        ({"happened": ""}, ["send to house"]),
        ({"run": True}, ["call write"]),
        ({}, ["end outcome_unknown"]),
    ):
        run = asking("write").decide().fails(failure=FailureClass.TIMEOUT)
        assert ["wait for outcome"] == run.words()
        assert expected == run.resume().settle(**word).words()
        if "happened" in word:
            assert [word["happened"]] == run.results


def test_what_did_nothing_or_was_not_let_act_is_of_known_outcome() -> None:
    """Not executed is an error for the model; an expired permit is given again with the same key."""
    run = asking("write").decide()
    key = run.call().key

    assert ["call write"] == run.fails(failure=FailureClass.PERMIT_EXPIRED).words()
    assert key == run.call().key
    assert ["send to house"] == run.fails(failure=FailureClass.NOT_EXECUTED).words()
    assert ["Error: write did nothing."] == run.results


def test_a_preview_is_shown_before_the_question_and_repeated_after_a_crash() -> None:
    """It counts as open; a tool that was switched off meanwhile is not previewed again."""
    run = Driven(facts()).reply(("shown", "{}"))
    assert (["preview shown"], CallStatus.PREVIEW) == (run.words(), run.call().status)
    assert ["preview shown"] == run.crash().words()

    assert ["wait for approval"] == run.preview().words()
    assert run.call().preview is not None
    off = tuple(msgspec.structs.replace(t, enabled=t.name != "shown") for t in TOOLS)
    assert ["send to house"] == Driven(facts()).reply(("shown", "{}")).crash(facts(tools=off)).words()


def test_a_question_expires_also_while_blocked() -> None:
    """And a late answer changes nothing any more."""
    run = asking("write").resume(facts=REFUSING)
    question = run.question.id
    run.take(Expired(**run.stamp()))

    assert (["end expired"], Phase.DONE) == (run.words(), run.state.phase)
    late = DecisionGiven(**run.stamp(), question=question, decider=DORA, verdicts={"c0": CallVerdict(approve=True)})
    assert run.take(late).last.stale
