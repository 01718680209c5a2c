"""Laws of the two ladders, of the table between them, and of the fold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.vocabulary import DeclaredClass, SourceKind, SourceOrigin, TrustZone
from tests.support.strategies import CLASSES, ZONES
from worker.core.sources import Source, classify
from worker.core.zones import CEILING, class_rank, least_trusted, permits, strictest

MAYBE = st.none() | CLASSES
P, E, C, N, D, S, U = DeclaredClass
PERMITTED = {
    TrustZone.LOCAL: {P, E, C, N, D, S},
    TrustZone.PRIVATE_HOSTED: {P, E, C, N, D},
    TrustZone.EXTERNAL_EU: {P, E, C, N},
    TrustZone.EXTERNAL_GLOBAL: {P, E},
}


def _source(uid: int, declared: DeclaredClass | None) -> Source:
    return Source(
        kind=SourceKind.SNIPPET, uid=uid, name=f"s{uid}", declared=declared, origin=SourceOrigin.CONFIGURATION
    )


SOURCES = st.lists(MAYBE, max_size=6).map(lambda found: [_source(i, c) for i, c in enumerate(found, start=1)])


@pytest.mark.parametrize("zone", TrustZone)
@pytest.mark.parametrize("declared", DeclaredClass)
def test_the_table_of_zones_and_classes(zone: TrustZone, declared: DeclaredClass) -> None:
    """Which class may reach which zone; nothing may read an unreadable one."""
    assert (declared in PERMITTED[zone]) == permits(zone, declared)


def test_the_ladders_are_ascending() -> None:
    """The order of the stored words is their rank."""
    assert [P, E, C, N, D, S, U] == sorted(DeclaredClass, key=class_rank)
    assert list(TrustZone) == sorted(TrustZone, key=lambda zone: -class_rank(CEILING[zone]))


@given(MAYBE, MAYBE, MAYBE)
def test_strictest_is_a_join(a: DeclaredClass | None, b: DeclaredClass | None, c: DeclaredClass | None) -> None:
    """Idempotent, commutative, associative; nothing declared is neutral."""
    assert a == strictest(a, a)
    assert strictest(a, b) == strictest(b, a)
    assert strictest(strictest(a, b), c) == strictest(a, strictest(b, c))
    assert a == strictest(a, None)


@given(ZONES, ZONES, ZONES)
def test_least_trusted_is_a_join(a: TrustZone, b: TrustZone, c: TrustZone) -> None:
    """Idempotent, commutative, associative; the most trusted zone is neutral."""
    assert a == least_trusted(a, a)
    assert least_trusted(a, b) == least_trusted(b, a)
    assert least_trusted(least_trusted(a, b), c) == least_trusted(a, least_trusted(b, c))
    assert a == least_trusted(a, TrustZone.LOCAL)


@given(ZONES, ZONES, CLASSES, CLASSES)
def test_permission_is_monotone(zone: TrustZone, other: TrustZone, a: DeclaredClass, b: DeclaredClass) -> None:
    """Neither a higher class nor a less trusted zone turns a refusal into a permission."""
    worst = least_trusted(zone, other)
    highest = strictest(a, b)
    assert highest is not None

    assert permits(zone, a) or not permits(worst, highest)


@given(SOURCES)
def test_the_fold_gives_the_strictest_and_on_a_tie_the_later(sources: list[Source]) -> None:
    """The fold's class is the highest of all; its source is the last that declares it."""
    found = classify(sources)
    declared = [s for s in sources if s.declared is not None]

    if found is None:
        assert not declared
        return
    highest = max(class_rank(s.declared) for s in declared if s.declared is not None)
    assert highest == class_rank(found.data_class)
    assert found.source == [s for s in declared if s.declared == found.data_class][-1]


@given(SOURCES, MAYBE)
def test_the_fold_only_rises(sources: list[Source], declared: DeclaredClass | None) -> None:
    """One more source never lowers the class; one that declares nothing changes nothing."""
    before, after = classify(sources), classify([*sources, _source(99, declared)])

    if declared is None:
        assert before == after
    if before is not None:
        assert after is not None and class_rank(after.data_class) >= class_rank(before.data_class)
