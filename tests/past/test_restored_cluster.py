"""A restored cluster against the state that it was made of, on random histories of all domains."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from coordinator.mux.catalog_types import BeginEpoch, EpochMember
from coordinator.mux.stage import SERVICE_STAGES, Stage
from coordinator.mux.types import BEGIN_EPOCH_CODE
from coordinator.replica.data_directory import DirectoryOptions, open_replica
from coordinator.stages.catalog_codec import begin_epoch_request
from past.founding.directories import (
    NewCluster,
    WrittenCluster,
    check_and_name,
    check_target,
    check_targets,
    write_cluster,
)
from past.founding.endings import end_and_cut
from past.founding.errors import TargetNotEmpty
from past.founding.jumps import COUNTERS, DROPPED, JUMP
from past.founding.remains import Remains, Wanted, read_remains
from past.state import PastState
from tests.past.past_histories import history, sealed
from viewstamp.api.brokers.v1.brokers_pb2 import BrokerEntity
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroupEntity
from viewstamp.api.log.v1 import log_pb2
from viewstamp.format.prepare import SealedPrepare, seal
from viewstamp.framing import frame
from viewstamp.limits import GATEWAY_SESSION_ID, SYSTEM_USER_ID
from viewstamp.machine.freezing import Entity

CLUSTER_ID: Final = b"a new cluster id"
PREPARES: Final = 12
OF_MEMBERS: Final = (
    "group_epoch",
    "assignment_epoch",
    "modified_revision",
    "idle_since",
    "expiry_due",
)
# What a restore changes of entities that last.
CHANGED: Final[dict[tuple[Stage, int], tuple[Any, tuple[str, ...]]]] = {
    (Stage.CONSUMER_GROUPS, 1): (ConsumerGroupEntity, OF_MEMBERS),
    (Stage.STREAMS, 6): (BrokerEntity, ("fenced", "modified_revision")),
}
_MEMBERS: Final = (Stage.CONSUMER_GROUPS, 2)
_CHORES: Final = (Stage.CONSUMER_GROUPS, 4)


def quiet(*_: object) -> None:
    """Take progress, and tell nobody."""


def state_of_history(seed: int) -> PastState:
    """Return what a random history has led to."""
    state = PastState()
    for entry in sealed(history(Random(seed), PREPARES)):
        state.apply(entry)
    return state


def lasting(state: PastState) -> dict[Stage, list[Entity]]:
    """Return the entities of services that a restore neither ends nor counts further."""
    counted = {(stage, counters.kind) for stage, counters in COUNTERS.items()}
    left_out = {*counted, *DROPPED, _MEMBERS, _CHORES}
    return {
        stage: [
            _without_changes(stage, each)
            for each in state.entities(stage)
            if (stage, each[0]) not in left_out
        ]
        for stage in SERVICE_STAGES
    }


def _without_changes(stage: Stage, entity: Entity) -> Entity:
    """Return an entity without what a restore changes of it."""
    kind, key, canonical = entity
    if (stage, kind) not in CHANGED:
        return entity
    message, fields = CHANGED[stage, kind]
    found = message.FromString(canonical)
    for name in fields:
        found.ClearField(name)
    return kind, key, found.SerializeToString()


def restored(state: PastState, path: Path, replicas: int) -> WrittenCluster:
    """Write a cluster from a state, and give it its name."""
    written = write_cluster(
        NewCluster(path, replicas, CLUSTER_ID), state, end_and_cut(state, CLUSTER_ID), quiet
    )
    check_and_name(written, quiet)
    return written


def read_back(path: Path) -> Remains:
    """Return the state in the directory of a replica of the new cluster."""
    return read_remains(Wanted(path), quiet)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_lasts_is_restored(seed: int, tmp_path: Path) -> None:
    """All that a restore does not end is the same bytes; sessions and tokens are gone; ids jump."""
    state = state_of_history(seed)
    before, revision = lasting(state), state.revision
    restored(state, tmp_path / "new", 1)

    found = read_back(tmp_path / "new")
    assert lasting(found.state) == before
    assert found.state.live_sessions() == []
    assert not [e for e in found.state.entities(Stage.USERS) if (Stage.USERS, e[0]) in DROPPED]
    assert found.state.revision > revision + JUMP
    assert found.cluster_id == CLUSTER_ID
    groups = [e for e in found.state.entities(Stage.CONSUMER_GROUPS) if e[0] == 1]
    changed = {ConsumerGroupEntity.FromString(e[2]).modified_revision for e in groups}
    assert not [each for each in changed if revision < each <= revision + JUMP]
    for stage, counters in COUNTERS.items():
        (entity,) = [e for e in found.state.entities(stage) if e[0] == counters.kind]
        message = counters.message.FromString(entity[2])
        assert all(getattr(message, name) > JUMP for name in counters.fields)


@pytest.mark.long
def test_replicas_have_one_snapshot_wherever_they_are_written(tmp_path: Path) -> None:
    """Three replicas restart from one root; so does each that is written by itself elsewhere."""
    together = restored(state_of_history(4), tmp_path / "all", 3)
    manifests = [together.manifest]
    for replica in range(3):
        state = state_of_history(4)
        target = NewCluster(tmp_path / f"only-{replica}", 3, CLUSTER_ID, only_replica=replica)
        written = write_cluster(target, state, end_and_cut(state, CLUSTER_ID), quiet)
        check_and_name(written, quiet)
        manifests.append(written.manifest)
    assert all(manifest == manifests[0] for manifest in manifests)
    for replica in range(3):
        for path in (tmp_path / "all" / f"replica-{replica}", tmp_path / f"only-{replica}"):
            files = open_replica(DirectoryOptions(path, replica, 3, CLUSTER_ID))
            start = files.start
            assert files.base is not None
            files.close()
            assert start.base_op == manifests[0].cut_op
            assert [header.checksum for header in start.suffix] == [manifests[0].cut_checksum]
    assert (tmp_path / "all" / "cluster.id").read_text() == CLUSTER_ID.hex() + "\n"


def test_a_restore_that_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    """What an interrupted restore has left has no name of a directory, and is replaced."""
    state = state_of_history(5)
    ended = end_and_cut(state, CLUSTER_ID)
    target = NewCluster(tmp_path / "new", 1, CLUSTER_ID)
    write_cluster(target, state, ended, quiet)
    assert not target.path.exists()
    check_and_name(write_cluster(target, state, ended, quiet), quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_copies_of_snapshots_lie_where_a_replica_keeps_them(tmp_path: Path) -> None:
    """With directories of their own all three are written there, also behind a restore that was cut
    short, and a replica restarts from them. One that holds anything is refused."""
    state = state_of_history(6)
    ended = end_and_cut(state, CLUSTER_ID)
    copies = tuple(tmp_path / f"volume-{n}" / "copy" for n in range(3))
    target = NewCluster(tmp_path / "new", 1, CLUSTER_ID, copies=copies)
    write_cluster(target, state, ended, quiet)
    assert not [path for path in (target.path, *copies) if path.exists()]
    check_and_name(write_cluster(target, state, ended, quiet), quiet)

    assert not (target.path / "snapshots").exists()
    files = open_replica(DirectoryOptions(target.path, 0, 1, CLUSTER_ID, snapshots=copies))
    assert files.base is not None
    files.close()
    assert [sorted(path.parent.iterdir()) for path in copies] == [[path] for path in copies]
    again = NewCluster(tmp_path / "other", 1, CLUSTER_ID, copies=copies)
    with pytest.raises(TargetNotEmpty, match="volume-0/copy exists"):
        check_targets(again)


@pytest.mark.parametrize("kind", ["file", "filled", "link"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    """A target that holds anything is refused before anything is read."""
    path = tmp_path / "new"
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(tmp_path)
    else:
        (path / "something").mkdir(parents=True)
    with pytest.raises(TargetNotEmpty, match="is not an empty directory"):
        check_target(path)


def test_a_target_is_apart_from_its_source(tmp_path: Path) -> None:
    """No source lies where a restore writes or tidies up, and none holds the new cluster."""
    for source in ("new", "new.restoring", "new/below", "."):
        with pytest.raises(TargetNotEmpty, match="are not apart"):
            check_target(tmp_path / "new", [tmp_path / source])
    check_target(tmp_path / "new", [tmp_path / "newer"])


def test_members_of_the_lost_cluster_are_forgotten(tmp_path: Path) -> None:
    """Whatever replicas the lost cluster had, the new one is founded by those it is made for, and
    starts in the first epoch."""
    state = state_of_history(1)
    members = BeginEpoch(2**48, (EpochMember(7, "gone:1", b"d" * 16),), (), 8)
    state.apply(change_of(state, members))
    assert state.has_members()
    restored(state, tmp_path / "new", 3)
    found = read_back(tmp_path / "new" / "replica-0")
    assert not found.state.has_members()
    files = open_replica(DirectoryOptions(tmp_path / "new" / "replica-0", 0, 3))
    assert files.superblock.state.members is None
    files.close()


def change_of(state: PastState, members: BeginEpoch) -> SealedPrepare:
    """Return the entry by which a primary ends the epoch behind a state."""
    span = log_pb2.LoggedSpan(
        code=BEGIN_EPOCH_CODE,
        count=1,
        items=frame(begin_epoch_request(members)),
        user_id=SYSTEM_USER_ID,
    )
    logged = log_pb2.LoggedRequest(session_id=GATEWAY_SESSION_ID, spans=[span])
    return seal(
        parent=state.checksum,
        cluster_id=CLUSTER_ID,
        view=0,
        op=state.op + 1,
        commit=state.op,
        first_revision=state.next_revision,
        command_count=1,
        feature_level=state.feature_level,
        timestamp=state.timestamp_us + 1,
        body=frame(logged.SerializeToString(deterministic=True)),
        ends_epoch=True,
    )
