"""From what a model wrote to calls: their ids, keys and arguments, and which of them may go through."""

from __future__ import annotations

from typing import Any

import pytest

from codec.facts import EgressFacts
from codec.vocabulary import CallStatus, DeclaredClass, FailureClass, FinishReason, Phase, ToolEffect, TrustZone
from tests.support.builders import ASK, LOOK, RUN, TOOLS, WRITE, facts, request, source, tool
from tests.support.driving import Driven
from worker.core.keys import call_key
from worker.core.machine import continued
from worker.core.schemas import is_valid, overlay, properties_of, without_properties

SECRET = source(5, DeclaredClass.SECRET_ADJACENT)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("", ""), ["call_1_0", "call_1_1"]),
        (("a", "a"), ["a", "call_1_1"]),
        (("a", "b"), ["a", "b"]),
        (("", "call_1_0"), ["call_1_0", "call_1_1"]),
        (("call_1_1", ""), ["call_1_1", "call_1_1_"]),
    ],
)
def test_ids_that_are_empty_or_repeated_are_replaced(given: tuple[str, str], expected: list[str]) -> None:
    """Within a turn, whatever they collide with; the message in the transcript bears the same ids."""
    run = Driven(facts()).reply(*(("look", "{}", name) for name in given))

    assert expected == [call.id for call in run.state.calls]
    assert expected == [call.id for call in run.state.transcript[-1].tool_calls]


def test_ids_of_earlier_turns_are_not_taken_again() -> None:
    """Each id stands for one call of the run."""
    run = Driven(facts()).reply(("look", "{}", "a")).returns().reply(("look", "{}", "a"))

    assert ["call_2_0"] == [call.id for call in run.state.calls]


def test_a_call_keeps_its_key_whatever_happens() -> None:
    """Over a crash, an expired permit, a person who lets it run, and into a requeued run."""
    run = Driven(facts()).reply(("look", "{}"), ("write", "{}"))
    keys = [call.key for call in run.state.calls]
    assert [call_key(run.state.seed, RUN, 1, index) for index in (0, 1)] == keys

    run.resume().decide().crash()
    assert CallStatus.UNKNOWN is run.call(1).status
    run.returns(0).resume().settle(run=True).fails(1, FailureClass.PERMIT_EXPIRED).crash().settle()
    assert keys == [call.key for call in run.state.calls]
    assert keys == [call.key for call in continued(run.state, "22222222-2222-4222-8222-222222222222").calls]


def test_keys_differ_by_run_turn_and_place() -> None:
    """And say nothing of them."""
    seed, other = "0" * 32, "0" * 31 + "1"
    keys = {
        call_key(seed, "r", 1, 0),
        call_key(seed, "r", 1, 1),
        call_key(seed, "r", 2, 0),
        call_key(seed, "s", 1, 0),
        call_key(other, "r", 1, 0),
    }

    assert 5 == len(keys)


@pytest.mark.parametrize(
    "arguments",
    ['{"n":1', "", "5", "[]", '"x"', "null", '{"n":1,"n":2}', '{"n":NaN}', '{"n":Infinity}', '{"n":1e999}', "x" * 50],
)
@pytest.mark.parametrize("name", ["look", "write", "shown", "ask"])
def test_unusable_arguments_are_answered_with_an_error(name: str, arguments: str) -> None:
    """Never executed, never repaired, never asked about."""
    run = Driven(facts()).reply((name, arguments))

    assert ["send to house"] == run.words()
    assert run.results[0].startswith(f"Error: the arguments of {name}")


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
@pytest.mark.parametrize("name", ["look", "write", "shown", "ask", "nothing"])
def test_a_call_of_a_cut_answer_is_answered_with_an_error(name: str, finish: FinishReason) -> None:
    """Even when what is there of its arguments looks whole."""
    run = Driven(facts()).reply((name, "{}"), finish=finish)

    assert ["send to house"] == run.words()
    assert "cut" in run.results[0]


def test_arguments_that_do_not_fit_the_schema_are_answered_with_an_error() -> None:
    """Before anything is asked; integers of any size fit."""
    run = Driven(facts()).reply(("write", '{"n":"x"}'), ("look", f'{{"n":{2**256 - 1}}}'))

    assert ["call look"] == run.words()
    assert "do not fit" in str(run.call(0).result)
    assert f'{{"n":{2**256 - 1}}}' == run.call(1).executed


@pytest.mark.parametrize(
    ("name", "told"),
    [("nothing", "there is no tool named nothing"), ("off", "off is not available"), ("far", "far is not available")],
)
def test_what_is_not_offered_is_answered_with_an_error(name: str, told: str) -> None:
    """T171, T182: unknown, switched off, above the ceiling; the loop goes on and nobody is asked."""
    tools = (
        LOOK,
        tool("off", ToolEffect.NON_IDEMPOTENT_WRITE, enabled=False),
        tool("far", ToolEffect.NON_IDEMPOTENT_WRITE, data_class=DeclaredClass.SECRET_ADJACENT),
    )
    run = Driven(facts(zone=TrustZone.EXTERNAL_EU, tools=tools)).reply((name, "{}"))

    assert ["send to house"] == run.words()
    assert told in run.results[0]


def test_an_allow_list_bounds_what_is_called() -> None:
    """T166: what the caller left out is there, and is not available."""
    run = Driven(facts(), request(allowed_tool_names=("look",))).reply(("write", "{}"), ("look", "{}"))

    assert ("look",) == Driven(facts(), request(allowed_tool_names=("look",))).send.offered
    assert ["call look"] == run.words()


def test_a_raising_tool_is_named_and_nothing_else() -> None:
    """T172."""
    run = Driven(facts()).reply(("look", "{}")).fails()

    assert ["Error: look failed."] == run.results


def test_remote_calls_have_a_budget_of_the_run() -> None:
    """Twenty, over turns and segments; then an error, and the loop goes on."""
    remote = tool("far", remote=True)
    run = Driven(facts(tools=(remote,), max_iterations=50))
    for _ in range(20):
        run.reply(("far", "{}")).returns()
    assert 20 == run.state.counters.remote_calls

    run.reply(("far", "{}"))

    assert ["send to house"] == run.words()
    assert "used up" in run.results[-1]


@pytest.mark.parametrize(
    ("url", "through"),
    [
        ("http://near.example/x", True),
        ("http://far.example/x", False),
        ("http://unknown.example/x", False),
        ("http://near.example@far.example/", False),
        ("ftp://near.example/", False),
        ("nonsense", False),
    ],
)
def test_a_call_reaches_only_where_what_is_carried_may_go(url: str, through: bool) -> None:
    """Judged before a person is asked, by the same decision as a send."""
    hosts = (
        EgressFacts(host="near.example", zone=TrustZone.LOCAL),
        EgressFacts(host="far.example", zone=TrustZone.EXTERNAL_GLOBAL),
    )
    run = Driven(facts(sources=(SECRET,), egress=hosts), request(snippets=(5,))).reply(("post", f'{{"url":"{url}"}}'))

    assert (["wait for approval"] if through else ["send to house"]) == run.words()
    if not through:
        assert "may not reach that place" in run.results[0]
        assert "post" == run.last.decisions[0].tool


def test_what_was_recorded_and_what_is_live_fold_to_the_stricter() -> None:
    """A tool that was declared to write while its call waited is asked about; one that was softened still is."""
    both = (tool("one"), ASK)
    harder = (tool("one", ToolEffect.NON_IDEMPOTENT_WRITE), ASK)
    run = Driven(facts(tools=both)).reply(("one", "{}"), ("ask", "{}"))
    assert ["wait for input"] == run.words()

    run.resume(facts=facts(tools=harder)).supply()
    assert ["wait for approval"] == run.words()
    run.resume(facts=facts(tools=both)).decide()
    assert ["call one", "call ask"] == run.words()
    assert ToolEffect.NON_IDEMPOTENT_WRITE is run.call(0).effect

    run.fails(0)
    assert CallStatus.UNKNOWN is run.call(0).status


def test_a_tool_that_turned_dangerous_while_it_ran_is_of_unknown_outcome_when_it_fails() -> None:
    """Its live declaration counts, not only the one it was called under."""
    run = Driven(facts(tools=(tool("one"),))).reply(("one", "{}"))

    run.policy(facts(tools=(tool("one", ToolEffect.NON_IDEMPOTENT_WRITE),))).fails()

    assert ["wait for outcome"] == run.words()


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", "5", "null", '{"type":7}', '{"$ref":"http://x/"}', '{"$ref":"file:///x"}']
)
def test_an_unusable_schema_fits_nothing_and_breaks_nothing(broken: str) -> None:
    """A tool's declaration is data too."""
    run = Driven(facts(tools=(tool("one", parameters=broken), tool("two", input_schema=broken))))
    run.reply(("one", "{}"), ("two", "{}"))

    assert Phase.WAITING is run.state.phase or Phase.MODEL is run.state.phase
    assert not is_valid(broken, {}) or broken == "null"
    assert () == properties_of(broken)


def test_a_persons_values_stand_over_the_models() -> None:
    """Only for declared keys: the model's are removed, undeclared ones of the person are dropped."""
    schema = '{"properties":{"a":{},"b":{}}}'
    arguments: dict[str, Any] = {"a": 1, "c": 2}

    assert {"c": 2, "b": 3} == overlay(arguments, schema, {"b": 3, "d": 4})
    assert {"a": 1, "c": 2} == arguments
    assert is_valid(without_properties('{"required":["a","c"],"properties":{"a":{},"c":{}}}', ("a",)), {"c": 1})


def test_a_call_that_is_released_is_judged_once_more() -> None:
    """T145: the tool was switched off while a person decided; its call is answered with an error, the loop goes on."""
    off = tuple(t if t is not WRITE else tool("write", ToolEffect.NON_IDEMPOTENT_WRITE, enabled=False) for t in TOOLS)
    run = Driven(facts()).reply(("write", "{}"), ("look", "{}")).resume(facts=facts(tools=off)).decide()

    assert ["call look"] == run.words()
    assert "not available" in str(run.call(0).result)
