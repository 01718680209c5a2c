import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from codec.facts import ToolFacts
from codec.vocabulary import DeclaredClass, ToolEffect, TrustZone
from worker.adapters.tools.builtin import builtin_tools, read_below
from worker.adapters.tools.toolbox import PythonToolbox
from worker.ports.toolbox import ToolCallInfo

ABSENT = "There is no such file."
OUTSIDE = "Refused: the path leads out of the folder."
NO_FILE = "Refused: this is no regular file."
INFO = ToolCallInfo(run="run-1", call_id="c1", key="key-1", actor="ada")


async def no_egress() -> Mapping[str, TrustZone]:
    return {}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    (root / "a.txt").write_text("content ä", encoding="utf-8")
    (root / "below" / "b.txt").write_text("deeper", encoding="utf-8")
    (tmp_path / "outside.txt").write_text("outside", encoding="utf-8")
    return root


def facts_of(root: Path | None) -> dict[str, ToolFacts]:
    return {one.facts.name: one.facts for one in builtin_tools(files_root=root, egress=no_egress)}


def test_read_file_is_there_only_with_a_folder(root: Path) -> None:
    assert "read_file" not in facts_of(None)
    assert DeclaredClass.SECRET_ADJACENT is facts_of(root)["read_file"].data_class
    assert ToolEffect.READ_ONLY is facts_of(root)["read_file"].effect


def test_the_others_are_declared_as_what_they_are() -> None:
    found = facts_of(None)

    assert (ToolEffect.READ_ONLY, "host") == (found["http_get"].effect, found["http_get"].egress)
    assert (ToolEffect.NON_IDEMPOTENT_WRITE, "host") == (found["post_json"].effect, found["post_json"].egress)
    assert found["post_json"].preview
    assert ToolEffect.READ_ONLY is found["ask_person"].effect
    assert ["answer"] == list(json.loads(found["ask_person"].input_schema or "{}")["properties"])
    assert ["question"] == list(json.loads(found["ask_person"].parameters)["properties"])


async def test_a_persons_answer_is_the_result() -> None:
    toolbox = PythonToolbox([], files_root=None, egress=no_egress)

    assert "Blue." == await toolbox.call("ask_person", '{"question": "Which?", "answer": "Blue."}', INFO, 1000)


async def test_files_are_read_through_the_toolbox(root: Path) -> None:
    (root / "long.txt").write_bytes(b"x" * 200_000)
    toolbox = PythonToolbox([], files_root=root, egress=no_egress)

    assert "content ä" == await toolbox.call("read_file", '{"path": "a.txt"}', INFO, 10_000)
    long = await toolbox.call("read_file", '{"path": "long.txt"}', INFO, 10_000)
    assert 50_000 == len(long.encode())
    assert long.endswith("bytes]")


@pytest.mark.parametrize(
    ("path", "text"), [("a.txt", "content ä"), ("below/b.txt", "deeper"), ("./below//b.txt", "deeper")]
)
def test_a_file_below_the_folder_is_read(root: Path, path: str, text: str) -> None:
    assert text == read_below(root, path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../outside.txt", OUTSIDE),
        ("below/../a.txt", OUTSIDE),
        ("below/../../outside.txt", OUTSIDE),
        ("..", OUTSIDE),
        ("/etc/hostname", OUTSIDE),
        ("a.txt\x00.png", OUTSIDE),
        ("absent.txt", ABSENT),
        ("a.txt/b", ABSENT),
        ("x" * 5000, ABSENT),
        ("", NO_FILE),
        (".", NO_FILE),
        ("below", NO_FILE),
    ],
)
def test_anything_else_is_not(root: Path, path: str, said: str) -> None:
    assert said == read_below(root, path)


def test_an_absolute_path_into_the_folder_is_refused_too(root: Path) -> None:
    assert OUTSIDE == read_below(root, str(root / "a.txt"))


def test_links_are_followed_only_inside(root: Path) -> None:
    (root / "inner").symlink_to("below/b.txt")
    (root / "inner_folder").symlink_to("below")
    (root / "out").symlink_to(root.parent / "outside.txt")
    (root / "out_folder").symlink_to(root.parent)
    (root / "circle").symlink_to("circle")

    assert "deeper" == read_below(root, "inner")
    assert "deeper" == read_below(root, "inner_folder/b.txt")
    assert OUTSIDE == read_below(root, "out")
    assert OUTSIDE == read_below(root, "out_folder/outside.txt")
    assert OUTSIDE == read_below(root, "out_folder/absent.txt")
    assert ABSENT == read_below(root, "circle")


def test_a_folder_that_is_a_link_itself_is_fine(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)

    assert "content ä" == read_below(link, "a.txt")


def test_a_folder_that_is_not_there_has_no_files(root: Path) -> None:
    assert ABSENT == read_below(root / "absent", "a.txt")


@pytest.mark.parametrize("place", ["below", "below/b.txt"])
def test_a_link_put_there_after_the_check_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (root.parent / "b.txt").write_text("outside", encoding="utf-8")
    resolve: Callable[..., Path] = Path.resolve

    def late(self: Path, strict: bool = False) -> Path:
        found = resolve(self, strict)
        if self.name == "b.txt":
            (root / place).rename(root / "moved")
            (root / place).symlink_to(root.parent if place == "below" else root.parent / "b.txt")
        return found

    monkeypatch.setattr(Path, "resolve", late)

    assert ABSENT == read_below(root, "below/b.txt")


def test_a_pipe_does_not_hold_the_thread(root: Path) -> None:
    os.mkfifo(root / "pipe")

    assert NO_FILE == read_below(root, "pipe")


def test_what_is_no_utf8_is_replaced(root: Path) -> None:
    (root / "latin").write_bytes(b"caf\xe9")

    assert "caf\ufffd" == read_below(root, "latin")


def test_no_more_is_read_than_can_be_shown(root: Path) -> None:
    (root / "long").write_bytes(b"x" * 10_000_000)

    assert 50_001 == len(read_below(root, "long"))
