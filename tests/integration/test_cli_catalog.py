"""The catalogue from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Regate


@pytest.fixture(scope="module")
def regate(tmp_path_factory: pytest.TempPathFactory) -> Regate:
    made = Regate(tmp_path_factory.mktemp("catalog"))
    made.set_up()
    return made


def test_a_file_is_applied_as_one_version(regate: Regate) -> None:
    """What changed is told; applying it again changes nothing."""
    again = regate.json("catalog", "apply", "catalogue.toml")
    assert ([], [], []) == (again["created"], again["changed"], again["deleted"])
    assert "nothing changed" in regate("catalog", "apply", "catalogue.toml").out


def test_an_export_can_be_applied(regate: Regate) -> None:
    """The export holds the texts; applied, it changes nothing."""
    exported = regate("catalog", "export").out
    assert "marker-of-a-snippet" in exported
    (regate.folder / "exported.toml").write_text(exported)
    assert "nothing changed" in regate("catalog", "apply", "exported.toml", "--prune").out
    kinds = [record["kind"] for record in regate("catalog", "export", "--json").documents]
    assert {"policy", "provider", "configuration", "snippet", "skill"} == set(kinds)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[snippet]]\nidentifier = "x"\nnonsense = 1\n', "line 3"),
        ("[[nonsense]]\n", "line 1"),
        ("x = [\n", "not valid TOML"),
        ('[[configuration]]\nidentifier = "x"\nprovider = "nobody"\nmodel = "m"\n', "provider nobody"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(regate: Regate, tmp_path: Path, text: str, told: str) -> None:
    """Nothing of it is applied."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    error = regate("catalog", "apply", str(file), "--json", code=2).error
    assert "catalogue_refused" == error["code"]
    assert told in error["message"]


def test_records_are_listed_without_texts(regate: Regate) -> None:
    """One object a record with its classes and switches; deleted ones are marked."""
    (regate.folder / "more.toml").write_text('[[snippet]]\nidentifier = "short-lived"\ntext = "marker-of-more"\n')
    regate("catalog", "apply", "more.toml")
    regate("catalog", "delete", "snippet", "short-lived", "--yes")
    done = regate("catalog", "list", "--json")
    found = {(r["kind"], r["identifier"]): r for r in done.documents}
    assert {"kind", "identifier", "uid", "active", "deleted"} <= set(found["snippet", "secret"])
    assert "secret_adjacent" == found["snippet", "secret"]["data_class"]
    assert found["snippet", "short-lived"]["deleted"]
    assert "marker" not in done.out
    page = regate("catalog", "list").out
    assert "short-lived" not in page
    assert "1 deleted record" in page


def test_fields_are_set_and_cleared(regate: Regate) -> None:
    """A value is TOML if it parses, else text; without one the field is cleared; files are read from here."""
    (regate.folder / "new.txt").write_text("marker-of-a-file")
    regate("catalog", "set", "snippet", "secret", "text_file=new.txt", "active=false", "label=A label")
    regate("catalog", "set", "snippet", "secret", "label=")
    exported = regate("catalog", "export").out
    assert "marker-of-a-file" in exported
    assert "active = false" in exported
    assert "A label" not in exported
    regate("catalog", "set", "policy", "data_class_enforcement=observe")
    assert "observe" == regate.json("explain", "-c", "plain")["mode"]
    regate("catalog", "set", "policy", "policy", "data_class_enforcement=enforce")
    regate("catalog", "set", "snippet", "secret", "active=true", "text=marker-of-a-snippet", "label=Secret")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("set", "provider", "unknown", "trust_zone=local"), 3),
        (("set", "nonsense", "x", "a=1"), 2),
        (("set", "snippet", "secret"), 2),
        (("set", "snippet", "secret", "active=maybe"), 2),
        (("set", "snippet", "secret", "active=true", "active=false"), 2),
        (("set", "policy", "data_class_enforcement=sometimes"), 2),
        (("set", "configuration", "plain", "provider="), 2),
        (("delete", "snippet", "unknown", "--yes"), 3),
        (("delete", "snippet", "secret"), 2),
        (("apply", "absent.toml"), 2),
    ],
)
def test_what_cannot_be_is_refused(regate: Regate, arguments: tuple[str, ...], code: int) -> None:
    """A record that is not there is 3, a value that cannot be is 2, and deleting needs a yes."""
    assert regate("catalog", *arguments, "--json", code=code).error["message"]


def test_a_deletion_names_the_runs_that_feel_it(regate: Regate) -> None:
    """Runs that wait and carry the record are listed with it."""
    (regate.folder / "felt.toml").write_text('[[snippet]]\nidentifier = "felt"\ntext = "x"\n')
    regate("catalog", "apply", "felt.toml")
    uuid = regate.waiting("support", "--snippet", "felt")["uuid"]
    deleted = regate.json("catalog", "delete", "snippet", "felt", "--yes")
    assert ([uuid], ["snippet felt"]) == (deleted["runs"], deleted["deleted"])
