"""What waiting reads may hold: each caller, and all of them together."""

from __future__ import annotations

from typing import Final

from coordinator.mux import types as mux_types
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import (
    KIB,
    READ_INDEXES_WAITING_MAX,
    READ_RETRY_DELAY_MS,
    READS_WAITING_BYTES_MAX,
    READS_WAITING_PER_CALLER_BYTES_MAX,
    READS_WAITING_PER_CALLER_MAX,
)

# Reads without a user: logins, and this replica's own questions.
NOBODY: Final = -1
# Reads of several callers, each of which has a small part: signs of life. Below are their keys, by
# token.
_SEVERAL: Final = -2
# This many bytes of requests weigh as much as a call.
BYTES_PER_CALL: Final = 4 * KIB


def caller_of(read: mux_types.Read) -> int:
    """Return who shares a turn and what may wait: a user, over all sessions and connections.

    A read of several callers has both for itself. With one turn for all such reads, a few busy
    users would let members time out; with one share for their bytes, a few members all others. At
    most one begins for each method in MEMBER_GATHERING_MS, and it ends at the deadline, so there
    are never many.
    """
    if read.callers:
        return _SEVERAL - read.token
    return NOBODY if read.user_id is None else read.user_id


def weight_of(read: mux_types.Read) -> int:
    """Return how much of a group a read takes, in calls."""
    calls = sum(span.count for span in read.spans)
    return max(1, calls, bytes_of(read) // BYTES_PER_CALL)


def bytes_of(read: mux_types.Read) -> int:
    """Return the bytes of a read's requests."""
    return sum(len(span.items) for span in read.spans)


class ReadShares:
    """Counts unanswered reads, and their bytes."""

    def __init__(self) -> None:
        """Begin with none."""
        self._count = 0
        self._bytes = 0
        # By caller; callers without reads are removed.
        self._counts: dict[int, int] = {}
        self._bytes_of: dict[int, int] = {}

    def take(self, read: mux_types.Read) -> None:
        """Count a read. Raises Refusal OVERLOADED if its caller, or all, have too much waiting."""
        caller, size = caller_of(read), bytes_of(read)
        count, held = self._counts.get(caller, 0), self._bytes_of.get(caller, 0)
        if (
            count >= READS_WAITING_PER_CALLER_MAX
            or held + size > READS_WAITING_PER_CALLER_BYTES_MAX
        ):
            raise _too_many("of yours", count, held)
        if self._count >= READ_INDEXES_WAITING_MAX or self._bytes + size > READS_WAITING_BYTES_MAX:
            raise _too_many("of all callers", self._count, self._bytes)
        self._counts[caller], self._bytes_of[caller] = count + 1, held + size
        self._count, self._bytes = self._count + 1, self._bytes + size

    def give_back(self, read: mux_types.Read) -> None:
        """Stop counting a read."""
        caller, size = caller_of(read), bytes_of(read)
        self._count, self._bytes = self._count - 1, self._bytes - size
        self._counts[caller] -= 1
        self._bytes_of[caller] -= size
        if not self._counts[caller]:
            del self._counts[caller], self._bytes_of[caller]


def _too_many(whose: str, count: int, held: int) -> Refusal:
    return Refusal(
        Reason.REASON_OVERLOADED,
        f"{count} reads {whose} with {held} bytes are waiting already: try again",
        waiting=count,
        bytes=held,
        retry_delay_ms=READ_RETRY_DELAY_MS,
    )
