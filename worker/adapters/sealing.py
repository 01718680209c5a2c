"""Sealing with a key ring in a file: AES-256-GCM under one data key per run or record, wrapped by the ring (RFC 3394).

    KeyRingError             the ring's file cannot be used; the message names the file and the fault, never a key

Sealed bytes: one byte of format (that of `packing`), 12 bytes of nonce, ciphertext with its tag. The associated data is
the format, purpose, owner and index, each with its length before it, so that no two places share one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import os
import secrets
import stat
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from worker.adapters.key_file import create_file, replace_file
from worker.adapters.packing import MOST_BYTES, pack, unpack
from worker.ports.keeping import KeepingError
from worker.ports.sealing import KeyUnavailableError, SealBrokenError, SealingError, WrappedKey

__all__ = ["LOOK_EVERY_S", "KeyRing", "KeyRingError", "RingSealer", "check_value"]

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_RING_VERSION: Final = 1
_UNWRAPPED: Final = 1024
"""Data keys kept unwrapped: as many as a process drives runs."""
LOOK_EVERY_S: Final = 1.0
"""Seconds between two looks at the ring's file: a microsecond each, and soon enough for a rotation of seconds."""


class KeyRingError(KeepingError):
    """The key ring cannot be used. The message says which file and why."""

    def __init__(self, message: str) -> None:
        super().__init__("keys", message)


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: keys in base64 by their id."""

    version: int
    active: str
    keys: dict[str, str]
    subkey: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRing:
    """The keys that wrap data keys, by id, the oldest first, and the subkey of hashes, which is never rotated."""

    keys: Mapping[str, bytes]
    active: str
    subkey: bytes

    def __repr__(self) -> str:
        """Show no key."""
        return f"KeyRing(active={self.active!r}, ids={sorted(self.keys)!r})"

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a ring of one random key and write it for its owner alone, whole or not at all.

        Errors: `KeyRingError` when the file exists, even if it appeared this moment, or cannot be written.
        """
        keys = _new_key()
        ring = cls(keys=MappingProxyType(keys), active=next(iter(keys)), subkey=secrets.token_bytes(_KEY_BYTES))
        try:
            create_file(path, ring._encoded())
        except FileExistsError:
            raise KeyRingError(f"{path} exists already") from None
        except OSError as error:
            raise KeyRingError(f"{path} cannot be written ({type(error).__name__})") from None
        return ring

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a ring. Errors: `KeyRingError` when it is missing, readable by others, or not a ring."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read()
        except FileNotFoundError:
            raise KeyRingError(f"{path} is missing") from None
        except OSError as error:
            raise KeyRingError(f"{path} cannot be read ({type(error).__name__})") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyRingError(f"{path} is open to others than its owner; run: chmod 600 {path}")
        ring = cls._parse(data)
        if ring is None:
            raise KeyRingError(f"{path} is not a key ring")
        return ring

    def save(self, path: Path) -> None:
        """Replace the file, whole or not at all. Call with it `locked`. Errors: `KeyRingError`."""
        try:
            replace_file(path, self._encoded())
        except OSError as error:
            raise KeyRingError(f"{path} cannot be written ({type(error).__name__})") from None

    @property
    def newest(self) -> str:
        """Id of the key that was added last."""
        return list(self.keys)[-1]

    def grown(self) -> KeyRing:
        """Give a ring with one random key more, which is the newest and not active. Nothing is written."""
        return replace(self, keys=MappingProxyType({**self.keys, **_new_key()}))

    def activated(self, key_id: str) -> KeyRing:
        """Give the ring with this one of its keys active."""
        return replace(self, active=key_id)

    def at_least(self, key_id: str) -> KeyRing:
        """Give the ring with the newer one active of its active key and this one of its keys. Nobody ever goes back."""
        order = list(self.keys)
        return self if order.index(key_id) <= order.index(self.active) else self.activated(key_id)

    def is_kin(self, other: KeyRing) -> bool:
        """Tell whether both are of one installation: the same subkey, and no id that stands for two keys."""
        same = all(other.keys.get(name, key) == key for name, key in self.keys.items())
        return same and self.subkey == other.subkey

    def unwrapped(self, wrapped: bytes, key_id: str) -> bytes:
        """Give the plain data key. Errors: `KeyUnavailableError`, `SealBrokenError`."""
        ring_key = self.keys.get(key_id)
        if ring_key is None:
            raise KeyUnavailableError(key_id)
        try:
            return aes_key_unwrap(ring_key, wrapped)
        except (InvalidUnwrap, ValueError):
            raise SealBrokenError("key") from None

    def wrapped(self, key: bytes) -> bytes:
        """Wrap a data key under the active key."""
        return aes_key_wrap(self.keys[self.active], key)

    @classmethod
    def _parse(cls, data: bytes) -> Self | None:
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            keys = {name: base64.b64decode(key, validate=True) for name, key in stored.keys.items()}
            subkey = base64.b64decode(stored.subkey, validate=True)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            return None
        sound = stored.version == _RING_VERSION and stored.active in keys
        if not sound or any(len(key) != _KEY_BYTES for key in (*keys.values(), subkey)):
            return None
        return cls(keys=MappingProxyType(keys), active=stored.active, subkey=subkey)

    def _encoded(self) -> bytes:
        keys = {name: base64.b64encode(key).decode() for name, key in self.keys.items()}
        subkey = base64.b64encode(self.subkey).decode()
        stored = _Stored(version=_RING_VERSION, active=self.active, keys=keys, subkey=subkey)
        return msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"


def _new_key() -> dict[str, bytes]:
    return {f"k-{secrets.token_hex(4)}": secrets.token_bytes(_KEY_BYTES)}


def check_value(key: bytes) -> str:
    """Give a value by which a key is recognised and that tells nothing of it: HMAC-SHA-256 of a fixed text, in hex."""
    return hmac.new(key, b"regate check value", hashlib.sha256).hexdigest()


class RingSealer:
    """The port `Sealer` with a `KeyRing`.

    With the ring's `path` it notices a changed file by itself, so that no process need be started anew for a rotation.
    """

    def __init__(
        self, ring: KeyRing, path: Path | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ring = ring
        self._path = path
        self._monotonic = monotonic
        self._look_at = -math.inf
        self._seen: tuple[int, int, int] | None = None
        self._unwrapped: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._guard = threading.Lock()
        self._looking = threading.Lock()

    @property
    def key_ids(self) -> frozenset[str]:
        """See the port."""
        return frozenset(self._current().keys)

    def new_key(self) -> WrappedKey:
        """See the port."""
        ring = self._current()
        key = secrets.token_bytes(_KEY_BYTES)
        wrapped = ring.wrapped(key)
        self._remember(ring.active, wrapped, key)
        return WrappedKey(key=key, wrapped=wrapped, key_id=ring.active)

    def unwrap(self, wrapped: bytes, key_id: str) -> bytes:
        """See the port."""
        with self._guard:
            known = self._unwrapped.get((key_id, wrapped))
            if known is not None:
                self._unwrapped.move_to_end((key_id, wrapped))
                return known
        ring = self._current()
        if key_id not in ring.keys:
            ring = self._current(at_once=True)  # it may have been added since the last look
        key = ring.unwrapped(wrapped, key_id)
        self._remember(key_id, wrapped, key)
        return key

    def seal(self, key: bytes, purpose: str, owner: str, index: str, data: bytes) -> bytes:
        """See the port. Errors: `SealingError` for more than 64 MiB."""
        if len(data) > MOST_BYTES:
            raise SealingError(f"more than {MOST_BYTES} bytes cannot be sealed")
        form, data = pack(data)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return bytes((form,)) + nonce + AESGCM(key).encrypt(nonce, data, _place(form, purpose, owner, index))

    def open(self, key: bytes, purpose: str, owner: str, index: str, sealed: bytes) -> bytes:
        """See the port."""
        form = sealed[0] if sealed else 0
        nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            data = AESGCM(key).decrypt(nonce, ciphertext, _place(form, purpose, owner, index))
        except (InvalidTag, ValueError):
            raise SealBrokenError(purpose) from None
        unpacked = unpack(form, data)
        if unpacked is None:
            raise SealBrokenError(purpose)
        return unpacked

    def keyed_hash(self, purpose: str, data: bytes) -> str:
        """See the port."""
        return hmac.new(self._ring.subkey, _prefixed(purpose.encode()) + data, hashlib.sha256).hexdigest()

    def _current(self, *, at_once: bool = False) -> KeyRing:
        """Give the ring, having looked at its file within `LOOK_EVERY_S`."""
        if self._path is not None and (at_once or self._monotonic() >= self._look_at):
            with self._looking:
                if at_once or self._monotonic() >= self._look_at:
                    self._look_at = self._monotonic() + LOOK_EVERY_S
                    self._look(self._path)
        return self._ring

    def _look(self, path: Path) -> None:
        """Take what the file holds now, if it is another one, can be read, and is this installation's.

        Else the ring in memory stays: whoever works with it loses nothing by a file that was lost or spoilt.
        """
        try:
            found = path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return
            ring = KeyRing.load(path)
        except (OSError, KeyRingError):
            return
        self._seen = seen
        if ring.is_kin(self._ring):
            self._ring = ring.at_least(self._ring.active) if self._ring.active in ring.keys else ring

    def _remember(self, key_id: str, wrapped: bytes, key: bytes) -> None:
        with self._guard:
            self._unwrapped[key_id, wrapped] = key
            if len(self._unwrapped) > _UNWRAPPED:
                self._unwrapped.popitem(last=False)


def _place(form: int, purpose: str, owner: str, index: str) -> bytes:
    return bytes((form,)) + b"".join(_prefixed(part.encode()) for part in (purpose, owner, index))


def _prefixed(part: bytes) -> bytes:
    return struct.pack(">I", len(part)) + part
