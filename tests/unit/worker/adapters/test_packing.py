"""Packing: small documents become much smaller, what earlier builds packed is read, the dictionary never changes."""

from __future__ import annotations

import hashlib
import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from worker.adapters.packing import FIRST_DICTIONARY, pack, unpack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENTRY = (
    b'{"version":1,"event":{"type":"tool_returned","nonce":"67f6afe19abf021f4ec3466273d94e7c","elapsed_ms":44,'
    b'"policy":2,"call":"c1","result":"Order 7 is on its way."},"commands":[{"kind":"call_model",'
    b'"id":"cc10bdca2693cd3b7bf0462c7d08976b","target":1,"model":"some-model","length":5,'
    b'"hash":"a0bc18d1ee84b5ba03de46519f8a2327bcbfebdd2b4d8ac23a2bfd75cc5b3c96",'
    b'"key":"892e4a5a52a55ccd3d132f0240e2b0fc"}],"decisions":[{"verdict":"permitted","configuration":"support",'
    b'"policy":2,"data_class":"internal_configuration","source":"skill \\"refunds\\"","zone":"external_eu",'
    b'"provider":"eu","ceiling":"internal_configuration"}]}'
)


@given(st.binary(max_size=2000) | st.text(max_size=2000).map(str.encode) | st.integers(0, 500).map(lambda n: ENTRY[:n]))
def test_what_is_packed_unfolds_to_what_it_was_and_never_grows(data: bytes) -> None:
    form, packed = pack(data)

    assert data == unpack(form, packed)
    assert len(packed) <= len(data)


def test_an_entry_takes_two_thirds_of_what_it_takes_without_the_dictionary() -> None:
    assert len(pack(ENTRY)[1]) < 0.7 * len(zstd.compress(ENTRY, level=1))


def test_the_dictionary_is_what_it_was() -> None:
    # What was packed against another one cannot be read. A better one would be a further form beside this.
    assert (
        "0225dceb0496eec418920b5a78f551dd54ae4c262750cf543126e72da48da2c6"
        == hashlib.sha256(FIRST_DICTIONARY).hexdigest()
    )


def test_what_earlier_builds_packed_is_read() -> None:
    assert ENTRY == unpack(2, zstd.compress(ENTRY, level=1))
    assert ENTRY == unpack(1, ENTRY)


def test_threads_do_not_share_a_compressor() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        data = ENTRY * (number + 1)
        wrong.extend(number for _ in range(200) if unpack(*pack(data)) != data)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == wrong
