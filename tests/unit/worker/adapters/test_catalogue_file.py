"""The catalogue as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.adapters.catalogue_file import parse_assignment, read_catalogue, resolve_files, write_catalogue
from worker.ports.catalogue import CatalogueError, RecordSpec

MARKER = "xyzzy-plugh-4711"
Write = Callable[[str | bytes], Path]

FULL = '''\
# Everything that a file can hold.
[policy]
data_class_enforcement = "Observe "

[[provider]]
identifier = "house"
kind = "openai"
base_url = "http://127.0.0.1:8080/v1"
api_key_env = "REGATE_KEY_HOUSE"
trust_zone = "local"
max_concurrency = 64
requests_per_minute = 600

[[provider]]
identifier = "stand-in"
kind = "scripted"
script = "scripts/../script.toml"

[[configuration]]
identifier = "support"
provider = "house"
model = "some-model"
system_prompt = """
[[snippet]]
identifier = "no"
"""
system_prompt_data_class = "editor_content"
snippets = ["tone"]
fallbacks = [" Support-EU "]

[[snippet]]
identifier = "tone"
label = "Tone"
text_file = "texts/tone.md"
active = false

[[skill]]
identifier = "refunds"
name = "Refund rules"
body = "Pay\\u0000 back."
allowed_tools = ["lookup_order"]

[[tool]]
name = "post_json"
enabled = false

[[egress]]
host = "Tickets.Example"
trust_zone = "private_hosted"
'''


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a catalogue file beside a text and give its path."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "tone.md").write_bytes(b"Be kind.\r\n\xc3\xa4\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    def write_file(text: str | bytes) -> Path:
        path = tmp_path / "catalogue.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def test_a_file_gives_its_records_in_their_order(write: Write, tmp_path: Path) -> None:
    """Values in their normal form, files relative to it, each record with the line of its header."""
    found = read_catalogue(write(FULL))

    assert [
        ("policy", "policy", 2),
        ("provider", "house", 5),
        ("provider", "stand-in", 14),
        ("configuration", "support", 19),
        ("snippet", "tone", 31),
        ("skill", "refunds", 37),
        ("tool", "post_json", 43),
        ("egress", "tickets.example", 47),
    ] == [(spec.kind, spec.identifier, spec.line) for spec in found]
    assert {"data_class_enforcement": "observe"} == found[0].fields
    assert {"kind": "scripted", "script": str(tmp_path / "script.toml")} == found[2].fields
    assert '[[snippet]]\nidentifier = "no"\n' == found[3].fields["system_prompt"]
    assert ("support-eu",) == found[3].fields["fallbacks"]
    assert {"label": "Tone", "text": "Be kind.\r\nä\n", "active": False} == found[4].fields
    assert "Pay\ufffd back." == found[5].fields["body"]
    assert {"enabled": False} == found[6].fields


def test_records_may_be_written_inline(write: Write) -> None:
    """An array of inline tables is the same to TOML."""
    found = read_catalogue(write('tool = [{ name = "a" },\n  { name = "b", enabled = false }]\n'))

    assert [("a", 1, {}), ("b", 2, {"enabled": False})] == [(s.identifier, s.line, s.fields) for s in found]


def test_an_empty_file_has_no_records(write: Write) -> None:
    """It is not an error; a byte order mark is no content."""
    assert [] == read_catalogue(write(b"\xef\xbb\xbf# nothing\n"))


def test_a_relative_path_is_made_absolute(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the file's folder, not by the process's."""
    write('[[provider]]\nidentifier = "p"\nkind = "scripted"\nscript = "s.toml"\n')
    monkeypatch.chdir(tmp_path.parent)

    (spec,) = read_catalogue(Path(tmp_path.name) / "catalogue.toml")

    assert str(tmp_path / "s.toml") == spec.fields["script"]


BAD = [
    ('[[provider]]\nidentifier = "a"\ncolour = "red"\n', 3, 'provider a: there is no field "colour"'),
    ("x = 1\n", 1, 'there is no kind "x"'),
    ("\n[[providers]]\n", 2, 'there is no kind "providers"'),
    ("[model]\n", 1, 'there is no kind "model"'),
    (f'["{MARKER} is long {MARKER}"]\n', 1, "there is no kind"),
    ('[provider]\nidentifier = "a"\n', 1, "write [[provider]]"),
    ("\n[[policy]]\n", 2, "write [policy]"),
    ("snippet = [1]\n", 1, "write [[snippet]]"),
    ('[[snippet]]\nlabel = "a"\n', 1, "snippet: identifier is missing"),
    ("[[tool]]\nenabled = true\n", 1, "tool: name is missing"),
    ('[[egress]]\nidentifier = "h"\n', 1, "egress: host is missing"),
    ('[policy]\nidentifier = "policy"\n', 2, 'policy: there is no field "identifier"'),
    ('[[snippet]]\ntext = "x"\nidentifier = "A"\n', 3, 'snippet "A": identifier must be 1 to 64 of a-z, 0-9, _ and -'),
    ("[[snippet]]\nidentifier = 7\n", 2, "snippet: identifier must be 1 to 64 of a-z, 0-9, _ and -"),
    (
        f'[[snippet]]\nidentifier = "a"\ntext = """\n\n{MARKER}\n"""\ndata_class = "secret"\n',
        7,
        "snippet a: data_class must be one of public_content, editor_content, source_code, internal_configuration, "
        "system_diagnostics, secret_adjacent",
    ),
    (
        "[[configuration]]\nidentifier = 'a'\nsystem_prompt = '''\n[[x]] = \"\"\"\n'''\nsnippets = [\n 'b',\n]\n"
        "max_iterations = 201\n",
        9,
        "configuration a: max_iterations must be a whole number from 1 to 200",
    ),
    (
        "[[configuration]]\nidentifier = 'a'\nskills = [\n 'b',\n 'B',\n]\n",
        3,
        "configuration a: skills has an entry that must be 1 to 64 of a-z, 0-9, _ and -",
    ),
    (
        '[[provider]]\nidentifier = "a"\nkind = "openai"\n\ntrust_zone = "mars"\n',
        5,
        "provider a: trust_zone must be one of",
    ),
    (
        '[policy]\n\ndata_class_enforcement = "observ"\n',
        3,
        "policy: data_class_enforcement must be one of observe, enforce",
    ),
    (
        f'[[provider]]\nidentifier = "a"\napi_key_env = "{MARKER}"\n',
        3,
        "provider a: api_key_env must be the name of a variable",
    ),
    (
        '[[snippet]]\nidentifier = "a"\ntext = "x"\ntext_file = "y"\n',
        4,
        "snippet: text and text_file exclude each other",
    ),
    ('[[snippet]]\nidentifier = "a"\ntext_file = "missing"\n', 3, "text_file cannot be read (FileNotFoundError)"),
    ('[[snippet]]\nidentifier = "a"\ntext_file = "texts"\n', 3, "text_file cannot be read (IsADirectoryError)"),
    ('[[snippet]]\nidentifier = "a"\ntext_file = "a\\u0000b"\n', 3, "text_file cannot be read (ValueError)"),
    ('[[snippet]]\nidentifier = "a"\ntext_file = "binary"\n', 3, "text_file is not UTF-8"),
    ('[[snippet]]\nidentifier = "a"\ntext_file = 5\n', 3, "text_file must be the path of a file"),
    ('[[provider]]\nidentifier = "a"\nscript = ""\n', 3, "provider a: script must be an absolute path"),
    ('[[provider]]\nidentifier = "a"\nscript_file = "x"\n', 3, 'provider a: there is no field "script_file"'),
    (
        '[[snippet]]\nidentifier = "a"\n\n[[skill]]\nidentifier = "a"\n\n[[snippet]]\nidentifier = "a"\n',
        7,
        "snippet a: is named twice",
    ),
    ('[[egress]]\nhost = "H.example"\n[[egress]]\nhost = "h.EXAMPLE"\n', 3, "egress h.example: is named twice"),
    ('[[snippet]]\nidentifier = "a"\n[snippet.sub]\nx = 1\n', 3, 'snippet a: there is no field "sub"'),
    ('[[snippet]]\nidentifier = "a"\ntext.x = 1\n', 3, "snippet a: text must be text (in quotes)"),
    (
        'snippet = [\n{ identifier = "a" },\n{ identifier = "b", active = 1 } ]',
        3,
        "snippet b: active must be true or false",
    ),
]


@pytest.mark.parametrize(("text", "line", "problem"), BAD)
def test_a_fault_has_its_line_and_shows_no_value(write: Write, text: str, line: int, problem: str) -> None:
    """The line of the key, or of the record where a key is missing."""
    with pytest.raises(CatalogueError) as refused:
        read_catalogue(write(text))

    assert line == refused.value.line
    assert refused.value.problem.startswith(problem)
    assert f"line {line}: {refused.value.problem}" == str(refused.value)
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("[[snippet]]\nidentifier 'a'\n", 2, "is not valid TOML: Expected '=' after a key in a key/value pair"),
        (f'[[snippet]]\n\ntext = "{MARKER}\n"\n', 3, "is not valid TOML"),
        ('[[snippet]]\ntext = """\nnever closed\n', 4, "is not valid TOML: Unterminated string"),
        (f"[[snippet]]\ntext = {MARKER}\n", 2, "is not valid TOML: Invalid value"),
        (f'a = {{ "{MARKER}" = 1, "{MARKER}" = 2 }}', 1, "is not valid TOML"),
        (b"[[snippet]]\n\n# \xff\n", 3, "the file is not UTF-8"),
        ("a = " + "[" * 100_000, None, "the file is nested too deep"),
    ],
)
def test_a_file_that_cannot_be_parsed(write: Write, text: str | bytes, line: int | None, problem: str) -> None:
    """The parser's line; of its words only those that quote nothing longer than a character."""
    with pytest.raises(CatalogueError) as refused:
        read_catalogue(write(text))

    assert (line, problem) == (refused.value.line, refused.value.problem)
    assert MARKER not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It is no missing record: the command was wrong."""
    with pytest.raises(CatalogueError, match=r"^the file cannot be read \(FileNotFoundError\)$") as refused:
        read_catalogue(tmp_path / "catalogue.toml")

    assert not refused.value.missing


@pytest.mark.parametrize("size", [4 * 1024 * 1024, 4 * 1024 * 1024 + 1])
def test_a_text_has_the_bound_of_all_texts(write: Write, tmp_path: Path, size: int) -> None:
    """In a file of its own as well; the whole file may be larger than one text."""
    (tmp_path / "long").write_text("x" * size)
    path = write('[[snippet]]\nidentifier = "a"\ntext_file = "long"\n')

    if size % 2 == 0:
        assert size == len(read_catalogue(path)[0].fields["text"])
        return
    with pytest.raises(CatalogueError, match="line 3: text_file is longer than 4194304 bytes"):
        read_catalogue(path)


def test_what_is_written_is_read_back(write: Write) -> None:
    """The same records; long texts stay good to read."""
    specs = read_catalogue(write(FULL))
    written = write_catalogue(specs)

    again = read_catalogue(write(written))

    assert [(s.kind, s.identifier, s.fields) for s in specs] == [(s.kind, s.identifier, s.fields) for s in again]
    assert 'system_prompt = """\n[[snippet]]\n' in written
    assert written.startswith('[policy]\ndata_class_enforcement = "observe"\n\n[[provider]]\nidentifier = "house"\n')
    assert written == write_catalogue(again)


def test_an_empty_field_is_not_written() -> None:
    """TOML has no null; left out means the default."""
    spec = RecordSpec(kind="snippet", identifier="a", fields={"text": "x", "data_class": None})

    assert '[[snippet]]\nidentifier = "a"\ntext = "x"\n' == write_catalogue([spec])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=3))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Line ends, quotes, backslashes and control characters included."""
    path = tmp_path_factory.mktemp("any") / "catalogue.toml"
    specs = [RecordSpec(kind="skill", identifier=f"s{n}", fields={"body": text}) for n, text in enumerate(texts)]
    path.write_bytes(write_catalogue(specs).encode())

    assert texts == [spec.fields["body"] for spec in read_catalogue(path)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("active=false", ("active", False)),
        (" active = false", ("active", False)),
        ("max_iterations=7", ("max_iterations", 7)),
        ('snippets=["a", "b"]', ("snippets", ["a", "b"])),
        ('label="7"', ("label", "7")),
        ("label=7 o'clock", ("label", "7 o'clock")),
        ("data_class=secret_adjacent", ("data_class", "secret_adjacent")),
        ("base_url=http://h/v1?a=b", ("base_url", "http://h/v1?a=b")),
        ("text=first\nsecond", ("text", "first\nsecond")),
        ("text=1\nother = 2", ("text", "1\nother = 2")),
        ("text='''a\nb'''", ("text", "a\nb")),
        ("text=[", ("text", "[")),
        ("text=" + "[" * 100_000, ("text", "[" * 100_000)),
        ("text=a\x00\ud800", ("text", "a\ufffd\ufffd")),
        ("text= ", ("text", " ")),
        ('text=""', ("text", "")),
        ("data_class=", ("data_class", None)),
        ("table={a = 1}", ("table", {"a": 1})),
    ],
)
def test_an_assignment_is_toml_if_it_parses_else_text(text: str, expected: tuple[str, Any]) -> None:
    """Nothing behind the sign clears the field."""
    assert expected == parse_assignment(text)


@pytest.mark.parametrize("text", ["", "field", "=value", "  =value"])
def test_an_assignment_needs_a_field(text: str) -> None:
    """And the sign."""
    with pytest.raises(CatalogueError, match="write field=value"):
        parse_assignment(text)


def test_files_of_an_assignment_are_found_too(write: Write, tmp_path: Path) -> None:
    """So that `set` can do what a file can."""
    write("")

    assert {"script": str(tmp_path / "s.toml"), "kind": 5} == resolve_files(
        "provider", {"script": "s.toml", "kind": 5}, tmp_path
    )
    assert {"text": "Be kind.\r\nä\n"} == resolve_files("snippet", {"text_file": "texts/tone.md"}, tmp_path)
    assert {"script": None} == resolve_files("provider", {"script": None}, tmp_path)
    with pytest.raises(CatalogueError, match="there is no kind"):
        resolve_files("user", {}, tmp_path)
