"""Sealing: what comes back, what does not, and the file of the keys."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from worker.adapters.sealing import LOOK_EVERY_S, KeyRing, KeyRingError, RingSealer, check_value
from worker.ports.sealing import KeyUnavailableError, SealBrokenError, Sealer, SealingError, WrappedKey

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RING = KeyRing(keys=MappingProxyType({"k-1": b"1" * 32, "k-2": b"2" * 32}), active="k-2", subkey=b"s" * 32)
SEALER = RingSealer(RING)
KEY = b"d" * 32
PLACE = ("entry", "run-1", "4")

texts = st.text(max_size=40)
data = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda unit, n: unit * n, st.binary(min_size=1, max_size=9), st.integers(0, 500)),
)


def test_it_is_a_sealer() -> None:
    port: Sealer = SEALER

    assert port is SEALER


# --- sealing


@given(key=st.binary(min_size=32, max_size=32), purpose=texts, owner=texts, index=texts, text=data)
def test_what_is_sealed_opens(key: bytes, purpose: str, owner: str, index: str, text: bytes) -> None:
    sealed = SEALER.seal(key, purpose, owner, index, text)

    assert text == SEALER.open(key, purpose, owner, index, sealed)


@given(text=data, position=st.integers(min_value=0), change=st.integers(1, 255))
def test_one_changed_byte_breaks_the_seal(text: bytes, position: int, change: int) -> None:
    sealed = bytearray(SEALER.seal(KEY, *PLACE, text))
    sealed[position % len(sealed)] ^= change

    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, bytes(sealed))


@given(text=data, length=st.integers(min_value=0))
def test_a_cut_seal_is_broken(text: bytes, length: int) -> None:
    sealed = SEALER.seal(KEY, *PLACE, text)

    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, sealed[: length % len(sealed)])


@given(sealed=st.binary(max_size=200))
def test_bytes_that_nobody_sealed_are_refused(sealed: bytes) -> None:
    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, sealed)


@given(here=st.tuples(texts, texts, texts), there=st.tuples(texts, texts, texts))
def test_a_seal_opens_in_its_own_place_only(here: tuple[str, str, str], there: tuple[str, str, str]) -> None:
    sealed = SEALER.seal(KEY, *here, b"text")

    if here == there:
        assert b"text" == SEALER.open(KEY, *there, sealed)
    else:
        with pytest.raises(SealBrokenError):
            SEALER.open(KEY, *there, sealed)


@pytest.mark.parametrize("there", [("entry", "run-14", ""), ("entryrun-1", "", "4"), ("", "entryrun-1", "4")])
def test_the_parts_of_a_place_do_not_run_together(there: tuple[str, str, str]) -> None:
    sealed = SEALER.seal(KEY, *PLACE, b"text")

    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *there, sealed)


@pytest.mark.parametrize("key", [b"e" * 32, b"d" * 16, b""])
def test_another_key_does_not_open(key: bytes) -> None:
    sealed = SEALER.seal(KEY, *PLACE, b"text")

    with pytest.raises(SealBrokenError) as broken:
        SEALER.open(key, *PLACE, sealed)

    assert broken.value.__cause__ is None


def test_sealing_twice_gives_different_bytes() -> None:
    assert SEALER.seal(KEY, *PLACE, b"text") != SEALER.seal(KEY, *PLACE, b"text")


def test_long_text_is_compressed_and_short_or_random_is_not() -> None:
    assert len(SEALER.seal(KEY, *PLACE, b"a" * 512)) < 100
    assert 63 + 29 == len(SEALER.seal(KEY, *PLACE, b"a" * 63))
    assert 4096 + 29 == len(SEALER.seal(KEY, *PLACE, os.urandom(4096)))


def forged(form: int, content: bytes) -> bytes:
    """Seal as whoever holds the key can, with any content."""
    place = bytes((form,)) + b"\0\0\0\x05entry\0\0\0\x05run-1\0\0\0\x014"
    return bytes((form,)) + b"n" * 12 + AESGCM(KEY).encrypt(b"n" * 12, content, place)


def test_a_bomb_is_refused_before_it_unfolds() -> None:
    bomb = zstd.compress(b"\0" * (65 * 1024 * 1024))

    for form in (2, 3):
        with pytest.raises(SealBrokenError):
            SEALER.open(KEY, *PLACE, forged(form, bomb))


def test_what_may_be_sealed_opens_up_to_the_bound() -> None:
    largest = b"\0" * (64 * 1024 * 1024)

    assert largest == SEALER.open(KEY, *PLACE, SEALER.seal(KEY, *PLACE, largest))
    with pytest.raises(SealingError):
        SEALER.seal(KEY, *PLACE, largest + b"\0")


@pytest.mark.parametrize(
    "content",
    [b"", b"no frame", zstd.compress(b"a" * 600)[:-3], zstd.compress(b"a") + b"more", zstd.compress(b"a") * 2],
)
def test_a_frame_that_is_not_exactly_one_is_refused(content: bytes) -> None:
    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, forged(2, content))
    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, forged(3, content))


@pytest.mark.parametrize("form", [0, 4, 255])
def test_an_unknown_format_is_refused(form: int) -> None:
    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, forged(form, b"text"))


def test_the_format_is_part_of_what_is_sealed() -> None:
    sealed = SEALER.seal(KEY, *PLACE, b"a" * 600)

    with pytest.raises(SealBrokenError):
        SEALER.open(KEY, *PLACE, b"\x01" + sealed[1:])


# --- data keys and hashes


def test_a_data_key_unwraps_under_its_own_id() -> None:
    made = SEALER.new_key()

    assert ("k-2", 32) == (made.key_id, len(made.key))
    assert made.key not in made.wrapped
    assert "key=" not in repr(made)
    assert made.key == RingSealer(RING).unwrap(made.wrapped, "k-2")
    assert made.key == SEALER.unwrap(made.wrapped, "k-2")
    assert SEALER.new_key().key != made.key


def test_a_data_key_does_not_unwrap_elsewhere() -> None:
    made = SEALER.new_key()

    with pytest.raises(SealBrokenError):
        SEALER.unwrap(made.wrapped, "k-1")
    with pytest.raises(KeyUnavailableError) as missing:
        SEALER.unwrap(made.wrapped, "k-9")
    with pytest.raises(SealBrokenError):
        SEALER.unwrap(b"", "k-1")
    assert "k-9" == missing.value.key_id
    assert frozenset({"k-1", "k-2"}) == SEALER.key_ids


def test_unwrapped_keys_are_kept_up_to_a_bound() -> None:
    sealer = RingSealer(RING)
    made = [sealer.new_key() for _ in range(1100)]

    assert len(sealer._unwrapped) == 1024
    assert [key.key for key in made] == [sealer.unwrap(key.wrapped, key.key_id) for key in made]


def test_a_hash_depends_on_purpose_data_and_installation() -> None:
    other = RingSealer(KeyRing(keys=RING.keys, active="k-2", subkey=b"t" * 32))
    rotated = RingSealer(KeyRing(keys=MappingProxyType({"k-3": b"3" * 32}), active="k-3", subkey=RING.subkey))
    value = SEALER.keyed_hash("text", b"data")

    assert 64 == len(value)
    assert value == SEALER.keyed_hash("text", b"data") == rotated.keyed_hash("text", b"data")
    others = [SEALER.keyed_hash("tex", b"tdata"), SEALER.keyed_hash("text", b"dat"), other.keyed_hash("text", b"data")]
    assert value not in others


def test_a_check_value_recognises_a_key() -> None:
    assert check_value(b"1" * 32) == check_value(b"1" * 32) != check_value(b"2" * 32)


# --- the file


def test_a_created_ring_loads_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    ring = KeyRing.create(path)

    assert ring == KeyRing.load(path)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [path] == list(tmp_path.iterdir())
    assert ring.active in ring.keys
    assert all(repr(key) not in repr(ring) for key in (*ring.keys.values(), ring.subkey))


def test_a_ring_is_never_created_twice(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made: list[KeyRing] = []
    refused: list[KeyRingError] = []

    def create() -> None:
        try:
            made.append(KeyRing.create(path))
        except KeyRingError as error:
            refused.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (1, 7) == (len(made), len(refused))
    assert made[0] == KeyRing.load(path)
    assert "exists already" in str(refused[0])
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_ring_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.json"
    KeyRing.create(path)
    path.chmod(mode)

    with pytest.raises(KeyRingError, match=f"chmod 600 {path}"):
        KeyRing.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"active":"a","keys":{"a":"%s"},"subkey":"%s"}',
        '{"version":1,"active":"b","keys":{"a":"%s"},"subkey":"%s"}',
        '{"version":1,"active":"a","keys":{"a":"%s="},"subkey":"%s"}',
        '{"version":1,"active":"a","keys":{"a":"AAAA"},"subkey":"%s"}',
        '{"version":1,"active":"a","keys":{"a":"%s"},"subkey":"%s","more":1}',
    ],
)
def test_a_file_that_is_no_ring_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text.replace("%s", "A" * 43 + "="))
    path.chmod(0o600)

    with pytest.raises(KeyRingError) as refused:
        KeyRing.load(path)

    assert f"{path} is not a key ring" == str(refused.value)
    assert refused.value.__cause__ is None


def test_a_missing_file_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyRingError, match="is missing"):
        KeyRing.load(tmp_path / "keys.json")
    with pytest.raises(KeyRingError, match="cannot be written"):
        KeyRing.create(tmp_path / "none" / "keys.json")


# --- a ring that changes


def test_a_new_key_is_the_newest_and_not_used_yet(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old = KeyRing.create(path)

    new = old.grown()
    new.save(path)

    assert new == KeyRing.load(path)
    assert [old.active, new.newest] == list(KeyRing.load(path).keys)
    assert (old.active, old.subkey) == (new.active, new.subkey)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_an_activated_key_wraps_and_the_older_ones_still_open() -> None:
    old = RING.activated("k-1")
    made = RingSealer(old).new_key()
    new = RingSealer(old.activated("k-2"))

    assert ("k-1", "k-2") == (made.key_id, new.new_key().key_id)
    assert made.key == new.unwrap(made.wrapped, made.key_id)


def test_nobody_goes_back_to_an_older_key() -> None:
    first = RING.activated("k-1")

    assert ["k-2", "k-2", "k-1"] == [r.active for r in (RING.at_least("k-1"), first.at_least("k-2"), first)]


@pytest.mark.parametrize(
    ("other", "kin"),
    [
        (RING.grown(), True),
        (KeyRing(keys={"k-2": b"2" * 32}, active="k-2", subkey=b"s" * 32), True),
        (KeyRing(keys={"k-9": b"9" * 32}, active="k-9", subkey=b"s" * 32), True),
        (KeyRing(keys={"k-2": b"x" * 32}, active="k-2", subkey=b"s" * 32), False),
        (KeyRing(keys=RING.keys, active="k-2", subkey=b"x" * 32), False),
    ],
)
def test_a_ring_knows_its_kin(other: KeyRing, kin: bool) -> None:
    assert (kin, kin) == (RING.is_kin(other), other.is_kin(RING))


class Watched:
    """A sealer whose clock stands still until it is told, and its file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"
        self.now = 100.0
        self.ring = KeyRing.create(self.path)
        self.sealer = RingSealer(self.ring, self.path, lambda: self.now)
        assert frozenset(self.ring.keys) == self.sealer.key_ids

    def later(self) -> RingSealer:
        self.now += LOOK_EVERY_S
        return self.sealer


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_sealer_notices_a_changed_file(watched: Watched) -> None:
    grown = watched.ring.grown()
    grown.save(watched.path)

    assert frozenset(watched.ring.keys) == watched.sealer.key_ids  # it has looked a moment ago
    assert frozenset(grown.keys) == watched.later().key_ids
    assert watched.ring.active == watched.sealer.new_key().key_id

    grown.activated(grown.newest).save(watched.path)

    assert grown.newest == watched.later().new_key().key_id


def test_a_sealer_looks_at_once_for_a_key_that_it_lacks(watched: Watched) -> None:
    grown = watched.ring.grown()
    grown = grown.activated(grown.newest)
    grown.save(watched.path)
    made = RingSealer(grown).new_key()

    assert made.key == watched.sealer.unwrap(made.wrapped, made.key_id)


def test_a_key_that_was_taken_out_is_gone(watched: Watched) -> None:
    made = RingSealer(watched.ring).new_key()
    grown = watched.ring.grown()
    KeyRing(keys={grown.newest: grown.keys[grown.newest]}, active=grown.newest, subkey=grown.subkey).save(watched.path)

    assert frozenset({grown.newest}) == watched.later().key_ids
    with pytest.raises(KeyUnavailableError):
        watched.sealer.unwrap(made.wrapped, made.key_id)
    assert grown.newest == watched.sealer.new_key().key_id


def _lost(path: Path, _: KeyRing) -> None:
    path.unlink()


def _spoilt(path: Path, _: KeyRing) -> None:
    path.write_text("{}")


def _open_to_others(path: Path, ring: KeyRing) -> None:
    ring.grown().save(path)
    path.chmod(0o644)


def _foreign(path: Path, _: KeyRing) -> None:
    path.unlink()
    KeyRing.create(path)


@pytest.mark.parametrize("harm", [_lost, _spoilt, _open_to_others, _foreign])
def test_a_bad_file_leaves_the_ring_in_memory(watched: Watched, harm: Callable[[Path, KeyRing], None]) -> None:
    made = watched.sealer.new_key()

    harm(watched.path, watched.ring)

    assert frozenset(watched.ring.keys) == watched.later().key_ids
    assert watched.ring.active == watched.sealer.new_key().key_id
    assert made.key == watched.sealer.unwrap(made.wrapped, made.key_id)


def test_a_file_that_becomes_good_again_is_taken(watched: Watched) -> None:
    grown = watched.ring.grown()
    grown.save(watched.path)
    watched.path.chmod(0o644)
    assert frozenset(watched.ring.keys) == watched.later().key_ids

    watched.path.chmod(0o600)

    assert frozenset(grown.keys) == watched.later().key_ids


def test_an_older_copy_of_the_file_does_not_take_a_rotation_back(watched: Watched) -> None:
    grown = watched.ring.grown()
    grown.activated(grown.newest).save(watched.path)
    assert grown.newest == watched.later().new_key().key_id

    grown.save(watched.path)

    assert grown.newest == watched.later().new_key().key_id


def test_threads_that_seal_meanwhile_see_whole_rings(watched: Watched) -> None:
    """Each new key can be opened by the file as it is at the end; nobody meets half a ring."""
    sealer, made, failed = watched.sealer, list[WrappedKey](), list[Exception]()
    ended = threading.Event()

    def work() -> None:
        try:
            while not ended.is_set():
                watched.now += LOOK_EVERY_S  # each look is due
                made.append(sealer.new_key())
                sealer.unwrap(made[-1].wrapped, made[-1].key_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ring = watched.ring
    for _ in range(20):
        ring = ring.grown()
        ring.save(watched.path)
        ring = ring.activated(ring.newest)
        ring.save(watched.path)
    ended.set()
    for thread in threads:
        thread.join()

    assert [] == failed
    assert 2 <= len({key.key_id for key in made})
    assert {key.key for key in made} == {RingSealer(ring).unwrap(key.wrapped, key.key_id) for key in made}
