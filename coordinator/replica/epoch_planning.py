"""Who belongs to the next epoch: one replica is added, promoted or removed.

Pure. The primary plans, from what it knows of the others, and refuses what would leave the cluster
without a quorum. The core demands that a change is one step (`coordinator.vsr.changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from coordinator.mux.catalog_types import BeginEpoch, ClusterMembers, EpochMember
from coordinator.vsr import epoch_of, view_in
from coordinator.vsr.membership import EPOCH_MAX
from coordinator.vsr.quorum import QUORUMS
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import PEER_ADDRESS_BYTES_MAX, STANDBYS_MAX
from viewstamp.wildcard_addresses import is_wildcard

VOTERS_MAX: Final = max(QUORUMS)
# A standby whose last report is further behind has to catch up before it gets a vote.
PROMOTION_LAG_OPS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """What a replica told lately: whether it takes part, how far it is, and its directory.

    `lacks_vote`: it lost its disk and asks for its vote, which takes a quorum without it.
    """

    is_normal: bool
    commit: int
    disk_id: bytes
    lacks_vote: bool = False


@dataclass(frozen=True, slots=True)
class EpochView:
    """What the primary goes by: the present members, how far it is itself, and whom it hears."""

    members: ClusterMembers
    primary: int
    commit: int
    seen: Mapping[int, SeenReplica]

    def is_there(self, replica: int) -> bool:
        """Return whether a replica takes part now, with the vote that it has."""
        seen = self.seen.get(replica)
        counts = seen is not None and seen.is_normal and not seen.lacks_vote
        return replica == self.primary or counts

    def progress(self, replica: int) -> int:
        """Return up to which op a replica is known to have the log; -1 if it was not heard."""
        if replica == self.primary:
            return self.commit
        seen = self.seen.get(replica)
        return -1 if seen is None else seen.commit


def addition(view: EpochView, address: str) -> tuple[int, BeginEpoch | None]:
    """Return the id of a new standby at an address, and the epoch in which it is one.

    A replica that has the address already is answered with, and no epoch. Raises Refusal.
    """
    check_peer_address(address)
    members = view.members
    for member in members.voters + members.standbys:
        if member.peer_address == address:
            return member.replica_id, None
    if len(members.standbys) >= STANDBYS_MAX:
        raise _at_limit("standbys", STANDBYS_MAX)
    added = members.next_replica_id
    standbys = (*members.standbys, EpochMember(added, address))
    return added, _next(view, members.voters, standbys, added + 1)


def promotion(view: EpochView, replica: int) -> BeginEpoch | None:
    """Return the epoch in which a standby has a vote; None if it has one. Raises Refusal."""
    members = view.members
    if replica in _ids(members.voters):
        return None
    member = _named(members.standbys, replica)
    if len(members.voters) >= VOTERS_MAX:
        raise _at_limit("voters", VOTERS_MAX)
    seen = view.seen.get(replica)
    _check_ready(view, replica, seen)
    assert seen is not None
    voters = (*members.voters, replace(member, disk_id=seen.disk_id))
    _check_quorum(view, voters, "promoted")
    standbys = tuple(each for each in members.standbys if each.replica_id != replica)
    return _next(view, voters, standbys, members.next_replica_id)


def removal(view: EpochView, replica: int) -> BeginEpoch | None:
    """Return the epoch without a replica; None if it was removed before. Raises Refusal."""
    members = view.members
    if replica in _ids(members.standbys):
        standbys = tuple(each for each in members.standbys if each.replica_id != replica)
        return _next(view, members.voters, standbys, members.next_replica_id)
    if replica not in _ids(members.voters) and replica < members.next_replica_id:
        return None
    _named(members.voters, replica)
    voters = tuple(each for each in members.voters if each.replica_id != replica)
    if not voters:
        raise Refusal(
            Reason.REASON_NO_OTHER_REPLICA,
            f"replica {replica} is the only one with a vote: promote another one first",
            replica_id=replica,
        )
    _check_quorum(view, voters, "removed")
    return _next(view, voters, members.standbys, members.next_replica_id)


def check_peer_address(address: str) -> None:
    """Raise Refusal INVALID_OPTION unless replicas can connect to an address."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    is_host = host != "unix" and host.isprintable() and " " not in host and not is_wildcard(address)
    if is_port and is_host and len(address.encode()) <= PEER_ADDRESS_BYTES_MAX:
        return
    raise Refusal(
        Reason.REASON_INVALID_OPTION,
        f"peer_address is {address[:PEER_ADDRESS_BYTES_MAX]!r}: give HOST:PORT of at most"
        f" {PEER_ADDRESS_BYTES_MAX} bytes, the --peer-listen of the new replica as the others reach"
        " it",
        option="peer_address",
    )


def _check_ready(view: EpochView, replica: int, seen: SeenReplica | None) -> None:
    why = None
    if seen is None:
        why = "is not heard: start its process, or look at its log"
    elif not seen.is_normal:
        why = "does not follow yet: wait, or look at its log"
    elif view.commit - seen.commit > PROMOTION_LAG_OPS_MAX:
        behind = view.commit - seen.commit
        why = f"is {behind} entries behind, more than {PROMOTION_LAG_OPS_MAX}: wait"
    elif not seen.disk_id:
        why = "does not tell of its data directory: start a newer build"
    if why is not None:
        raise Refusal(
            Reason.REASON_REPLICA_NOT_READY, f"replica {replica} {why}", replica_id=replica
        )


def _check_quorum(view: EpochView, voters: tuple[EpochMember, ...], done: str) -> None:
    """Raise Refusal unless the voters who are there can commit, and elect a primary."""
    ids = _ids(voters)
    there = [replica for replica in ids if view.is_there(replica)]
    quorums = QUORUMS[len(ids)]
    needed = max(quorums.replication, quorums.view_change)
    if len(there) >= needed:
        return
    away = ", ".join(str(each) for each in ids if each not in there)
    raise Refusal(
        Reason.REASON_QUORUM_AT_RISK,
        f"{len(there)} of {len(ids)} voters would be there once it is {done}, and {needed} are"
        f" needed: start these replicas first, or remove them: {away}",
        voters=len(ids),
        there=len(there),
        needed=needed,
        away=away,
    )


def _next(
    view: EpochView,
    voters: tuple[EpochMember, ...],
    standbys: tuple[EpochMember, ...],
    next_replica_id: int,
) -> BeginEpoch:
    """Return the next epoch: led by this primary, or else by who is furthest."""
    ids = _ids(voters)
    epoch = epoch_of(view.members.first_view) + 1
    if epoch > EPOCH_MAX:
        raise Refusal(
            Reason.REASON_REPLICA_LIMIT,
            f"the cluster has had {EPOCH_MAX} changes of members, the most that are possible:"
            " restore it into a new cluster, which begins anew",
            limit=EPOCH_MAX,
        )

    def standing(replica: int) -> tuple[bool, bool, int, int]:
        return replica == view.primary, view.is_there(replica), view.progress(replica), -replica

    first_view = view_in(epoch, ids.index(max(ids, key=standing)))
    return BeginEpoch(first_view, voters, standbys, next_replica_id)


def _ids(members: tuple[EpochMember, ...]) -> tuple[int, ...]:
    return tuple(each.replica_id for each in members)


def _named(members: tuple[EpochMember, ...], replica: int) -> EpochMember:
    """Return a member. Raises Refusal."""
    for member in members:
        if member.replica_id == replica:
            return member
    raise Refusal(
        Reason.REASON_REPLICA_NOT_FOUND,
        f"the cluster has no replica {replica}: see `viewstamp replica list`",
        replica_id=replica,
    )


def _at_limit(what: str, limit: int) -> Refusal:
    return Refusal(
        Reason.REASON_REPLICA_LIMIT,
        f"the cluster has {limit} {what} already: remove one first",
        limit=limit,
    )
