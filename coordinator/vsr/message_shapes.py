"""Whether the log in a vote or a StartView is whole: judged on receipt, before anything counts it.

A log with a hole, or one whose entries do not follow each other, is that of a defect or of bad
memory. If such a vote counted, each primary-elect would find the contradiction while it chooses the
log, and end, one after the other. All sums here are bounded by the length of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from coordinator.vsr.messages import DoViewChangeMessage, PrepareHeader, StartViewMessage


def is_whole(message: DoViewChangeMessage | StartViewMessage) -> bool:
    """Return whether the log in a vote or a StartView has no hole and hangs together."""
    if isinstance(message, DoViewChangeMessage):
        return is_whole_vote(message)
    return is_whole_start_view(message)


def is_whole_vote(message: DoViewChangeMessage) -> bool:
    """Return whether a vote accounts once for each op from its commit point to its head."""
    above = [header.op for header in message.headers if header.op > message.commit]
    is_from_commit = all(header.op >= message.commit for header in message.headers)
    accounted = sorted([*above, *message.faulty])
    return (
        message.log_view < message.view
        and is_from_commit
        and is_chain(message.headers)
        and is_span(accounted, message.commit, message.head_op)
    )


def is_whole_start_view(message: StartViewMessage) -> bool:
    """Return whether a StartView has each entry after its commit point up to its head."""
    ops = [header.op for header in message.headers]
    return is_chain(message.headers) and is_span(ops, message.commit, message.head_op)


def is_span(ops: Sequence[int], after_op: int, head_op: int) -> bool:
    """Return whether `ops` are exactly those from `after_op + 1` to `head_op`, in order."""
    is_long_enough = len(ops) == head_op - after_op
    return is_long_enough and list(ops) == list(range(after_op + 1, head_op + 1))


def is_chain(headers: Sequence[PrepareHeader]) -> bool:
    """Return whether entries are in op order, and name the one before as parent if it is there."""
    return all(
        later.op > earlier.op
        and later.view >= earlier.view
        and (later.op > earlier.op + 1 or later.parent == earlier.checksum)
        for earlier, later in pairwise(headers)
    )
