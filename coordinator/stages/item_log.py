"""What a service was told since its state was empty, so that a restarted one can be told again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from viewstamp import limits

OUTCOME_DIGEST_BYTES = 16


class ReplayDivergedError(Exception):
    """A service answered a batch differently from the first time; the message says which."""


@dataclass(slots=True)
class Entry:
    """One batch as sent, and the digest of its answer once there is one."""

    sequence: int
    message: bytes
    outcome_digest: bytes | None = None


class ItemLog:
    """Batches by sequence, from 1 without a gap; entered before they are sent.

    Beyond `bytes_max` everything is dropped: the log can then no longer restart its service, and
    the coordinator has to replay its journal into fresh ones instead.
    """

    def __init__(self, bytes_max: int = limits.ITEM_LOG_BYTES_MAX) -> None:
        self._entries: list[Entry] = []
        self._bytes_max = bytes_max
        self.bytes = 0
        self.dropped = False

    def append(self, sequence: int, message: bytes) -> Entry:
        """Enter a batch and return its entry."""
        entry = Entry(sequence, message)
        if self.dropped:
            return entry
        expected = len(self._entries) + 1
        if sequence != expected:
            raise ValueError(f"batch {sequence} entered where {expected} is next")
        self._entries.append(entry)
        self.bytes += len(message)
        if self.bytes > self._bytes_max:
            self._drop()
        return entry

    def _drop(self) -> None:
        self._entries.clear()
        self.bytes = 0
        self.dropped = True

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def settle(entry: Entry, reply: bytes) -> bool:
    """Record the answer to an entry; return whether it is the first.

    Raises ReplayDivergedError if an earlier answer to the same batch was different.
    """
    digest = blake3(reply).digest(length=OUTCOME_DIGEST_BYTES)
    if entry.outcome_digest is None:
        entry.outcome_digest = digest
        return True
    if entry.outcome_digest != digest:
        raise ReplayDivergedError(
            f"batch {entry.sequence} was answered {entry.outcome_digest.hex()} before the restart"
            f" and {digest.hex()} in the replay"
        )
    return False
