#!/usr/bin/env python3
"""Set up regate and run its verbs on a machine that has nothing but a Python 3.11 or newer.

    python3 bootstrap.py demo  [ARGS]             install what runs, then show it
    python3 bootstrap.py test  [-- PYTEST ARGS]   static checks, then all tests
    python3 bootstrap.py check                    static checks only
    python3 bootstrap.py lock  [--upgrade]        write requirements/*.lock anew (needs uv)

Everything goes into .venv beside this file, from hashed locks. Standard library only; never asks a question.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "regate-installed.json"
LOCKS = {"run": ROOT / "requirements" / "run.lock", "dev": ROOT / "requirements" / "dev.lock"}
IMAGE_LOCK = ROOT / "requirements" / "image.lock"  # what deploy/Dockerfile installs: run.lock and every extra
BENCH_LOCK = ROOT / "requirements" / "bench.lock"  # an environment of its own: `python -m bench --install`
FLOOR = (3, 11)
PYTEST_WORKERS = "2"  # the cores of a small CI machine


class SetupError(Exception):
    """The machine lacks something. The message is what to do about it, as one line."""


def say(text: str) -> None:
    """Tell the person what happens, at once, even through a pipe."""
    print(text, flush=True)


# --- The environment ----------------------------------------------------------------------------------------


def run_quietly(command: list[str], what: str) -> None:
    """Run `command`; only when it fails, show what it said and raise `SetupError`."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        say(done.stdout.decode(errors="replace").rstrip())
        raise SetupError(f"{what} failed (see above)")


def ensure_venv() -> None:
    """Make .venv, anew when it is broken, too old, or was made in another folder."""
    if venv_works():
        return
    ensure_venv_module()
    say("setup: making .venv")
    run_quietly([sys.executable, "-m", "venv", "--clear", str(VENV)], "making .venv")


def venv_works() -> bool:
    """Tell whether .venv has a new enough Python with pip, and has not been moved since it was made."""
    probe = f"import sys, pip; print(sys.prefix); sys.exit(sys.version_info < {FLOOR})"
    try:
        done = subprocess.run([str(PYTHON), "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return False
    moved = bool(read_stamp()) and read_stamp().get("root") != str(ROOT)
    return done.returncode == 0 and Path(done.stdout.strip()) == VENV and not moved


def ensure_venv_module() -> None:
    """Install Debian's separate venv package when this Python lacks it, as root; else say which line does."""
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if not shutil.which("apt-get"):
        raise SetupError(f"this Python ({sys.executable}) has no venv module; install one that does")
    if os.geteuid() != 0:
        raise SetupError(f"run this first: sudo apt-get install -y {package}")
    say(f"setup: installing {package}")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    run_quietly([*apt, "update"], "apt-get update")
    run_quietly([*apt, "install", "-y", "--no-install-recommends", package], f"installing {package}")


def install(kind: str) -> None:
    """Install lock `kind` ("run" or "dev") and the project itself, unless the stamp says that they are there.

    The dev lock holds everything of the run lock in the same versions, so installing it satisfies both.
    """
    ensure_venv()
    wanted = {name: digest(lock.read_bytes()) for name, lock in LOCKS.items()}
    project = digest((ROOT / "pyproject.toml").read_bytes())
    stamp = read_stamp()
    if stamp.get(kind) != wanted[kind]:
        install_lock(LOCKS[kind])
        # What an older dev lock put there is no longer known to fit; only a match with today's is kept.
        kept = {name: stamp.get(name) for name in LOCKS if stamp.get(name) == wanted[name]}
        fresh = wanted if kind == "dev" else {"run": wanted["run"]}
        stamp = {"root": str(ROOT), **kept, **fresh}
        write_stamp(stamp)
    if stamp.get("project") != project:
        pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT), what="installing regate")
        write_stamp({**stamp, "project": project})


def install_lock(lock: Path) -> None:
    """Install exactly what `lock` names, only wheels, only with the hashes that it lists."""
    count = len(re.findall(r"^[A-Za-z0-9]", lock.read_text(), re.MULTILINE))
    say(f"setup: installing {count} packages from {lock.relative_to(ROOT)}")
    pip("--require-hashes", "--only-binary=:all:", "-r", str(lock), what=f"installing {lock.name}")


def pip(*arguments: str, what: str) -> None:
    """Run pip install inside .venv."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run_quietly([str(PYTHON), "-m", "pip", "install", *quiet, *arguments], what)


def digest(content: bytes) -> str:
    """Name `content` by its SHA-256."""
    return hashlib.sha256(content).hexdigest()


def read_stamp() -> dict[str, str | None]:
    """Read which locks are installed; an unreadable stamp means none."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: dict[str, str | None]) -> None:
    """Remember which locks are installed."""
    STAMP.write_text(json.dumps(stamp, indent=1) + "\n")


# --- The verbs ----------------------------------------------------------------------------------------------


def demo(arguments: list[str]) -> int:
    """Run the demonstration and return its exit code."""
    # A real model is asked through an extra, which only the dev lock holds.
    install("dev" if os.environ.get("REGATE_DEMO_BASE_URL") else "run")
    return exit_code(subprocess.run([str(PYTHON), "-m", "worker.demo", *arguments], cwd=ROOT, check=False))


def check(arguments: list[str]) -> int:
    """Run the static checks and return 1 if one failed."""
    no_arguments(arguments)
    install("dev")
    return summary(static_checks())


def test(arguments: list[str]) -> int:
    """Run the static checks and the tests, all of them even if one fails; return 1 if one failed."""
    install("dev")
    results = static_checks()
    extra = arguments[1:] if arguments[:1] == ["--"] else arguments
    say("pytest:")
    command = [str(PYTHON), "-m", "pytest", "-n", PYTEST_WORKERS, *extra]
    results["pytest"] = exit_code(subprocess.run(command, cwd=ROOT, check=False)) == 0
    return summary(results)


def lock(arguments: list[str]) -> int:
    """Resolve pyproject.toml into all locks; versions stay as they are unless --upgrade is given."""
    uv = shutil.which("uv", path=f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise SetupError("run this first: .venv/bin/python -m pip install uv")
    options = ["--universal", "--generate-hashes", "--no-header", "--no-annotate", "--python-version", "3.11"]
    base = [uv, "pip", "compile", *options, "--only-binary=:all:", *arguments]
    same_versions = ["--constraint", str(LOCKS["run"])]
    for path, wanted in (
        (LOCKS["run"], ["pyproject.toml", "--group", "build"]),
        (LOCKS["dev"], ["pyproject.toml", "--group", "dev", *same_versions]),
        (IMAGE_LOCK, ["pyproject.toml", "--all-extras", "--group", "build", "--constraint", str(LOCKS["dev"])]),
        (BENCH_LOCK, ["--group", "bench"]),
    ):
        path.parent.mkdir(exist_ok=True)
        run_quietly([*base, *wanted, "--output-file", str(path)], f"locking {path.stem}")
        if "://" in path.read_text():
            raise SetupError(f"{path.name} names an address; a dependency is given as a link")
        say(f"wrote {path.relative_to(ROOT)}")
    return 0


def static_checks() -> dict[str, bool]:
    """Run every check that runs no code of ours, one line each; what a failing one said follows its line."""
    python = str(PYTHON)
    lint_imports = "from importlinter.cli import lint_imports_command as main; main()"
    return {
        name: static_check(name, command)
        for name, command in {
            "ruff check": [python, "-m", "ruff", "check", "--quiet", "."],
            "ruff format": [python, "-m", "ruff", "format", "--quiet", "--diff", "."],
            "mypy": [python, "-m", "mypy", "--no-error-summary"],
            "lint-imports": [python, "-c", lint_imports, "--no-logo"],
            "sizes": [python, "scripts/check_sizes.py"],
            "honcho check": [str(VENV / "bin" / "honcho"), "check"],
            "locks": [python, "bootstrap.py", "check-locks"],
            "deploy": [python, "scripts/check_deploy.py"],
        }.items()
    }


def static_check(name: str, command: list[str]) -> bool:
    """Run one check and say how it went."""
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    ok = done.returncode == 0
    say(f"{name:<14}{'ok' if ok else 'FAILED':<8}{time.monotonic() - started:5.1f} s")
    if not ok:
        say(done.stdout.decode(errors="replace").rstrip())
    return ok


def check_locks(arguments: list[str]) -> int:
    """Return 1 if a lock names an address, or does not hold all of the smaller one: run, image, dev."""
    no_arguments(arguments)
    texts = {name: path.read_text() for name, path in {**LOCKS, "image": IMAGE_LOCK}.items()}
    addressed = {**texts, "bench": BENCH_LOCK.read_text()}
    faults = [f"{name}.lock names an address or an option" for name, text in addressed.items() if foreign(text)]
    pins = {name: set(re.findall(r"^[^\s#].*?(?= \\$)", text, re.MULTILINE)) for name, text in texts.items()}
    for smaller, larger in (("run", "image"), ("image", "dev")):
        faults += [f"{larger}.lock lacks {pin}" for pin in sorted(pins[smaller] - pins[larger])]
    for fault in faults:
        say(fault)
    return 1 if faults else 0


def foreign(text: str) -> bool:
    """Tell whether a lock holds anything but pins and hashes."""
    return "://" in text or re.search(r"^(?!    --hash=)\s*-", text, re.MULTILINE) is not None


def summary(results: dict[str, bool]) -> int:
    """Say in one line what failed."""
    failed = [name for name, ok in results.items() if not ok]
    say(f"failed: {', '.join(failed)}" if failed else f"all {len(results)} checks are fine")
    return 1 if failed else 0


def no_arguments(arguments: list[str]) -> None:
    """Refuse arguments where a verb takes none."""
    if arguments:
        raise SetupError(f"unknown argument: {arguments[0]}")


def exit_code(done: subprocess.CompletedProcess[bytes]) -> int:
    """Give the exit code as a shell would; a signal's is 128 and its number."""
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


# --- The start ----------------------------------------------------------------------------------------------

VERBS = {"demo": demo, "test": test, "check": check, "lock": lock, "check-locks": check_locks}


def main(argv: list[str]) -> int:
    """Run one verb and return the exit code."""
    use_newer_python()
    if argv[:1] in (["-h"], ["--help"]):
        say((__doc__ or "").strip())
        return 0
    if not argv or argv[0] not in VERBS:
        print("usage: python3 bootstrap.py demo | test | check | lock   (--help tells more)", file=sys.stderr)
        return 2
    try:
        return VERBS[argv[0]](argv[1:])
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def use_newer_python() -> None:
    """Start again under a newer Python of this machine when this one is too old, as on macOS."""
    if sys.version_info >= FLOOR:
        return
    for minor in range(FLOOR[1] + 3, FLOOR[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer and subprocess.run([newer, "-c", ""], capture_output=True, check=False).returncode == 0:
            os.execv(newer, [newer, str(ROOT / "bootstrap.py"), *sys.argv[1:]])  # noqa: S606  no shell
    print(f"regate needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
