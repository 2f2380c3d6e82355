"""State digests: one number that two replicas agree on exactly if their states agree.

The digest of a section is the sum modulo 2**256 of one 256-bit BLAKE3 hash per entity. A sum does
not depend on the order of its terms, and a term can be subtracted again. So a change updates a
section's digest (minus the old value, plus the new one), and the digest does not depend on how the
section is split into layers.

The hash of an entity covers, without gaps (integers little-endian):

====== ============== ===========================================
offset size           field
====== ============== ===========================================
0      4              kind, the entity's kind number in its section
4      8              length of the key in bytes (K)
12     8              length of the canonical bytes (C)
20     K              key
20+K   C              canonical bytes: the entity's pinned encoding
====== ============== ===========================================

Both lengths come first, so no two different entities can be framed into the same bytes. The 32
hash bytes are read as a big-endian integer; a digest prints as 64 hexadecimal digits, so the
digest of a section with one entity prints exactly as that entity's BLAKE3 hash.

The sum guards against error, not against an adversary who may choose many entities: such sums can
be steered with great effort. Files that cross a trust boundary are addressed by plain BLAKE3.
"""

from __future__ import annotations

import struct

from blake3 import blake3

DIGEST_BYTES = 32
DIGEST_MODULUS = 1 << (8 * DIGEST_BYTES)

_FRAME = struct.Struct("<IQQ")
_KIND_MAX = (1 << 32) - 1


def entity_digest(kind: int, key: bytes, canonical: bytes) -> int:
    """Hash one entity to an integer below 2**256; raises ValueError for a kind outside 32 bits."""
    if not 0 <= kind <= _KIND_MAX:
        raise ValueError(f"entity kind {kind} is outside 0..{_KIND_MAX}")
    frame = _FRAME.pack(kind, len(key), len(canonical))
    return int.from_bytes(blake3(frame + key + canonical).digest(), "big")


class StateDigest:
    """A running state digest. The digest of no entities is 0."""

    __slots__ = ("_value",)

    def __init__(self, value: int = 0) -> None:
        """Start from `value`, a digest as `value` gave it; raises ValueError outside 256 bits."""
        if not 0 <= value < DIGEST_MODULUS:
            raise ValueError(f"a state digest lies in 0..2**256-1, not {value}")
        self._value = value

    @classmethod
    def from_bytes(cls, digest: bytes) -> StateDigest:
        """Read back what `to_bytes` wrote; raises ValueError unless it is exactly 32 bytes."""
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"a state digest is {DIGEST_BYTES} bytes, not {len(digest)}")
        return cls(int.from_bytes(digest, "big"))

    @property
    def value(self) -> int:
        """The digest as an integer below 2**256."""
        return self._value

    def add(self, kind: int, key: bytes, canonical: bytes) -> None:
        """Count one entity in."""
        self._value = (self._value + entity_digest(kind, key, canonical)) % DIGEST_MODULUS

    def remove(self, kind: int, key: bytes, canonical: bytes) -> None:
        """Count one entity out; `canonical` must be the bytes that it was counted in with."""
        self._value = (self._value - entity_digest(kind, key, canonical)) % DIGEST_MODULUS

    def to_bytes(self) -> bytes:
        """The digest as 32 big-endian bytes."""
        return self._value.to_bytes(DIGEST_BYTES, "big")

    def hexdigest(self) -> str:
        """The digest as 64 hexadecimal digits."""
        return self.to_bytes().hex()

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, StateDigest) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # A running digest is mutable.

    def __repr__(self) -> str:
        return f"StateDigest({self.hexdigest()})"
