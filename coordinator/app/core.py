"""The consensus core of one replica, as its configuration and its directory make it."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

from coordinator import vsr
from coordinator.app.config import Config
from coordinator.base.roster import Roster
from coordinator.journal import CorruptRecord
from coordinator.mux.catalog_types import ClusterMembers
from coordinator.replica.bootstrap import initial_members_of
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.epoch_changes import ChangeReader, change_of, membership_of
from coordinator.replica.epoch_membership import from_superblock
from viewstamp.format.prepare import seal
from viewstamp.format.superblock import SuperblockState
from viewstamp.limits import FEATURE_LEVEL_MAX


def make_core(
    config: Config,
    files: ReplicaFiles,
    reader: ChangeReader,
    restored: ClusterMembers | None = None,
) -> vsr.Replica:
    """Return the core, which knows nothing yet of what the disk holds.

    `reader` reads changes of members; `restored` are the members that the snapshot names from which
    the replica starts.
    """
    configuration = vsr.Configuration(
        cluster_id=files.cluster_id,
        replica=config.replica_id,
        replica_count=config.replica_count,
        feature_level=FEATURE_LEVEL_MAX,
        standby_count=config.standby_count,
        membership=known_membership(config, files, restored),
    )
    return vsr.Replica(
        configuration,
        seal=seal,
        read_initial_members=initial_members_of,
        jitter=lambda limit: random.randint(0, limit),
        read_membership=reader.read,
    )


def known_membership(
    config: Config, files: ReplicaFiles, restored: ClusterMembers | None
) -> vsr.Membership | None:
    """Return the latest members that this start knows of; None for those of the founding.

    A snapshot from others may name later ones than the superblock. What others tell counts only
    for a replica that has nothing else.
    """
    recorded = from_superblock(files.superblock.state.members)
    if restored is not None:
        named = membership_of(restored)
        return named if recorded is None or named.epoch > recorded.epoch else recorded
    if recorded is not None or config.introduction is None or files.superblock.exists:
        return recorded
    told = config.introduction
    if vsr.epoch_of(told.members.first_view) == 0:
        return None
    return replace(membership_of(told.members), began_checksum=told.began_checksum)


def roster_of(config: Config, files: ReplicaFiles) -> Roster:
    """Return the replicas as the directory knows them, or as the others told them."""
    known = known_membership(config, files, None)
    if known is None:
        counts = (config.replica_count, config.standby_count)
        return Roster.founding(config.replica_id, *counts)
    return Roster(config.replica_id, known.voters, known.standbys, known.epoch)


def roster_of_state(state: SuperblockState, standby_count: int) -> Roster:
    """Return the replicas as a superblock knows them, beside the standbys that flags name."""
    members = state.members
    if members is None:
        return Roster.founding(state.replica_id, state.replica_count, standby_count)
    return Roster(state.replica_id, members.voters, members.standbys, members.epoch)


def change_reader(
    config: Config, files: ReplicaFiles, restored: ClusterMembers | None
) -> ChangeReader:
    """Return what reads changes, and knows the addresses that members were last given, as far as
    the others have told them, or snapshot and log have them."""
    reader = ChangeReader()
    if restored is not None:
        reader.note(restored)
    if config.introduction is not None:
        reader.note(config.introduction.members)
    members = files.superblock.state.members
    if members is not None:
        # A damaged record comes from the others, who also tell the addresses once they are reached.
        with suppress(CorruptRecord):
            began = files.journal.read(members.began_op)
            if began is not None and began.header.ends_epoch:
                reader.note(change_of(began.body))
    return reader
