import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codec.transcript import ModelReply, RawCall, Usage
from codec.vocabulary import FailureClass, FinishReason
from tests.support.openai_server import called, chunk, completion, events, text, usage
from worker.adapters.models import openai_reply
from worker.adapters.models.openai_reply import ReplyError, StreamReader, WholeReader

GOOD = events([text("a"), called(0, id="c", name="n", arguments="{}"), chunk(finish="tool_calls"), usage(1, 2)])
REPLY = ModelReply(
    text="a",
    calls=(RawCall(id="c", name="n", arguments="{}"),),
    usage=Usage(input_tokens=1, output_tokens=2),
    finish=FinishReason.TOOL_CALLS,
    model="served-model",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "delta", "x"]), inner),
    max_leaves=8,
)


def stream(*pieces: bytes, lost: bool = False) -> ModelReply:
    reader = StreamReader(None)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish(lost=lost)


def whole(document: Any) -> ModelReply:
    reader = WholeReader(None)
    reader.feed(json.dumps(document).encode())
    return reader.finish(lost=False)


@given(st.lists(st.integers(0, len(GOOD)), max_size=20), st.sampled_from([b"\n", b"\r", b"\r\n"]))
@example([1, 1], b"\r\n")
def test_where_pieces_end_changes_nothing(cuts: list[int], line_end: bytes) -> None:
    data = GOOD.replace(b"\n", line_end)
    places = [0, *sorted(cuts), len(data)]

    assert REPLY == stream(*(data[start:end] for start, end in pairwise(places)))


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"data: ", b"data: {}\n\n", b"\n", GOOD]), max_size=8))
def test_any_bytes_are_a_reply_or_an_error(pieces: list[bytes]) -> None:
    for reader in (StreamReader(None), WholeReader(None)):
        try:
            for piece in pieces:
                reader.feed(piece)
            found: object = reader.finish(lost=False)
        except ReplyError as error:
            found = error
            assert error.__cause__ is None
        assert isinstance(found, ModelReply | ReplyError)


@given(JSON, JSON, JSON)
def test_any_document_is_a_reply_or_an_error(said: object, calls: object, more: object) -> None:
    for document in (
        more,
        {"choices": more},
        chunk(said),
        chunk({"tool_calls": calls}),
        completion(said),
        completion(),
    ):
        for reader, data in (
            (StreamReader(None), events([document])),
            (WholeReader(None), json.dumps(document).encode()),
        ):
            try:
                reader.feed(data)
                found: object = reader.finish(lost=False)
            except ReplyError as error:
                found = error
            assert isinstance(found, ModelReply | ReplyError)


def test_an_unfinished_stream_is_lost_only_if_it_may_be() -> None:
    cut = events([text("a")], done=False)
    for data, lost, failure in (
        (cut, False, FailureClass.INVALID_REPLY),
        (cut, True, FailureClass.CONNECTION),
        (b"", True, FailureClass.CONNECTION),
        (events([text("a")]), True, FailureClass.INVALID_REPLY),
    ):
        with pytest.raises(ReplyError) as caught:
            stream(data, lost=lost)
        assert failure is caught.value.failure


def test_an_event_without_its_empty_line_is_none() -> None:
    with pytest.raises(ReplyError):
        stream(events([chunk(finish="stop")], done=False)[:-1])


def test_the_last_count_is_the_one_that_counts() -> None:
    data = events([chunk({"content": "a"}, usage={"prompt_tokens": 5}), chunk(finish="stop"), usage(9, 1)])

    assert Usage(input_tokens=9, output_tokens=1) == stream(data).usage


@pytest.mark.parametrize("absent", [None, {}, {"prompt_tokens": None}])
def test_absent_counts_are_zero(absent: object) -> None:
    assert Usage() == whole(completion(usage=absent)).usage


@pytest.mark.parametrize("indexes", [(0, 1), (1, 0), (7, -3), (2**70, 0)])
def test_calls_stand_in_the_order_of_their_indexes(indexes: tuple[int, int]) -> None:
    data = events([*(called(i, id=str(i), name="n") for i in indexes), chunk(finish="tool_calls")])

    assert [str(i) for i in sorted(indexes)] == [call.id for call in stream(data).calls]


def test_a_late_id_and_a_split_name_are_put_together() -> None:
    data = events([called(0, name="loo"), called(0, id="c", name="k"), chunk(finish="tool_calls")])

    assert (RawCall(id="c", name="look"),) == stream(data).calls


@pytest.mark.parametrize("name", ["MAX_BODY_BYTES", "MAX_STREAM_BYTES"])
def test_a_bound_is_a_bound(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(openai_reply, name, 500)

    with pytest.raises(ReplyError):
        stream(events([text("x" * 90)] * 6 + [chunk(finish="stop")]))
