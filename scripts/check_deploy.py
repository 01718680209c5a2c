#!/usr/bin/env python3
"""Check what is in deploy/ offline: YAML, compose, Kubernetes, KEDA, the Dockerfile, systemd units.

Each tool is a development dependency and brings its schemas along. `systemd-analyze` and `kubectl` are parts of a
system: without them their checks are skipped, and that is said. tests/unit/test_deploy.py tests what spans files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate  # type: ignore[import-untyped]
import yaml

TOOLS = Path(sys.executable).parent
KUBERNETES = ("1.30", "1.37")  # few clusters are of today; the later one is the newest whose schemas are installed
YAML_RULES = (
    "{extends: default,"
    " rules: {document-start: disable, line-length: {max: 140}, comments: {min-spaces-from-content: 1}}}"
)
COMMAND = "/opt/regate/bin/regate"  # what units start; this machine need not have it

Check = Callable[[Path], list[str]]


def shape(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make the schema of an object that has these keys, perhaps those, and no others."""
    properties = required | (optional or {})
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    """Make the schema of a list that is not empty."""
    return {"type": "array", "items": items, "minItems": 1}


TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
NAME = shape({"name": TEXT}, {"namespace": TEXT, "labels": TEXTS, "annotations": TEXTS})
POLICY = shape({"type": {"enum": ["Pods", "Percent"]}, "value": COUNT, "periodSeconds": COUNT})
SCALING = shape({"policies": list_of(POLICY)}, {"stabilizationWindowSeconds": COUNT, "selectPolicy": TEXT})
# Neither is among the cluster's own kinds, so no tool has a schema of them: the parts that are used here, by hand.
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "TriggerAuthentication"): shape(
        {"spec": shape({"secretTargetRef": list_of(shape({"parameter": TEXT, "name": TEXT, "key": TEXT}))})}
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): shape(
        {
            "spec": shape(
                {
                    "scaleTargetRef": shape({"name": TEXT}),
                    "minReplicaCount": COUNT,
                    "maxReplicaCount": COUNT,
                    "triggers": list_of(
                        shape(
                            {
                                "type": {"const": "postgresql"},
                                "metricType": {"enum": ["Value", "AverageValue"]},
                                "authenticationRef": shape({"name": TEXT}),
                                "metadata": shape({"query": TEXT, "targetQueryValue": TEXT}),
                            },
                            {"name": TEXT},
                        )
                    ),
                },
                {
                    "pollingInterval": COUNT,
                    "advanced": shape(
                        {
                            "horizontalPodAutoscalerConfig": shape(
                                {"behavior": shape({}, {"scaleUp": SCALING, "scaleDown": SCALING})}
                            )
                        }
                    ),
                },
            )
        }
    ),
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"): shape(
        {"namespace": TEXT, "resources": list_of(TEXT)},
        {"images": list_of(shape({"name": TEXT}, {"newName": TEXT, "newTag": TEXT}))},
    ),
}
NAMELESS = {"Kustomization"}


class SkippedError(Exception):
    """The machine lacks what the check needs; the text says what."""


def run(*command: str | Path, cwd: Path | None = None) -> list[str]:
    """Run a tool and give the lines that it wrote if it failed; a failure without a word is one too."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    return (lines or [f"{command[0]} failed with {done.returncode}"]) if done.returncode else []


# --- The checks ---------------------------------------------------------------------------------------------


def check_yaml(deploy: Path) -> list[str]:
    """Lint every YAML file."""
    return run(TOOLS / "yamllint", "--strict", "--format", "parsable", "--config-data", YAML_RULES, deploy)


def check_compose(deploy: Path) -> list[str]:
    """Hold the compose file against the compose specification."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    return run(TOOLS / "check-jsonschema", "--no-cache", *schema, deploy / "compose.yaml")


def check_kubernetes(deploy: Path) -> list[str]:
    """Hold each manifest against its kind's schema, of two versions; unknown keys are faults."""
    faults = []
    for path, manifest in manifests(deploy):
        for fault in manifest_faults(manifest):
            faults.append(f"{path.relative_to(deploy)}: {manifest.get('kind')}: {fault}")
    return faults


def check_kustomization(deploy: Path) -> list[str]:
    """See that the kustomization names every manifest but examples, and nothing that is not there."""
    folder = deploy / "kubernetes"
    here = {path.name for path in folder.glob("*.yaml")}
    named = set(yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"])
    meant = {name for name in here if name != "kustomization.yaml" and not name.endswith(".example.yaml")}
    return [f"kubernetes/kustomization.yaml and the folder differ in {name}" for name in sorted(named ^ meant)]


def check_build(deploy: Path) -> list[str]:
    """Let kubectl put the manifests together."""
    if shutil.which("kubectl") is None:
        raise SkippedError("no kubectl")
    return run("kubectl", "kustomize", deploy / "kubernetes")


def check_dockerfile(deploy: Path) -> list[str]:
    """Lint the Dockerfile, with the shell in it; every remark counts."""
    return run(TOOLS / "hadolint", "--no-color", "--failure-threshold", "style", deploy / "Dockerfile")


def check_units(deploy: Path) -> list[str]:
    """Verify the units together. It returns 0 for keys that it does not know, so anything that it says is a fault."""
    if shutil.which("systemd-analyze") is None:
        raise SkippedError("no systemd-analyze")
    with tempfile.TemporaryDirectory() as folder:
        units = []
        for unit in sorted((deploy / "systemd").iterdir()):
            units.append(Path(folder, unit.name))
            units[-1].write_text(unit.read_text().replace(COMMAND, shutil.which("true") or "/bin/true"))
        command = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = done.stdout.decode(errors="replace").replace(f"{folder}/", "").splitlines()
    ours = [line for line in said if "regate" in line]  # it looks at the machine's own units too
    return ours or ([*said, "systemd-analyze failed"] if done.returncode else [])


# --- Manifests ----------------------------------------------------------------------------------------------


def manifests(deploy: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every document of every file."""
    for path in sorted((deploy / "kubernetes").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            yield path, manifest or {}


def manifest_faults(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one manifest."""
    if not {"apiVersion", "kind"} <= manifest.keys():
        yield "is no manifest: it has no apiVersion or no kind"
        return
    kind = manifest["kind"]
    own = OTHERS.get((manifest["apiVersion"], kind))
    if own is not None:
        fixed = {"apiVersion": TEXT, "kind": TEXT} | ({} if kind in NAMELESS else {"metadata": NAME})
        schema = shape(fixed | own["properties"])
        schema["required"] = [*fixed, *own["required"]]
        for error in jsonschema_rs.validator_for(schema).iter_errors(manifest):
            yield f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        return
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{version}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{version}: {error.message}"


# --- The start ----------------------------------------------------------------------------------------------

CHECKS: dict[str, Check] = {
    "yaml": check_yaml,
    "compose": check_compose,
    "kubernetes": check_kubernetes,
    "kustomization": check_kustomization,
    "kubectl kustomize": check_build,
    "Dockerfile": check_dockerfile,
    "units": check_units,
}


def main(arguments: list[str]) -> int:
    """Check the deploy/ of the given root, of this repository without one; print faults and give 1 if there are any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    failed = False
    for name, check in CHECKS.items():
        try:
            faults = check(root / "deploy")
        except SkippedError as skipped:
            print(f"{name}: skipped, {skipped}")
            continue
        failed |= bool(faults)
        for fault in faults:
            print(f"{name}: {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
