"""Bugs in the shell of membership, each with the story that ends badly with it.

Those of the checkers that watch epochs have seeds, as other bugs do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

from coordinator import vsr
from coordinator.app import composition, core, joining
from coordinator.app.config import Config
from coordinator.app.epochs import Epochs
from coordinator.base.roster import Roster
from coordinator.journal import Journal
from coordinator.mux import catalog_types as catalog
from coordinator.peers import link
from coordinator.peers.hello import DISK_ID_BYTES
from coordinator.peers.introduction import Introduction
from coordinator.replica import epoch_planning
from coordinator.replica.epoch_changes import ChangeReader, change_of, membership_of
from coordinator.replica.epoch_planning import EpochView, SeenReplica
from coordinator.replica.intake import Intake
from coordinator.storage import Storage
from coordinator.vsr import epochs
from coordinator.vsr.state import ReplicaState
from testkit.memory_storage import MemoryStorage
from testkit.plants.core_bugs import Patch
from testkit.world.options import WorldOptions, flags
from testkit.world.plant import WorldPlant
from viewstamp.format.superblock import SuperblockState

# Nobody listens there.
_NOWHERE: Final = "10.9.9.9:7410"


class EpochPlant(NamedTuple):
    """A bug, and a story that ends badly with it."""

    bug: Callable[[Patch], None]
    story: str


# --- The shell ---


def never_enter(patch: Patch) -> None:
    """The roster stays with the members of the start, whatever epoch begins."""
    patch.setattr(Epochs, "began", lambda self, membership: self.learn_addresses())


def stay_alone(patch: Patch) -> None:
    """The journal of a replica that was alone goes on as if nobody else had a vote."""
    first: dict[int, bool] = {}

    def entered(self: Journal, is_alone: bool) -> None:
        first.setdefault(id(self), is_alone)

    kept = property(lambda self: first[id(self)], entered)
    patch.setattr(Journal, "is_alone", kept, raising=False)


def agree_as_founded(patch: Patch) -> None:
    """A majority is one of those who founded the cluster."""
    enter = Roster.enter
    counts: dict[int, int] = {}

    def entered(self: Roster, voters: Any, standbys: Any = (), epoch: int = 0) -> None:
        voters = tuple(voters)
        counts.setdefault(id(self), len(voters) if epoch == 0 else 1)
        enter(self, voters, standbys, epoch)

    patch.setattr(Roster, "enter", entered)
    patch.setattr(Roster, "majority", property(lambda self: counts[id(self)] // 2 + 1))


def promote_without_disk(patch: Patch) -> None:
    """A change gives a vote to a replica, and does not name its disk."""
    promotion = epoch_planning.promotion

    def promoted(view: EpochView, replica: int) -> Any:
        change = promotion(view, replica)
        if change is None:
            return None
        voters = tuple(replace(each, disk_id=b"") for each in change.voters)
        return replace(change, voters=voters)

    patch.setattr(epoch_planning, "promotion", promoted)


def keep_first_addresses(patch: Patch) -> None:
    """The address that a discarded change gave a replica stays, whatever a later one says."""

    def note(self: ChangeReader, members: catalog.BeginEpoch | catalog.ClusterMembers) -> None:
        for each in members.voters + members.standbys:
            self.addresses.setdefault(each.replica_id, each.peer_address)

    make = core.change_reader

    def made(config: Config, files: Any, restored: catalog.ClusterMembers | None) -> ChangeReader:
        reader = make(config, files, restored)
        for change in files.start.changes:
            reader.note(change_of(change.body))
        return reader

    patch.setattr(ChangeReader, "note", note)
    patch.setattr(composition, "change_reader", made)


def let_all_go(patch: Patch) -> None:
    """Callers whose commands ended an epoch, or were committed before it, are told of no answer."""
    let_go = Intake.let_go
    patch.setattr(Intake, "let_go", lambda self, kept_op=0: let_go(self))


def found_another_cluster(patch: Patch) -> None:
    """A replica that joins with an empty directory asks nobody, and founds a cluster."""

    async def ask_nobody(config: Config, storage: Storage) -> None:
        return None

    def alone(config: Config, files: Any, told: Any) -> Config:
        return replace(config, replica_count=1)

    patch.setattr(joining, "introduction_of", ask_nobody)
    patch.setattr(joining, "placed", alone)


def believe_hearsay(patch: Patch) -> None:
    """Others are asked, and believed, also by a replica that has a superblock."""
    known, ask = core.known_membership, joining.introduction_of

    async def ask_always(config: Config, storage: Storage) -> Introduction | None:
        return await ask(config, MemoryStorage())

    def told(config: Config, files: Any, restored: Any) -> vsr.Membership | None:
        heard: Introduction | None = config.introduction
        if heard is None or vsr.epoch_of(heard.members.first_view) == 0:
            return known(config, files, restored)
        named = membership_of(heard.members)
        return replace(named, began_checksum=heard.began_checksum)

    patch.setattr(joining, "introduction_of", ask_always)
    patch.setattr(core, "known_membership", told)


def count_as_founded(patch: Patch) -> None:
    """A directory is opened as that of so many replicas as founded the cluster."""
    patch.setattr(SuperblockState, "voter_count", property(lambda self: self.replica_count))
    patch.setattr(SuperblockState, "is_alone", property(lambda self: self.replica_count == 1))


def start_as_founded(patch: Patch) -> None:
    """A start goes by the founding flags, whatever members the superblock names."""
    patch.setattr(core, "known_membership", lambda config, files, restored: None)


def link_to_the_founder_alone(patch: Patch) -> None:
    """Nobody connects to a replica that was added to a lone one."""
    dial = link.dial

    def dialed(address: str, replica: int, certificates: Any) -> Any:
        return dial(address if replica == 0 else _NOWHERE, replica, certificates)

    patch.setattr(link, "dial", dialed)


def risk_the_quorum(patch: Patch) -> None:
    """A change is made however few of its voters are there."""
    patch.setattr(EpochView, "is_there", lambda self, replica: True)


def promote_whom_nobody_hears(patch: Patch) -> None:
    """A standby gets a vote whether or not it is there."""
    promotion = epoch_planning.promotion

    def promoted(view: EpochView, replica: int) -> Any:
        heard = SeenReplica(True, view.commit, bytes(DISK_ID_BYTES))
        return promotion(replace(view, seen={replica: heard, **view.seen}), replica)

    patch.setattr(epoch_planning, "promotion", promoted)


EPOCH_PLANTS: Final = (
    EpochPlant(never_enter, "epoch_lone_replica_gets_company"),
    EpochPlant(stay_alone, "epoch_lone_replica_gets_company"),
    EpochPlant(agree_as_founded, "epoch_snapshots_need_the_new_majority"),
    EpochPlant(promote_without_disk, "epoch_lone_replica_gets_company"),
    EpochPlant(keep_first_addresses, "epoch_address_of_a_discarded_change"),
    EpochPlant(let_all_go, "epoch_changes_are_answered"),
    EpochPlant(found_another_cluster, "epoch_lone_founder_comes_back_with_an_empty_disk"),
    EpochPlant(believe_hearsay, "epoch_began_while_a_new_disk_was_off"),
    EpochPlant(count_as_founded, "epoch_pair_needs_both"),
    EpochPlant(start_as_founded, "epoch_pair_needs_both"),
    EpochPlant(link_to_the_founder_alone, "epoch_lone_replica_gets_company"),
    EpochPlant(risk_the_quorum, "epoch_change_waits_for_its_quorum"),
    EpochPlant(promote_whom_nobody_hears, "epoch_change_waits_for_its_quorum"),
)


# --- For the checkers ---


def begin_in_another_view(patch: Patch) -> None:
    """Every second process takes the second view of an epoch for its first one."""
    begin, read, serials = ChangeReader.__init__, ChangeReader.read, count()
    later: set[int] = set()

    def begun(self: ChangeReader) -> None:
        begin(self)
        if next(serials) % 2:
            later.add(id(self))

    def read_later(self: ChangeReader, body: bytes) -> vsr.Membership:
        found = read(self, body)
        return replace(found, first_view=found.first_view + (id(self) in later))

    patch.setattr(ChangeReader, "__init__", begun)
    patch.setattr(ChangeReader, "read", read_later)


def enter_again(patch: Patch) -> None:
    """Whoever enters an epoch goes back into the one before as its next one ends."""
    enter, left = epochs.enter, dict[int, vsr.Membership]()

    def entered(state: ReplicaState, membership: vsr.Membership, change: Any) -> None:
        before = left.get(id(state))
        left[id(state)] = state.membership
        if before is not None:
            state.take_membership(before)
        else:
            enter(state, membership, change)

    patch.setattr(epochs, "enter", entered)


def lead_together(patch: Patch) -> None:
    """Each voter takes itself for the primary of an epoch's first view."""
    real = vsr.Membership.primary_of

    def primary(self: ReplicaState) -> int:
        first = self.membership.epoch > 0 and self.view == self.membership.first_view
        is_voter = self.replica in self.membership.voters
        return self.replica if first and is_voter else real(self.membership, self.view)

    patch.setattr(ReplicaState, "primary", property(primary))
    patch.setattr("coordinator.vsr.replica.check_step", lambda before, state: None)


_CHANGING: Final = WorldOptions(
    is_changing=True, seconds=6, faults=(), clients=2, callers=4, flags=flags(30, 1_000)
)
EPOCH_CHECKER_PLANTS: Final = (
    WorldPlant("EpochsAgree", begin_in_another_view, _CHANGING, seed=1),
    WorldPlant("EpochsOnlyGrow", enter_again, _CHANGING, seed=1),
    WorldPlant("LedByOne", lead_together, _CHANGING, seed=1),
)
