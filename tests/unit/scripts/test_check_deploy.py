"""The check of deploy/ finds what it is for: each kind of fault, in a copy that is broken in one place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import check_deploy
from scripts.check_deploy import CHECKS, SkippedError, main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    return tmp_path / "deploy"


def faults(name: str, deploy: Path) -> list[str]:
    """Run one check; skip where the machine lacks what it needs."""
    try:
        return CHECKS[name](deploy)
    except SkippedError as skipped:
        pytest.skip(str(skipped))


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_there_is_fine(name: str) -> None:
    """As CI sees it."""
    assert [] == faults(name, ROOT / "deploy")


BROKEN: dict[str, tuple[str, str, str, str, str]] = {
    # check, file, what stands there, what is put in its place, what is told
    "indentation": ("yaml", "kubernetes/pdb.yaml", "  name:", "   name:", "indentation"),
    "a repeated key": ("yaml", "compose.yaml", "  keys:\n", "  keys:\n  keys:\n", "duplicat"),
    "a key of no service": ("compose", "compose.yaml", "    command: [worker]", "    comand: [worker]", "comand"),
    "no length": ("compose", "compose.yaml", "interval: 10s", "interval: [10]", "is not of type 'string'"),
    "a key of no pod": ("kubernetes", "kubernetes/worker.yaml", "enableServiceLinks", "serviceLinks", "serviceLinks"),
    "no number": ("kubernetes", "kubernetes/worker.yaml", "maxSkew: 1", "maxSkew: one", "maxSkew"),
    "no kind": ("kubernetes", "kubernetes/pdb.yaml", "PodDisruptionBudget", "DisruptionBudget", "find schema"),
    "an old version": ("kubernetes", "kubernetes/pdb.yaml", "policy/v1", "policy/v1beta1", "find schema"),
    "a key of no scaler": (
        "kubernetes",
        "kubernetes/scaledobject.yaml",
        "minReplicaCount",
        "minReplicas",
        "minReplicas",
    ),
    "a number as text": ("kubernetes", "kubernetes/scaledobject.yaml", '"15"', "15", "targetQueryValue"),
    "another metric": (
        "kubernetes",
        "kubernetes/scaledobject.yaml",
        "metricType: Value",
        "metricType: Age",
        "metricType",
    ),
    "no kustomization": ("kubernetes", "kubernetes/kustomization.yaml", "resources:", "resource:", "resource"),
    "a forgotten file": ("kustomization", "kubernetes/kustomization.yaml", "  - pdb.yaml\n", "", "pdb.yaml"),
    "a missing file": ("kubectl kustomize", "kubernetes/kustomization.yaml", "pdb.yaml", "budget.yaml", "budget.yaml"),
    "an untagged image": ("Dockerfile", "Dockerfile", "python:3.12-slim\nRUN", "python\nRUN", "DL3006"),
    "a shell's fault": ("Dockerfile", "Dockerfile", "&& install --directory /srv", "&& cd $X && cd /srv", "SC2"),
    "a key of no unit": ("units", "systemd/regate-sweeper.service", "UMask=", "UMsk=", "UMsk"),
    "no such value": ("units", "systemd/regate-worker@.service", "Type=notify", "Type=notified", "notified"),
    "a section of none": ("units", "systemd/regate.target", "[Install]", "[Instal]", "Instal"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found(copy: Path, fault: str) -> None:
    """In the file where it is, and nowhere else."""
    name, file, here, there, told = BROKEN[fault]
    text = (copy / file).read_text()
    assert here in text
    (copy / file).write_text(text.replace(here, there, 1))

    found = faults(name, copy)

    assert found
    assert told in "\n".join(found)


def test_the_script_tells_and_exits_1(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each fault, with its check."""
    (copy / "kubernetes" / "more.yaml").write_text("a: 1\n")
    assert 1 == main([str(copy.parent)])
    assert "kustomization: kubernetes/kustomization.yaml and the folder differ in more.yaml" in capsys.readouterr().out


def test_what_the_machine_lacks_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And is no fault."""
    only: dict[str, Callable[[Path], list[str]]] = {name: CHECKS[name] for name in ("kubectl kustomize", "units")}
    monkeypatch.setattr(check_deploy, "CHECKS", only)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert 0 == main([])
    expected = "kubectl kustomize: skipped, no kubectl\nunits: skipped, no systemd-analyze\n"
    assert expected == capsys.readouterr().out
