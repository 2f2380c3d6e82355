"""Who leads a partition, from the messages that a watch brings. Pure.

The cluster keeps who may lead. Everybody derives from that and from the brokers who does, by the
same rule, and so comes to the same leader at the same revision. `services.streams.placement` has
the rule of the cluster, and a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from viewstamp.api.brokers.v1 import brokers_pb2


class PartitionLeader(NamedTuple):
    """Who leads a partition, 0 if nobody can, and since which revision that is certain."""

    broker_id: int
    leader_epoch: int


def leader_of(
    placement: brokers_pb2.Placement, brokers: Mapping[int, brokers_pb2.Broker]
) -> PartitionLeader:
    """Return who leads a partition: the first replica in sync that is not fenced.

    One that is drained leads only if no other can, and one whose storage is younger than the
    placement does not. A broker that is not among `brokers` counts as fenced.
    """
    able = [brokers[each] for each in keeping(placement, brokers) if not brokers[each].fenced]
    # False sorts before True, and of equal ones the first stays first.
    chosen = min(able, key=lambda broker: broker.draining, default=None)
    known = (brokers[each] for each in placement.replicas if each in brokers)
    epoch = max((placement.revision, *(broker.modified_revision for broker in known)))
    return PartitionLeader(0 if chosen is None else chosen.id, epoch)


def keeping(
    placement: brokers_pb2.Placement, brokers: Mapping[int, brokers_pb2.Broker]
) -> tuple[int, ...]:
    """Return the replicas that have all that was acknowledged, in order of preference.

    One that was in sync with another storage than it has now has lost it.
    """
    return tuple(
        each
        for each in placement.replicas
        if each in placement.in_sync
        and each in brokers
        and brokers[each].storage_revision <= placement.revision
    )
