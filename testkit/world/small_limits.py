"""Queues, shares, windows and slices of one run, so small that its few callers come to their ends.

All replicas of a run have the same ones. What callers are told then, they have to live with in any
cluster: that they ask for too much at once. Slices of work are one step long, so that whatever may
be interrupted is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock

from coordinator.base.slices import TimeSlice
from coordinator.gateway import answers, principal, snapshot_streams, status_digests
from coordinator.peers import files, link
from coordinator.peers.outbox import Outbox
from coordinator.replica import read_shares
from coordinator.snapshot import layer_parts, layer_sources
from services.runtime import patience
from testkit.world import workload
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason


class SmallLimit(NamedTuple):
    """Where a limit is, what it is called there, and what it is in such a run."""

    owner: Any
    name: str
    value: Any


def _is_over(own: TimeSlice) -> bool:
    """Whether somebody has looked before: each slice is long enough for one step."""
    has_looked: bool = vars(own).get("has_looked", False)
    vars(own)["has_looked"] = True
    return has_looked


LIMITS: Final = (
    SmallLimit(limits, "COMMANDS_UNDER_WAY_PER_USER_MAX", 5),
    SmallLimit(limits, "COMMANDS_UNDER_WAY_MAX", 8),
    SmallLimit(limits, "READS_UNDER_WAY_PER_USER_MAX", 4),
    SmallLimit(limits, "READS_UNDER_WAY_MAX", 6),
    SmallLimit(limits, "QUOTA_USERS_MAX", 1),
    SmallLimit(limits, "COMMANDS_IN_TURN", 2),
    SmallLimit(limits, "SUBMIT_STREAMS_PER_USER_MAX", 12),
    SmallLimit(limits, "DEFERRED_QUERIES_MAX", 1),
    SmallLimit(limits, "READS_TOGETHER_MAX", 2),
    SmallLimit(TimeSlice, "is_over", property(_is_over)),
    SmallLimit(patience, "SLICE_NS", 0),
    SmallLimit(status_digests, "SLICE_NS", -1),
    SmallLimit(status_digests, "STATUS_DIGESTS_PER_USER_MAX", 1),
    SmallLimit(snapshot_streams, "SNAPSHOT_STREAMS_MAX", 1),
    SmallLimit(principal, "CACHED_TOKENS_MAX", 1),
    SmallLimit(answers, "ANSWERS_DUE_BYTES_MAX", 64),
    SmallLimit(answers, "PACKED_ANSWERS_BYTES_MAX", 64),
    SmallLimit(files, "FILES_OPEN_MAX", 1),
    SmallLimit(layer_parts, "PART_BYTES_MIN", 256),
    SmallLimit(layer_sources, "FETCHES_MAX", 1),
    SmallLimit(link, "Outbox", partial(Outbox, messages_max=16)),
    SmallLimit(read_shares, "READS_WAITING_PER_CALLER_MAX", 3),
    SmallLimit(read_shares, "READ_INDEXES_WAITING_MAX", 4),
)
TOO_MUCH: Final = frozenset({Reason.REASON_QUOTA_EXCEEDED, Reason.REASON_OVERLOADED})
_OF_ONE_RUN: Final = 7


@contextmanager
def small_limits(seed: int) -> Iterator[None]:
    """Have some limits be small until the block ends."""
    chosen = Random(f"small limits {seed}").sample(LIMITS, _OF_ONE_RUN)
    # Judged callers then live with what they would report as a defect in any other run.
    lived_with = SmallLimit(workload, "NOT_SERVED", workload.NOT_SERVED | TOO_MUCH)
    with ExitStack() as stack:
        for each in (*chosen, lived_with):
            stack.enter_context(mock.patch.object(each.owner, each.name, each.value))
        yield
