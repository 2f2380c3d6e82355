"""A chain of digests over what applying the log led to, for comparison between replicas.

    d(op) = digest(d(op - 1), op, what applying op led to)     d(cut) = digest(cut)

The chain begins anew at each cut. A cut is an entry of the log, so it lies at the same op on every
replica, and a replica that restarts from a generation can continue the chain behind its cut without
any help. Before the first cut the chain begins at op 0. Two replicas with one digest at one op have
been told the same by their state machines since the last cut.

`applied_answers` says what is digested. Another way to digest needs another field in the messages
between replicas, because replicas of two builds must agree on it.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Final

APPLIED_DIGEST_BYTES: Final = 16
# Digests are kept of so many ops: 64 KiB of memory, and some seconds of the fastest load.
APPLIED_DIGESTS_KEPT: Final = 4_096
_OP_BYTES: Final = 8
_AT_CUT: Final = b"cut of a generation"


class AppliedDigests:
    """The digest of the last applied op, and those of the ops before it that are still kept."""

    def __init__(self, cut_op: int = 0, generation: int = 0) -> None:
        """Begin behind a cut, or before op 1."""
        self._ring = bytearray(APPLIED_DIGESTS_KEPT * APPLIED_DIGEST_BYTES)
        self._first_op = self._last_op = cut_op
        self._last_digest = b""
        # Op and generation of each cut at which a chain of the kept ops begins, ascending.
        self._cuts: deque[tuple[int, int]] = deque()
        self.begin(cut_op, generation)

    @property
    def last_op(self) -> int:
        """The last applied op."""
        return self._last_op

    def begin(self, cut_op: int, generation: int) -> None:
        """Begin the chain anew at a cut, the next op. Right behind a cut it may be repeated."""
        assert self._last_op <= cut_op <= self._last_op + 1, f"cut {cut_op} after {self._last_op}"
        if self._cuts and self._cuts[-1][0] == cut_op:
            self._cuts.pop()
        self._cuts.append((cut_op, generation))
        self._put(cut_op, _digest(_AT_CUT, cut_op, b""))

    def add(self, op: int, answer: bytes | bytearray) -> None:
        """Continue the chain with what applying the next op led to."""
        assert op == self._last_op + 1, f"op {op} after {self._last_op}"
        self._put(op, _digest(self._last_digest, op, answer))

    def at(self, op: int) -> bytes | None:
        """Return the digest of an op; None if it is not applied yet, or no longer kept."""
        oldest_op = max(self._first_op, self._last_op - APPLIED_DIGESTS_KEPT + 1)
        if not oldest_op <= op <= self._last_op:
            return None
        place = op % APPLIED_DIGESTS_KEPT * APPLIED_DIGEST_BYTES
        return bytes(self._ring[place : place + APPLIED_DIGEST_BYTES])

    def generation_at(self, op: int) -> int:
        """Return the generation at whose cut the chain of a kept op begins; 0 before the first."""
        return next(generation for cut_op, generation in reversed(self._cuts) if cut_op <= op)

    def op_to_tell(self, told_op: int) -> int:
        """Return the op whose digest is worth telling, if ops up to `told_op` were applied before.

        It is the roundest of the new ops, the one with the most zero bits at its end. Other
        replicas cut the log elsewhere into what is new to them. A multiple of a power of two that
        is at least the number of new ops is the roundest wherever it is new, so all replicas tell
        it, and any two of them can be compared at one op.

        A cut ends a chain: then the op before it is told, with which the chain ended. If no op is
        new, it is the last one.
        """
        last_op = self._last_op
        cut_op = self._cuts[-1][0]
        if told_op < cut_op and self.at(cut_op - 1) is not None:
            return cut_op - 1
        known_op = max(told_op, last_op - APPLIED_DIGESTS_KEPT)
        if known_op >= last_op:
            return last_op
        zero_bits = (known_op ^ last_op).bit_length() - 1
        return last_op >> zero_bits << zero_bits

    def _put(self, op: int, digest: bytes) -> None:
        place = op % APPLIED_DIGESTS_KEPT * APPLIED_DIGEST_BYTES
        self._ring[place : place + APPLIED_DIGEST_BYTES] = digest
        self._last_op, self._last_digest = op, digest
        while len(self._cuts) > 1 and self._cuts[1][0] <= op - APPLIED_DIGESTS_KEPT:
            self._cuts.popleft()


def _digest(before: bytes, op: int, answer: bytes | bytearray) -> bytes:
    place = before + op.to_bytes(_OP_BYTES, "little")
    hasher = blake2b(place, digest_size=APPLIED_DIGEST_BYTES)
    hasher.update(answer)
    return hasher.digest()
