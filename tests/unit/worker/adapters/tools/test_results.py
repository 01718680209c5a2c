import pytest

from codec.errors import CodecError
from worker.adapters.tools.results import MAX_RESULT_BYTES, bounded_text, preview_lines, result_text
from worker.ports.toolbox import ToolResult

MARKER = "\n[cut: the result is longer than 50000 bytes]"


def test_each_kind_of_result_becomes_text() -> None:
    assert "" == result_text(None)
    assert "" == result_text("")
    assert "plain" == result_text("plain")
    assert "wrapped" == result_text(ToolResult("wrapped"))
    assert '{"a":[1,"ä",null]}' == result_text({"a": (1, "ä", None)})


@pytest.mark.parametrize(
    "value", [7, True, 1.5, b"bytes", ["list"], object(), {1: "key"}, {"a": {2}}, {"a": float("nan")}]
)
def test_any_other_result_is_refused(value: object) -> None:
    with pytest.raises(CodecError):
        result_text(value)


def test_a_wrapped_value_that_is_no_text_is_refused() -> None:
    wrong: object = ["no text"]

    with pytest.raises(CodecError):
        result_text(ToolResult(wrong))  # type: ignore[arg-type]


def test_a_dict_that_holds_itself_is_refused() -> None:
    value: dict[str, object] = {}
    value["self"] = value

    with pytest.raises(CodecError):
        result_text(value)


def test_exactly_the_bound_stays_whole() -> None:
    whole = "a" * MAX_RESULT_BYTES

    assert whole == bounded_text(whole)
    assert "ä" * (MAX_RESULT_BYTES // 2) == bounded_text("ä" * (MAX_RESULT_BYTES // 2))


@pytest.mark.parametrize("text", ["a" * (MAX_RESULT_BYTES + 1), "ä" * 30_000, "a" + "😀" * 20_000, "x" * 10_000_000])
def test_a_longer_text_is_cut_between_characters_with_a_marker(text: str) -> None:
    found = bounded_text(text)

    assert found.endswith(MARKER)
    assert text.startswith(found.removesuffix(MARKER))
    assert MAX_RESULT_BYTES - 4 < len(found.encode()) <= MAX_RESULT_BYTES


def test_text_is_cleaned() -> None:
    assert "a\ufffdb\ufffd" == bounded_text("a\x00b\ud800")
    assert "😀" == bounded_text("\ud83d\ude00")


@pytest.mark.parametrize("text", ["\x00" * MAX_RESULT_BYTES, "a" * MAX_RESULT_BYTES + "\ud83d\ude00"])
def test_cleaning_does_not_lead_over_the_bound(text: str) -> None:
    found = bounded_text(text)

    assert found.endswith(MARKER)
    assert len(found.encode()) <= MAX_RESULT_BYTES


# --- Lines of a preview -------------------------------------------------------------------------------------


def test_white_space_is_collapsed_and_empty_lines_are_left_out() -> None:
    assert ("a b", "c") == preview_lines(["  a \t\n b ", "", "   ", "c"])


def test_only_text_makes_lines() -> None:
    assert ("a",) == preview_lines(("a", 7, None, b"b", ["c"]))


@pytest.mark.parametrize("value", [None, 7, {"a": 1}, [], [""], object()])
def test_nothing_to_show_gives_no_lines(value: object) -> None:
    assert () == preview_lines(value)


def test_a_text_is_split() -> None:
    assert ("a", "b") == preview_lines("a\n\nb")


def test_a_line_has_500_characters_at_most() -> None:
    (whole,) = preview_lines(["a" * 500])
    (cut,) = preview_lines(["a" * 501])

    assert "a" * 500 == whole
    assert "a" * 499 + "…" == cut


def test_more_than_20_lines_are_counted() -> None:
    lines = [str(number) for number in range(25)]

    assert tuple(lines[:20]) == preview_lines(lines[:20])
    assert (*lines[:20], "5 more") == preview_lines(lines)


def test_what_acts_on_a_terminal_is_not_shown() -> None:
    assert ("[31mred", "txt.exe") == preview_lines(["\x1b[31mred\x07", "\u202etxt.exe"])
