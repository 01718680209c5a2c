"""What is written about the product is true: every setting, command, field and option is there, and examples run."""

from __future__ import annotations

import ast
import inspect
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import pytest

from tests.support.command import ROOT, Regate
from worker.adapters.sql.catalogue_fields import KINDS
from worker.cli.main import COMMANDS, regate
from worker.cli.options import flag_of
from worker.ports.tool_decorator import tool
from worker.settings import DEFAULTS

README = (ROOT / "README.md").read_text()
PAGES = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that can be called, by its whole name."""
    context = click.Context(regate)
    for name in COMMANDS:
        found = regate.get_command(context, name)
        assert found is not None
        yield name, found
        if isinstance(found, click.Group):
            for inner, command in found.commands.items():
                yield f"{name} {inner}", command


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_setting_is_documented(name: str) -> None:
    """With its flag, in one row."""
    assert re.search(rf"^\| `{name}` \| `{flag_of(name)}` \|", PAGES["settings.md"], re.MULTILINE)


def test_no_setting_is_documented_that_is_none() -> None:
    """Rows and settings are the same, in the same order."""
    assert list(DEFAULTS) == re.findall(r"^\| `(REGATE_[A-Z_]+)`", PAGES["settings.md"], re.MULTILINE)


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_is_documented(name: str, command: click.Command) -> None:
    """In the README's table; and it tells what it does, as does each of its options that is not hidden."""
    told = README.partition("## Commands")[2].partition("## More")[0]
    assert all(re.search(rf"[`|\\ ]{word}[`|\\ ]", told) for word in name.split())
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, (name, parameter.name)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_tells_of_real_ones(name: str) -> None:
    """Each is where it is said to be, under that name."""
    module = import_module(f"worker.cli.commands.{COMMANDS[name][0]}")
    assert name in module.__all__
    assert name == getattr(module, name).name


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_the_catalogue_is_documented(kind: str) -> None:
    """Under the head of its kind."""
    head = "`[policy]`" if kind == "policy" else f"`[[{kind}]]`"
    told = PAGES["catalogue.md"].partition("## Records")[2].partition(head)[2].partition("`[[")[0]
    assert told
    for field in KINDS[kind].fields:
        assert f"`{field}`" in told, field


@pytest.mark.parametrize("option", inspect.signature(tool).parameters)
def test_every_option_of_a_tool_is_documented(option: str) -> None:
    """In the table."""
    assert re.search(rf"^\|.*`{option}`", PAGES["tools.md"], re.MULTILINE)


LOGGING: Final = frozenset({"log", "_log", "_write", "warning", "info"})
EVENT: Final = re.compile(r"[a-z]+\.[a-z_]+")


def logged() -> set[str]:
    """Give the names of all events that are logged anywhere in the product."""
    found: set[str] = set()
    for path in (ROOT / "worker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and _called(node) in LOGGING:
                words = (part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))
                found |= {word for word in words if isinstance(word, str) and EVENT.fullmatch(word)}
    return found


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def test_every_event_of_the_log_is_documented() -> None:
    page = (ROOT / "docs" / "log.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_.]+)`", page, re.MULTILINE))
    assert len(documented) > 30
    assert logged() == documented


def test_links_lead_somewhere() -> None:
    """Every relative link of README and pages is a file."""
    for folder, text in ((ROOT, README), *((ROOT / "docs", page) for page in PAGES.values())):
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (folder / target).exists(), target


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_first_run_of_the_readme_runs(tmp_path: Path) -> None:
    """Its two files, its commands and its program, as they stand there."""
    regate = Regate(tmp_path)
    for block in blocks(README, "toml"):
        name = re.match(r"# (\S+)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    regate("catalog", "apply", "catalogue.toml")
    assert "Order 7 is on its way." in regate("run", "-c", "support", "Where is order 7?").out
    (program,) = blocks(README, "python")
    assert len(program.splitlines()) <= 20
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=regate.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    stored, answer = done.stdout.splitlines()
    assert "completed" == regate.json("show", stored.removeprefix("stored as "))["status"]
    assert "Order 7 is on its way." == answer


def test_the_program_of_the_page_on_transactions_runs(tmp_path: Path) -> None:
    """On the README's catalogue: its order and the run are there."""
    regate = Regate(tmp_path)
    for block in blocks(README, "toml"):
        (tmp_path / block.split()[1]).write_text(block)
    regate("catalog", "apply", "catalogue.toml")
    (program,) = blocks(PAGES["enqueue.md"], "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=regate.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    with closing(sqlite3.connect(tmp_path / ".regate" / "regate.db")) as database:
        ordered, runs = (database.execute(f"SELECT {what}").fetchall() for what in ("run FROM orders", "uuid FROM run"))
        assert ordered == runs
    assert ["queued"] == [run["status"] for run in regate("runs", "--json").documents]


def test_the_tool_of_the_page_can_be_loaded(tmp_path: Path) -> None:
    """As a module of the current folder."""
    (program,) = blocks(PAGES["tools.md"], "python")
    (tmp_path / "shop.py").write_text(program)
    regate = Regate(tmp_path, REGATE_TOOLS="shop")
    found = {line["name"]: line for line in regate("tools", "--json").documents}
    assert found["order_article"]["gated"]
    assert {"http_get", "post_json", "ask_person", "order_article"} == set(found)
    assert "read_file" in [t["name"] for t in regate("tools", "--json", "--files-root", ".").documents]
