"""What a process does with the content of its disk."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from coordinator.vsr import (
    CallerError,
    Commit,
    CoreState,
    Halted,
    PersistSuperblock,
    ReplicaStatus,
    Send,
    Start,
    StatusChanged,
)
from coordinator.vsr.messages import RequestStartViewMessage
from coordinator.vsr.replica import Replica
from coordinator.vsr.startup import STARTUP, Extent, extent
from tests.coordinator.vsr.cluster_harness import bootstrapped, configuration
from tests.coordinator.vsr.membership_bodies import read_initial_members
from viewstamp.format.prepare import SealedHeader, SealedPrepare, seal

NONCE = bytes(16)


def journal(length: int) -> list[SealedPrepare]:
    """The journal of a lone replica with that many entries."""
    cluster = bootstrapped(1)
    for _ in range(length - 1):
        cluster.batch(0, command_count=2)
        cluster.settle()
    entries = cluster.machines[0].journal[:length]
    return [entry for entry in entries if isinstance(entry, SealedPrepare)]


def start(superblock: CoreState | None, length: int, replica_count: int = 1) -> Replica:
    """A replica that found that on its disk."""
    replica = Replica(
        configuration(0, replica_count), seal=seal, read_initial_members=read_initial_members
    )
    suffix = tuple(entry.header for entry in journal(length))
    replica.step(Start(superblock, suffix, NONCE), 0)
    return replica


def test_the_table_decides_every_case() -> None:
    """Each combination of cluster size, superblock and journal has exactly one action."""
    assert set(STARTUP) == set(product([True, False], [True, False], Extent))
    assert [extent(op) for op in (0, 1, 2, 3)] == [
        Extent.EMPTY,
        Extent.BOOTSTRAPPED,
        Extent.LONGER,
        Extent.LONGER,
    ]


BOOTSTRAPPED_SUPERBLOCK = CoreState(0, 0, 0)
CASES = [
    # superblock, journal entries, replicas, status
    (None, 0, 1, ReplicaStatus.BLANK),
    (None, 1, 1, ReplicaStatus.VIEW_CHANGE),
    (None, 2, 1, ReplicaStatus.HALTED),
    (BOOTSTRAPPED_SUPERBLOCK, 0, 1, ReplicaStatus.HALTED),
    (BOOTSTRAPPED_SUPERBLOCK, 1, 1, ReplicaStatus.VIEW_CHANGE),
    (BOOTSTRAPPED_SUPERBLOCK, 2, 1, ReplicaStatus.VIEW_CHANGE),
    (CoreState(4, 3, 2), 2, 1, ReplicaStatus.VIEW_CHANGE),
    (CoreState(4, 3, 3), 2, 1, ReplicaStatus.HALTED),
    (None, 0, 3, ReplicaStatus.BLANK),
    (None, 1, 3, ReplicaStatus.BLANK),
    (None, 2, 3, ReplicaStatus.HALTED),
    (BOOTSTRAPPED_SUPERBLOCK, 0, 3, ReplicaStatus.RECOVERING),
    (BOOTSTRAPPED_SUPERBLOCK, 1, 3, ReplicaStatus.RECOVERING),
    (CoreState(0, 0, 9), 2, 3, ReplicaStatus.RECOVERING),
]


@pytest.mark.parametrize(("superblock", "length", "replicas", "status"), CASES)
def test_what_the_disk_holds_decides_the_status(
    superblock: CoreState | None, length: int, replicas: int, status: ReplicaStatus
) -> None:
    """Blank is bootstrapped, a whole log is taken up, a torn state halts, a member waits."""
    assert start(superblock, length, replicas).status is status


def test_a_member_that_restarts_hands_out_what_it_knows_is_committed_and_vouches_for_nothing() -> (
    None
):
    """The rest of a restarted member's log may not be committed: it asks the primary."""
    replica = Replica(configuration(1, 3), seal=seal, read_initial_members=read_initial_members)
    suffix = tuple(entry.header for entry in journal(2))

    effects = replica.step(Start(CoreState(0, 0, 1), suffix, NONCE), 0)

    assert effects[0] == StatusChanged(ReplicaStatus.RECOVERING, 0, 0)
    assert [effect.op for effect in effects if isinstance(effect, Commit)] == [1]
    sent = [type(effect.message) for effect in effects if isinstance(effect, Send)]
    assert sent == [RequestStartViewMessage]


def test_another_initial_member_that_has_op_1_and_no_superblock_is_a_member() -> None:
    """It acknowledged nothing yet, so it forgot nothing, and the bootstrap primary has to go on."""
    replica = Replica(configuration(1, 3), seal=seal, read_initial_members=read_initial_members)

    replica.step(Start(None, (journal(1)[0].header,), NONCE), 0)

    assert replica.status is ReplicaStatus.RECOVERING


def test_a_member_whose_journal_ends_before_a_commit_that_was_durable_denies_nothing() -> None:
    """A member may have acknowledged what its journal lost; its vote says so."""
    replica = Replica(configuration(1, 3), seal=seal, read_initial_members=read_initial_members)

    replica.step(Start(CoreState(0, 0, 5), (journal(1)[0].header,), NONCE), 0)

    assert replica.state.log.head_uncertain


def test_a_superblock_older_than_the_journal_halts() -> None:
    """An entry of a view that the superblock never reached shows that old copies came back."""
    cluster = bootstrapped(1)
    cluster.start(0)
    cluster.settle()
    cluster.batch(0)
    cluster.settle()
    cluster.machines[0].superblock = BOOTSTRAPPED_SUPERBLOCK

    effects = cluster.start(0)

    assert isinstance(effects[-1], Halted)
    assert "superblock is older than the journal" in effects[-1].reason


def test_the_new_view_is_durable_before_anything_else_happens() -> None:
    """The first step of a restart writes the next view, and does nothing else (P10)."""
    cluster = bootstrapped(1)

    assert cluster.start(0) == [
        StatusChanged(ReplicaStatus.VIEW_CHANGE, 1, 0),
        PersistSuperblock(CoreState(view=1, log_view=0, commit_max=1)),
    ]


def test_the_log_view_is_durable_before_status_normal() -> None:
    """With the view durable the replica writes the log view, and is not yet normal (P9)."""
    cluster = bootstrapped(1)
    cluster.start(0)

    effects = cluster.sync_superblock(0)

    assert effects == [PersistSuperblock(CoreState(view=1, log_view=1, commit_max=1))]
    assert cluster.machines[0].replica.status is ReplicaStatus.VIEW_CHANGE


def test_a_lone_replica_records_that_its_whole_log_is_committed() -> None:
    """A lone replica's log is committed, and the superblock says so before anything is served."""
    cluster = bootstrapped(1)
    for _ in range(3):
        cluster.batch(0)
    cluster.settle()

    cluster.start(0)
    cluster.settle()

    assert cluster.machines[0].superblock == CoreState(view=1, log_view=1, commit_max=4)


def test_normal_comes_only_after_the_inherited_log_has_applied() -> None:
    """While handed-out entries are not applied, clients would be told that their sessions ended."""
    cluster = bootstrapped(1)
    for _ in range(3):
        cluster.batch(0)
    cluster.settle()
    machine = cluster.machines[0]
    cluster.start(0)
    cluster.sync_superblock(0)
    cluster.sync_superblock(0)

    seen = []
    for _ in range(4):
        seen.append((machine.executed_op, machine.replica.status))
        cluster.apply(0)

    assert seen == [(4, ReplicaStatus.VIEW_CHANGE)] * 4
    assert machine.replica.status is ReplicaStatus.NORMAL


def damaged(headers: list[SealedHeader], name: str) -> list[SealedHeader]:
    """The headers, spoilt in one of the ways that a suffix can be wrong."""
    last = headers[-1]
    spoilt = {
        "gap": [*headers[:-2], last],
        "parent": [*headers[:-1], replace(last, parent=b"\x01" * 16)],
        "revision": [*headers[:-1], replace(last, first_revision=99)],
        "time": [*headers[:-1], replace(last, timestamp=0)],
        "view": [replace(headers[0], view=1), *headers[1:]],
        "short": headers[5:],
        "first parent": [replace(headers[0], parent=b"\x01" * 16), *headers[1:]],
        "first revision": [replace(headers[0], first_revision=2), *headers[1:]],
    }
    return spoilt[name]


@pytest.mark.parametrize(
    "damage",
    ["gap", "parent", "revision", "time", "view", "short", "first parent", "first revision"],
)
def test_a_suffix_that_is_not_a_log_is_refused(damage: str) -> None:
    """The driver may not start the core on entries that do not follow each other."""
    replica = Replica(configuration(0, 1), seal=seal)
    suffix = tuple(damaged([entry.header for entry in journal(10)], damage))

    with pytest.raises(CallerError, match=r"suffix|op 1|follow"):
        replica.step(Start(BOOTSTRAPPED_SUPERBLOCK, suffix, NONCE), 0)
    assert replica.step(Start(None, (), NONCE), 0), "after the refusal, a right start is accepted"


@pytest.mark.parametrize(
    ("superblock", "nonce"),
    [(CoreState(1, 2, 0), NONCE), (CoreState(1, -1, 0), NONCE), (None, b"short")],
)
def test_an_impossible_start_is_refused(superblock: CoreState | None, nonce: bytes) -> None:
    """A log view beyond the view, and a nonce too short to be unique, are driver bugs."""
    with pytest.raises(CallerError):
        Replica(configuration(0, 1), seal=seal).step(Start(superblock, (), nonce), 0)
