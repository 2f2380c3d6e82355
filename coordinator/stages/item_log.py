"""What a service was told since its base, to tell it again to a restarted one.

The base is the empty state at first, and later the section of the snapshot from which a restart of
the service begins. When the base moves to a cut, everything up to that cut is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2

OUTCOME_DIGEST_BYTES = 16


class ReplayDivergedError(Exception):
    """A service answered a batch differently from the first time; the message says which."""


@dataclass(slots=True)
class LoggedBatch:
    """One batch as sent, and the digest of its answer once there is one."""

    sequence: int
    message: bytes
    outcome_digest: bytes | None = None


class ItemLog:
    """Batches by sequence, without a gap from the base on; entered before they are sent.

    Beyond `bytes_max` everything is dropped: the log can then no longer restart its service, and
    the coordinator has to replay its journal into new ones instead. The log begins again behind the
    next cut, and is whole once the base has moved there. `tell` is told whether it is dropped,
    whenever that changes.
    """

    def __init__(
        self, bytes_max: int | None = None, tell: Callable[[bool], None] = lambda _: None
    ) -> None:
        self.bytes = 0
        self.dropped = False
        self.base_sequence = 0
        """The last batch that the base includes; the first entry is the next."""
        self._entries: deque[LoggedBatch] = deque()
        self._bytes_max = limits.ITEM_LOG_BYTES_MAX if bytes_max is None else bytes_max
        self._tell = tell
        self._last_sequence = 0
        # Generation of each cut behind the base -> sequence of its batch.
        self._cuts: dict[int, int] = {}
        # Whether new batches are kept: always, unless the log was dropped and no cut has come
        # since.
        self._keeps = True
        self._first_kept = 1

    def append(self, sequence: int, message: bytes, cut_generation: int = 0) -> LoggedBatch:
        """Enter a batch and return its entry; `cut_generation` is that of a cut it holds."""
        expected = self._last_sequence + 1
        if sequence != expected:
            raise ValueError(f"batch {sequence} entered where {expected} is next")
        self._last_sequence = sequence
        entry = LoggedBatch(sequence, message)
        if self._keeps:
            self._entries.append(entry)
            self.bytes += len(message)
        if cut_generation:
            self._cut(cut_generation, sequence)
        if self.bytes > self._bytes_max:
            self._drop()
        return entry

    def _cut(self, generation: int, sequence: int) -> None:
        self._cuts[generation] = sequence
        if self.dropped:
            self._entries.clear()
            self.bytes = 0
            self._keeps = True
            self._first_kept = sequence + 1

    def move_base(self, generation: int) -> bool:
        """Forget everything up to the cut of `generation`; return whether there was such a cut.

        From now on the base is that generation's section.
        """
        sequence = self._cuts.get(generation)
        if sequence is None:
            return False
        self._cuts = {g: at for g, at in self._cuts.items() if at > sequence}
        self.base_sequence = sequence
        if self._keeps and self._first_kept <= sequence + 1:
            self._set_dropped(False)
            while self._entries and self._entries[0].sequence <= sequence:
                self.bytes -= len(self._entries.popleft().message)
        return True

    def _drop(self) -> None:
        self._entries.clear()
        self.bytes = 0
        self._keeps = False
        self._set_dropped(True)

    def _set_dropped(self, dropped: bool) -> None:
        if self.dropped is not dropped:
            self.dropped = dropped
            self._tell(dropped)

    def __iter__(self) -> Iterator[LoggedBatch]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def settle(entry: LoggedBatch, reply: domain_service_pb2.BatchReply) -> bool:
    """Record the answer to an entry, without its notices; return whether it is the first.

    Raises ReplayDivergedError if an earlier answer to the same batch was different.
    """
    reply.ClearField("notices")  # hints: another build may give others
    digest = blake3(reply.SerializeToString()).digest(length=OUTCOME_DIGEST_BYTES)
    if entry.outcome_digest is None:
        entry.outcome_digest = digest
        return True
    if entry.outcome_digest != digest:
        raise ReplayDivergedError(
            f"batch {entry.sequence} was answered {entry.outcome_digest.hex()} before the restart"
            f" and {digest.hex()} in the replay"
        )
    return False
