"""What is in deploy/ and the runbooks fits the product: settings, times, commands, versions."""

from __future__ import annotations

import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from codec.journal import ENTRY_VERSION
from codec.suspended import STATE_VERSION
from codec.vocabulary import FINAL_STATUSES, RunStatus
from worker.cli.main import regate
from worker.cli.options import flag_of
from worker.runtime.host import Host
from worker.settings import DEFAULTS, PROVIDER_KEY_PREFIX, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOKS = ROOT / "docs" / "runbooks"
PAGES = [DEPLOY / "README.md", *sorted(RUNBOOKS.glob("*.md"))]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
STAYING = [unit for unit in UNITS if "Type=notify" in unit.read_text()]
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: dict[str, Any] = {
    manifest["kind"]: manifest
    for path in (DEPLOY / "kubernetes").glob("*.yaml")
    for manifest in yaml.safe_load_all(path.read_text())
}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(WORKER,) = POD["containers"]
PROCESSES = ("worker", "sweeper")
FRESH_S = 15
"""Seconds within which a probe wants a beat."""


def seconds(text: str) -> float:
    """Read a length of systemd or compose."""
    number, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"s": 1, "min": 60}[unit]


def values(unit: Path, key: str) -> list[str]:
    """All values that a unit gives to a key, in their order."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


# --- Settings -----------------------------------------------------------------------------------------------


def test_the_sample_environment_has_every_setting_with_its_default() -> None:
    """In the order of the documentation; nothing in it changes anything until somebody takes a # away."""
    lines = (DEPLOY / "regate.env.example").read_text().splitlines()
    found = dict(line.removeprefix("#").split("=", 1) for line in lines if re.match(r"#?[A-Z_]+=", line))
    provider = [name for name in found if name.startswith(PROVIDER_KEY_PREFIX)]
    assert len(provider) == 1
    del found[provider[0]]
    assert list(DEFAULTS.items()) == list(found.items())
    assert all(line == "" or line.startswith("#") for line in lines)


def test_each_setting_of_the_sample_is_explained() -> None:
    """By the comment above it."""
    parts = (DEPLOY / "regate.env.example").read_text().strip().split("\n\n")[1:]
    assert all(re.fullmatch(r"(# [^\n]+\n)+#REGATE_\w+=\S*", part) for part in parts)


def given() -> Iterator[tuple[str, str, str]]:
    """Every setting that is given anywhere: where, name, value."""
    for name in PROCESSES:
        for key, value in COMPOSE["services"][name]["environment"].items():
            yield f"compose {name}", key, value
    for unit in UNITS:
        for line in values(unit, "Environment"):
            for assignment in line.split():
                key, _, value = assignment.partition("=")
                yield unit.name, key, value
    for key, value in MANIFESTS["ConfigMap"]["data"].items():
        yield "ConfigMap", key, value
    for key, value in re.findall(r"\b(REGATE_\w+)=([^\s\\]+)", (DEPLOY / "Dockerfile").read_text()):
        yield "Dockerfile", key, value


@pytest.mark.parametrize(("where", "name", "value"), [g for g in given() if g[1].startswith("REGATE_")])
def test_what_is_set_is_a_setting_and_can_be_used(where: str, name: str, value: str) -> None:
    """Passwords of the operator's aside."""
    Settings.load({name: re.sub(r"\$\{[^}]*\}", "secret", value)}, None, {})
    assert name in DEFAULTS


# --- Times --------------------------------------------------------------------------------------------------


def patience() -> Iterator[tuple[str, float]]:
    """How long each supervisor waits before it kills a worker that it asked to end."""
    yield "compose", seconds(COMPOSE["services"]["worker"]["stop_grace_period"])
    yield "kubernetes", float(POD["terminationGracePeriodSeconds"])
    for unit in STAYING:
        (limit,) = values(unit, "TimeoutStopSec")
        yield unit.name, seconds(limit)


@pytest.mark.parametrize(("where", "grace_s"), list(patience()))
def test_nobody_is_killed_before_it_could_drain(where: str, grace_s: float) -> None:
    """The runs' time, a lease for what does not end when it is told to, and some for the last commits."""
    drain_s = inspect.signature(Host.drain).parameters["timeout_s"].default
    assert grace_s >= drain_s + float(DEFAULTS["REGATE_LEASE_SECONDS"]) + 10


def silence() -> Iterator[tuple[str, float]]:
    """How long a loop must be silent at least before it is ended."""
    probe = WORKER["livenessProbe"]
    yield "kubernetes", FRESH_S + probe["periodSeconds"] * (probe["failureThreshold"] - 1)
    for unit in STAYING:
        (limit,) = values(unit, "WatchdogSec")
        yield unit.name, seconds(limit)


@pytest.mark.parametrize(("where", "silent_s"), list(silence()))
def test_nobody_is_ended_for_silence_before_its_leases_have_ended(where: str, silent_s: float) -> None:
    """Before that, it may still come back to runs that are its own."""
    assert silent_s > float(DEFAULTS["REGATE_LEASE_SECONDS"])


def probes() -> Iterator[tuple[str, str, str]]:
    """Every probe: where, its shell line, the file that the process was told to renew."""
    for name in PROCESSES:
        service = COMPOSE["services"][name]
        (_, line) = service["healthcheck"]["test"]
        yield f"compose {name}", line.replace("$$", "$"), service["environment"]["REGATE_BEAT_FILE"]
    for kind in ("startupProbe", "livenessProbe"):
        (_, _, line) = WORKER[kind]["exec"]["command"]
        yield kind, line, MANIFESTS["ConfigMap"]["data"]["REGATE_BEAT_FILE"]


@pytest.mark.parametrize(("where", "line", "file"), list(probes()))
def test_probes_ask_for_a_fresh_beat(where: str, line: str, file: str) -> None:
    """Of the file that is renewed, with the seconds that everything here reckons with."""
    assert f"test -n \"$(find {file} -newermt '-{FRESH_S} seconds')\"" == line


def test_units_that_stay_tell_systemd_of_themselves() -> None:
    """Worker and sweeper; their cores would hold content."""
    assert {"regate-worker@.service", "regate-sweeper.service"} == {unit.name for unit in STAYING}
    assert all(["0"] == values(unit, "LimitCORE") for unit in UNITS)


# --- Commands -----------------------------------------------------------------------------------------------


def called() -> Iterator[tuple[str, list[str]]]:
    """Every call of the command line: where, its words after `regate`."""
    for line in (ROOT / "Procfile").read_text().splitlines():
        yield "Procfile", shlex.split(line.partition(": ")[2])[1:]
    for unit in UNITS:
        (line,) = values(unit, "ExecStart")
        yield unit.name, shlex.split(line)[1:]
    for name in (*PROCESSES, "migrate"):
        yield f"compose {name}", COMPOSE["services"][name]["command"]
    yield "Deployment", WORKER["args"]
    yield "Job", MANIFESTS["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    for page in PAGES:
        text = page.read_text()
        fenced = "".join(re.findall(r"^ *```\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
        inline = "\n".join(re.findall(r"`([^`\n]+)`", text))
        # Not where it is the name of a namespace.
        for words in re.findall(r"(?<![\w:/-])(?<!-n )(?<!namespace )regate ([a-z][^\n|)·]*)", f"{fenced}\n{inline}"):
            yield page.name, shlex.split(words.partition("  ")[0], comments=True)


@pytest.mark.parametrize(("where", "words"), list(called()))
def test_commands_exist_with_their_options(where: str, words: list[str]) -> None:
    """Whoever reads this at night types it as it stands."""
    context = click.Context(regate)
    command = regate.get_command(context, words[0])
    assert command is not None, words
    if isinstance(command, click.Group):
        command = command.get_command(context, words[1])
        assert command is not None, words
    known = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, (where, word)


def test_runbooks_call_commands_at_all() -> None:
    """Else the test above would hold whatever stands there."""
    by_page = [where for where, _ in called()]
    assert all(page.name in by_page for page in RUNBOOKS.glob("*.md"))


def test_every_runbook_is_listed_and_has_its_parts() -> None:
    """In the list, and in this order."""
    pages = {page.name for page in RUNBOOKS.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([a-z-]+\.md)\)", (RUNBOOKS / "README.md").read_text()))
    parts = ["You see", "What happens by itself", "What to do", "It is over", "Never"]
    for page in pages:
        assert parts == re.findall(r"^## (.*)$", (RUNBOOKS / page).read_text(), re.MULTILINE), page


def test_links_of_these_pages_lead_somewhere() -> None:
    """To a file and, with a #, to a heading in it."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:\s]+)(?:#([^)]*))?\)", page.read_text()):
            path = page.parent / target
            assert path.exists(), (page.name, target)
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads], target


def test_settings_are_written_as_flags_or_variables_that_exist() -> None:
    """Wherever a page names one."""
    for page in PAGES:
        for name in set(re.findall(r"REGATE_[A-Z_]+", page.read_text())) - {"REGATE_DB_PASSWORD"}:
            assert name in DEFAULTS, (page.name, name)
    assert "--beat-file" == flag_of("REGATE_BEAT_FILE")


# --- The image ----------------------------------------------------------------------------------------------


def test_the_image_is_of_this_version_everywhere() -> None:
    """And runs on a Python that the project supports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = f"regate:{project['version']}"
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert {image} == set(re.findall(r"regate:[\d.]+\d", dockerfile))
    assert all(image == COMPOSE["services"][name]["image"] for name in (*PROCESSES, "migrate"))
    assert project["version"] == MANIFESTS["Kustomization"]["images"][0]["newTag"]
    assert {"python:3.12-slim"} == set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    assert "3.11" == project["requires-python"].removeprefix(">=")


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    """Everything else is."""
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert set(allowed) == {name for names in copied for name in names.split()}
    assert all((ROOT / name).exists() for name in allowed)


def test_pods_run_as_the_user_of_the_image() -> None:
    """And have no right that they do not use."""
    for pod in (POD, MANIFESTS["Job"]["spec"]["template"]["spec"]):
        assert (
            f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
            in (DEPLOY / "Dockerfile").read_text().splitlines()
        )
        assert not pod["automountServiceAccountToken"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert ["ALL"] == container["securityContext"]["capabilities"]["drop"]


def test_secrets_and_settings_have_the_names_that_pods_ask_for() -> None:
    """The examples make what the manifests mount."""
    named = re.findall(r"(?:secretName|secretRef:\n *name|configMapRef:\n *name): (\S+)", _text("worker.yaml"))
    made = re.findall(r"^  name: (\S+)$", _text("secret.example.yaml") + _text("configmap.yaml"), re.MULTILINE)
    assert {"regate-settings", "regate-secrets", "regate-keys"} == set(named)
    assert set(named) | {"regate-scaler"} == set(made)


def _text(name: str) -> str:
    return (DEPLOY / "kubernetes" / name).read_text()


# --- Autoscaling (what the query does: tests/integration/test_autoscaling.py) ---------------------------------


def test_the_autoscaler_asks_for_what_this_build_can_claim() -> None:
    """The same versions and the same statuses as a claim."""
    query = MANIFESTS["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    (version,) = re.findall(r"doc_version <= (\d+)", query)
    assert max(STATE_VERSION, ENTRY_VERSION) == int(version)
    (final,) = re.findall(r"NOT IN \(([^)]*)\)", query)
    assert set(FINAL_STATUSES) == {RunStatus(word.strip(" '")) for word in final.split(",")}


def test_the_autoscaler_leaves_slots_free() -> None:
    """Pods are full at `REGATE_MAX_RUNS`; there are more before they are."""
    held = MANIFESTS["ScaledObject"]["spec"]["triggers"][1]
    assert "AverageValue" == held["metricType"]
    slots = int(MANIFESTS["ConfigMap"]["data"]["REGATE_MAX_RUNS"])
    assert 0.5 * slots <= int(held["metadata"]["targetQueryValue"]) <= 0.8 * slots
