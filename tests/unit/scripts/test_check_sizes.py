from pathlib import Path

import pytest

from scripts.check_sizes import Offender, main, offenders


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def function(lines: int, *, name: str = "f", docstring_lines: int = 0, prefix: str = "") -> str:
    """Make a function of `lines` lines and, beside these, a docstring of `docstring_lines`."""
    docstring = ['    """Say it.', *["    more"] * (docstring_lines - 2), '    """'] if docstring_lines else []
    return "\n".join([f"{prefix}def {name}():", *docstring, *["    pass"] * (lines - 1)]) + "\n"


def lines(root: Path) -> list[str]:
    return [str(offender) for offender in offenders(root)]


def test_an_empty_tree_is_fine(tmp_path: Path) -> None:
    assert [] == lines(tmp_path)


@pytest.mark.parametrize("package", ["codec", "worker"])
def test_a_module_may_have_400_lines(tmp_path: Path, package: str) -> None:
    write(tmp_path, f"{package}/fits.py", "x = 1\n" * 400)
    write(tmp_path, f"{package}/long.py", "x = 1\n" * 401)
    assert [f"{package}/long.py:1: module has 401 lines, the limit is 400"] == lines(tmp_path)


def test_a_test_module_may_have_any_length(tmp_path: Path) -> None:
    write(tmp_path, "tests/test_long.py", "x = 1\n" * 1000)
    assert [] == lines(tmp_path)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("codec/a.py", 40),
        ("worker/core/a.py", 40),
        ("tests/unit/a.py", 60),
        ("scripts/a.py", 60),
        ("bootstrap.py", 60),
    ],
)
def test_a_function_may_have_as_many_lines_as_its_place_allows(tmp_path: Path, name: str, limit: int) -> None:
    write(tmp_path, name, function(limit) + function(limit + 1, name="g"))
    expected = f"{name}:{limit + 1}: function g has {limit + 1} lines, the limit is {limit}"
    assert [expected] == lines(tmp_path)


def test_a_docstring_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "codec/a.py", function(40, docstring_lines=30))
    assert [] == lines(tmp_path)


def test_async_functions_methods_and_nested_functions_count(tmp_path: Path) -> None:
    method = "".join(f"    {line}\n" for line in function(41, name="method").splitlines())
    write(tmp_path, "codec/a.py", function(41, name="g", prefix="async ") + "class A:\n" + method)
    assert [1, 43] == [offender.line for offender in offenders(tmp_path)]


def test_decorators_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "codec/a.py", "@staticmethod\n" * 5 + function(40))
    assert [] == lines(tmp_path)


def test_migration_scripts_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "worker/adapters/sql/migrations/versions/0001.py", function(500))
    write(tmp_path, "worker/versions/a.py", function(41))
    assert ["worker/versions/a.py"] == [offender.path for offender in offenders(tmp_path)]


def test_a_file_that_does_not_parse_is_named(tmp_path: Path) -> None:
    write(tmp_path, "codec/a.py", "x = 1\ndef (\n")
    assert [Offender(path="codec/a.py", line=2, problem="does not parse")] == offenders(tmp_path)


def test_the_script_prints_a_line_an_offender_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "codec/a.py", function(41))
    assert 1 == main([str(tmp_path)])
    assert "codec/a.py:1: function f has 41 lines, the limit is 40\n" == capsys.readouterr().out


def test_the_script_is_silent_and_exits_0_when_all_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "codec/a.py", function(40))
    assert 0 == main([str(tmp_path)])
    assert "" == capsys.readouterr().out
