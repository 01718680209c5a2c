"""Each example is served by a real process, with a real worker beside it, and does what its README says."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.command import ROOT, Regate, end, wait_until
from tests.support.postgres import server

NOWHERE: Final = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """How an example is started. `before` runs first; `{port}` is filled in."""

    name: str
    tools: str
    serve: tuple[str, ...]
    before: tuple[str, ...] = ()


FASTAPI: Final = Example(name="fastapi", tools="shipping", serve=("-m", "uvicorn", "app:app", "--port", "{port}"))
FLASK: Final = Example(name="flask", tools="shipping", serve=("-m", "flask", "--app", "app", "run", "--port", "{port}"))
DJANGO: Final = Example(
    name="django",
    tools="shop.shipping",
    before=("manage.py", "migrate", "--run-syncdb"),
    serve=("manage.py", "runserver", "--noreload", "{port}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A served example."""

    client: httpx.Client
    regate: Regate

    def place(self, quantity: int = 1) -> httpx.Response:
        """Place an order."""
        return self.client.post("/orders", json={"article": "kettle", "quantity": quantity})

    def look(self, number: int) -> dict[str, Any]:
        """Look at an order."""
        answer = self.client.get(f"/orders/{number}")
        assert 200 == answer.status_code, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def approve(self, number: int, question: str) -> int:
        """Answer what its run asks; gives the status code."""
        return self.client.post(f"/orders/{number}/approve", json={"question": question}).status_code


@contextmanager
def open_shop(example: Example, folder: Path, **variables: str) -> Iterator[Shop]:
    """Serve an example from a copy of its folder."""
    home = folder / example.name
    shutil.copytree(ROOT / "examples" / example.name, home, ignore=shutil.ignore_patterns("__pycache__", ".regate"))
    regate = Regate(home, REGATE_TOOLS=example.tools, **variables)
    regate("catalog", "apply", "catalogue.toml")
    if example.before:
        subprocess.run(
            [sys.executable, *example.before],
            cwd=home,
            env=regate.environment,
            capture_output=True,
            timeout=60,
            check=True,
        )
    with serving(example, regate) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield Shop(client=client, regate=regate)


@contextmanager
def serving(example: Example, regate: Regate) -> Iterator[str]:
    """Start the server's process; it is ended at the end."""
    port = str(free_port())
    command = [sys.executable, *(part.replace("{port}", port) for part in example.serve)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=regate.folder, env=regate.environment, stdout=log, stderr=log, text=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: process.poll() is not None or answers(url), "it serves")
            assert process.poll() is None
            yield url
        finally:
            end(process)
            log.seek(0)
            print(log.read())  # noqa: T201 - shown when the test fails
        log.seek(0)
        assert "Traceback" not in log.read()


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether somebody serves."""
    try:
        return httpx.get(f"{url}/orders/0").status_code == 404
    except httpx.TransportError:
        return False


def is_shipped_once_somebody_agrees(shop: Shop) -> None:
    """Place an order, wait for the question, approve what was shown, see it through."""
    placed = shop.place()
    assert 201 == placed.status_code, placed.text
    number = placed.json()["id"]
    wait_until(lambda: shop.look(number)["question"] is not None, "its run asks")
    asked = shop.look(number)
    assert ("waiting_for_approval", None) == (asked["status"], asked["answer"])

    assert 409 == shop.approve(number, NOWHERE)
    assert 202 == shop.approve(number, asked["question"])
    wait_until(lambda: shop.look(number)["status"] == "completed", "its run ends")
    assert "The order is on its way." == shop.look(number)["answer"]
    assert 409 == shop.approve(number, asked["question"])


def leaves_nothing_when_it_fails(shop: Shop) -> None:
    """Neither the order nor its run."""
    before = len(shop.regate("runs", "--json").documents)
    placed = shop.place()
    refused = shop.place(quantity=11)
    assert (201, 409) == (placed.status_code, refused.status_code)
    assert before + 1 == len(shop.regate("runs", "--json").documents)
    assert 404 == shop.client.get(f"/orders/{placed.json()['id'] + 1}").status_code


@pytest.mark.parametrize("example", [FASTAPI, FLASK, DJANGO], ids=lambda example: example.name)
def test_an_order_and_its_run_are_one(example: Example, tmp_path: Path) -> None:
    """On SQLite."""
    with open_shop(example, tmp_path) as shop:
        leaves_nothing_when_it_fails(shop)
        with shop.regate.working():
            is_shipped_once_somebody_agrees(shop)


@pytest.mark.postgres
def test_an_order_and_its_run_are_one_on_postgres(tmp_path: Path) -> None:
    """Which the examples take from regate's own setting; here through Django's own way of transactions."""
    with server().clone() as url, open_shop(DJANGO, tmp_path, REGATE_DATABASE_URL=url) as shop:
        leaves_nothing_when_it_fails(shop)
        with shop.regate.working():
            is_shipped_once_somebody_agrees(shop)
