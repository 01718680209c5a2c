"""The queries that Kubernetes scales workers by: they say what a claim would take, and read no table whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from tests.integration.test_plans import READS_ALL, explained, fill, use
from tests.support.postgres import Server, server
from tests.support.stores import KEYS, LEASE_S
from worker.adapters.sql.claims import ClaimTerms, claim_due

pytestmark = pytest.mark.postgres

FILE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "scaledobject.yaml"
AGE, HELD = (
    trigger["metadata"]["query"]
    for manifest in yaml.safe_load_all(FILE.read_text())
    for trigger in manifest["spec"].get("triggers", ())
)
KNOWN_KEY = "INSERT INTO key_ring (id, check_value, active, created_at) VALUES ('k-1', '', TRUE, 0)"


@pytest.fixture(scope="module")
def many() -> Iterator[str]:
    """A database with 50,000 runs, of which a thousand are due."""
    with server().clone() as url:
        use(url, fill)
        yield url


@pytest.fixture
def empty() -> Iterator[Server]:
    """A database that knows one key and no run."""
    with server().clone() as url:
        made = Server(url=url, run="")
        made.execute(KNOWN_KEY)
        yield made


def stored(name: str, status: str, due_in_s: float | None, **changes: Any) -> str:
    """Write the statement that stores a run which is due in so many seconds; less than 0: for so long."""
    given = {"key_id": "k-1", "doc_version": 1} | changes
    due = "NULL" if due_in_s is None else f"extract(epoch FROM now()) + {due_in_s}"
    token, finished = (
        ("'t'" if status == "running" else "NULL"),
        ("0" if status in ("cancelled", "completed") else "NULL"),
    )
    return f"""INSERT INTO run (uuid, status, seq, head, token, due_at, key_id, doc_version, owner, origin,
        configuration_uid, configuration, created_at, updated_at, finished_at)
        VALUES ('{name}', '{status}', 1, '', {token}, {due}, '{given["key_id"]}', {given["doc_version"]}, 'o', 'queue',
        1, 'c', 0, 0, {finished})"""


OTHERS = (
    stored("over", "completed", -600),
    stored("cancelled under its worker", "cancelled", -500),
    stored("of a newer build", "queued", -400, doc_version=2),
    stored("of another ring", "queued", -300, key_id="k-2"),
    stored("held", "running", 20),
    stored("parked", "queued", 60),
    stored("asks for ever", "queued", None),
)


def test_nothing_is_due_where_nothing_can_be_claimed(empty: Server) -> None:
    """However long something else has stood there."""
    assert [0] == list(empty.execute(AGE)[0])
    empty.execute(*OTHERS)
    assert [0] == list(empty.execute(AGE)[0])
    assert [1] == list(empty.execute(HELD)[0])


@pytest.mark.parametrize("status", ["queued", "running"])
def test_the_age_is_that_of_the_run_that_is_claimed_next(empty: Server, status: str) -> None:
    """Also when that one is held by a worker whose lease has ended."""
    empty.execute(*OTHERS, stored("next", status, -100), stored("later", "queued", -50))

    (age,) = empty.execute(AGE)[0]

    assert 100 <= age < 130
    terms = ClaimTerms(limit=1, token="t2", holder="w", lease_s=LEASE_S, key_ids=KEYS, doc_version=1, uuids=None)
    assert ["next"] == [claimed.row.uuid for claimed in use(empty.url, lambda c: claim_due(c, terms))]


@pytest.mark.parametrize(("query", "index"), [(AGE, "ix_run_due_at"), (HELD, "ix_run_status_uid")])
def test_the_queries_use_an_index(many: str, query: str, index: str) -> None:
    """And sort nothing: KEDA asks every 15 seconds."""
    plans = explained(many, lambda c: c.exec_driver_sql(query))

    assert READS_ALL.search(plans) is None, plans
    assert re.search(rf"\b{index}\b", plans), plans
    assert not re.search(r"Sort  ", plans), plans


def test_one_run_is_read_however_many_are_due(many: str) -> None:
    """The oldest, out of the index's order."""

    def analysed(connection: sa.Connection) -> str:
        connection.exec_driver_sql(KNOWN_KEY)
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN (ANALYZE, COSTS OFF) {AGE}"))

    plan = use(many, analysed)

    assert re.search(r"ix_run_due_at on run \(actual [^)]*rows=1(\.00)? ", plan), plan


def test_the_autoscaler_needs_no_more_rights_than_its_file_says(empty: Server) -> None:
    """A role with these grants asks both queries, and reads nothing else."""
    grants = re.findall(r"^# +(GRANT .*);$", FILE.read_text(), re.MULTILINE)
    assert len(grants) == 2
    role = f"regate_scaler_{re.sub(r'.*/', '', empty.url)}"
    empty.execute(f"CREATE ROLE {role}", *(grant.replace("regate_scaler", role) for grant in grants))
    try:
        for query in (AGE, HELD):
            empty.execute(f"SET ROLE {role}", query)
        with pytest.raises(Exception, match="permission denied"):
            empty.execute(f"SET ROLE {role}", "SELECT uuid FROM run")
    finally:
        empty.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
