"""Whom a replica asks for a damaged snapshot before it starts: the members of its superblock."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.app import snapshot_repair
from coordinator.peers.peers import PeersConfig
from coordinator.peers.settings import PeerSettings
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.vsr import view_in
from viewstamp.format.epoch_members import EpochMembers
from viewstamp.format.superblock import SuperblockState

CLUSTER = b"c" * 16
LATER = EpochMembers(view_in(2, 0), (2, 5), (6,))


def state(replica: int, count: int, members: EpochMembers | None) -> SuperblockState:
    """Return the superblock of a replica."""
    view = 0 if members is None else members.first_view
    return SuperblockState(CLUSTER, replica, count, view, view, 9, 4, members=members)


def configuration(replica: int, *others: int) -> Any:
    """Return the configuration of a replica whose flags name others; its counts are unknown."""
    addresses = {each: f"host-{each}:1" for each in others}
    return SimpleNamespace(
        replica_id=replica,
        replica_count=0,
        peers=PeerSettings("host:1", addresses, None, joins=True),
        data_directory=Path("nowhere"),
    )


@pytest.mark.parametrize(
    ("replica", "count", "members", "named", "asked"),
    [
        (5, 3, LATER, (2, 6), (2, 6)),
        # Those that flags name and that were removed since are not asked.
        (5, 3, LATER, (0, 1, 2), (2,)),
        (1, 3, None, (0, 2), (0, 2)),
    ],
)
async def test_the_members_of_the_superblock_are_asked(
    monkeypatch: pytest.MonkeyPatch,
    replica: int,
    count: int,
    members: EpochMembers | None,
    named: tuple[int, ...],
    asked: tuple[int, ...],
) -> None:
    """Flags say where they are; the count of the founding says nothing any more."""
    found: list[PeersConfig] = []

    async def noted(damaged: Any, peers: PeersConfig, *_: Any) -> None:
        found.append(peers)

    monkeypatch.setattr(snapshot_repair, "mend", noted)
    damaged: Any = SimpleNamespace(state=state(replica, count, members))
    await snapshot_repair.mended(configuration(replica, *named), damaged)
    (peers,) = found
    assert tuple(each for each in peers.others if each in peers.settings.addresses) == asked
    assert (peers.replica_count, peers.members.epoch) == (count, 2 if members else 0)


@pytest.mark.parametrize(("replica", "count", "members"), [(0, 1, None), (5, 3, LATER)])
async def test_who_has_nobody_to_ask_says_what_is_damaged(
    replica: int, count: int, members: EpochMembers | None
) -> None:
    """A lone replica that listens for others, and one whose flags name nobody who is left."""
    why = NoIntactCopy("layer", ())
    damaged: Any = SimpleNamespace(state=state(replica, count, members), why=why)
    with pytest.raises(NoIntactCopy):
        await snapshot_repair.mended(
            configuration(replica, 0, 1) if count > 1 else configuration(replica), damaged
        )
