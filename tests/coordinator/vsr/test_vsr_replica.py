"""The duties of the caller, the invariants, and the corners that the stories leave out."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import coordinator.vsr
from coordinator.vsr import (
    Arm,
    CallerError,
    ClientBatch,
    Configuration,
    CoreState,
    Dropped,
    DropRule,
    Effect,
    Event,
    Found,
    InvariantViolation,
    PrepareApplied,
    RecordId,
    RecordsDurable,
    RefusalReason,
    Refused,
    ReplicaStatus,
    Start,
    SuperblockDurable,
    Tick,
)
from coordinator.vsr.log import LOG_TAIL_PREPARES
from coordinator.vsr.messages import (
    BlankAnswerMessage,
    BlankQueryMessage,
    CommitMessage,
    PrepareMessage,
)
from coordinator.vsr.replica import Replica
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName, Timeouts, ticks
from tests.coordinator.vsr.cluster_harness import (
    CLUSTER_ID,
    CoreCluster,
    bootstrapped,
    configuration,
)
from tests.coordinator.vsr.membership_bodies import read_initial_members
from viewstamp.format.prepare import seal
from viewstamp.limits import PREPARE_BODY_BYTES_MAX, TICK_MS

NONCE = bytes(16)


def rules(effects: list[Effect]) -> list[DropRule]:
    """The rules by which messages were dropped."""
    return [effect.rule for effect in effects if isinstance(effect, Dropped)]


def test_the_core_imports_nothing_but_the_standard_library_and_limits() -> None:
    """No clock, randomness, I/O or foreign package can reach the core."""
    impure = {"time", "random", "secrets", "os", "io", "socket", "asyncio", "threading", "datetime"}
    package = Path(coordinator.vsr.__file__).parent
    imported = set()
    for path in sorted(package.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    foreign = {name for name in imported if not name.startswith("coordinator.vsr")}
    allowed = (set(sys.stdlib_module_names) - impure) | {"viewstamp.limits"}

    assert "viewstamp.limits" in foreign
    assert {name for name in foreign if name not in allowed} == {"collections.abc"}


CONFIGURATIONS = [
    (b"short", 0, 1, "cluster_id"),
    (CLUSTER_ID, 0, 8, "replica_count"),
    (CLUSTER_ID, 0, 0, "replica_count"),
    (CLUSTER_ID, 3, 3, "replica must be"),
    (CLUSTER_ID, -1, 3, "replica must be"),
]


@pytest.mark.parametrize(("cluster_id", "replica", "count", "message"), CONFIGURATIONS)
def test_a_wrong_configuration_is_refused(
    cluster_id: bytes, replica: int, count: int, message: str
) -> None:
    """The error names the field and what would be right."""
    with pytest.raises(ValueError, match=message):
        Configuration(cluster_id, replica, count, 1)


def test_several_replicas_need_a_reader_of_initial_members() -> None:
    """Without a reader a blank backup could not tell whether it was asked."""
    with pytest.raises(ValueError, match="read_initial_members"):
        Replica(configuration(0, 2), seal=seal)


WRONG_EVENTS: list[tuple[Event, str]] = [
    (Start(None, (), NONCE), "Start is the first event"),
    (RecordsDurable((RecordId(2, NONCE),)), "asked to write"),
    (RecordsDurable((RecordId(1, b"\x01" * 16),)), "asked to write"),
    (SuperblockDurable(CoreState(9, 9, 9)), "outstanding superblock"),
    (PrepareApplied(1), "op order"),
    (PrepareApplied(3), "op order"),
    (PrepareApplied(2), "given out by Commit"),
    (ClientBatch(b"", -1, 0), "commands"),
    (ClientBatch(bytes(PREPARE_BODY_BYTES_MAX + 1), 1, 0), "bytes"),
    (Found(b"", 0), "blank replica"),
]


@pytest.mark.parametrize(("event", "message"), WRONG_EVENTS)
def test_an_event_against_the_duties_raises_and_changes_nothing(event: Event, message: str) -> None:
    """The driver learns of its bug, and the replica goes on as if nothing had come."""
    cluster = bootstrapped(1)
    replica = cluster.machines[0].replica
    before = repr(replica)

    with pytest.raises(CallerError, match=message):
        replica.step(event, 99)

    assert repr(replica) == before
    assert replica.step(Tick(), 0) == [], "time did not move either"


def test_the_first_event_is_start() -> None:
    """Nothing works on a replica that does not know its disk."""
    with pytest.raises(CallerError, match="Start is the first event"):
        Replica(configuration(0, 1), seal=seal).step(Tick(), 0)


def test_time_never_goes_back() -> None:
    """A clock that jumps back is the driver's to hide."""
    replica = bootstrapped(1).machines[0].replica
    replica.step(Tick(), 5)

    with pytest.raises(CallerError, match="time never goes back"):
        replica.step(Tick(), 4)


def test_found_answers_a_question_once() -> None:
    """A second Found for the same bootstrap, and one with an impossible time, are driver bugs."""
    cluster = CoreCluster(1)
    cluster.start(0)
    with pytest.raises(CallerError, match="1970"):
        cluster.step(0, Found(NONCE, -1))
    cluster.found(0)

    with pytest.raises(CallerError, match="once"):
        cluster.found(0)


def commit_undurable(state: ReplicaState) -> None:
    """Count an entry that is not durable as committed."""
    state.commit_max = state.log.op


def count_undurable_copy(state: ReplicaState) -> None:
    """Count one's own copy as an acknowledgement before it is durable."""
    entry = state.log.get(state.log.op)
    assert entry is not None
    entry.acks.add(0)


def forget_log_view(state: ReplicaState) -> None:
    """Be normal in a view that the disk does not know of."""
    state.durable = CoreState(0, 0, 0)


def regress_view(state: ReplicaState) -> None:
    """Go back to an earlier view, on disk too."""
    state.view = state.log_view = 0
    state.durable = CoreState(0, 0, 0)


def overtake_view(state: ReplicaState) -> None:
    """Hold the log of a view that was not entered."""
    state.log_view = state.view + 1


def apply_unexecuted(state: ReplicaState) -> None:
    """Apply an entry that was never handed out."""
    state.applied_op = state.commit_min + 1


def skip_inheritance(state: ReplicaState) -> None:
    """Be normal with inherited entries still to be applied."""
    state.inherited_op = state.commit_min + 1


PLANTED = [
    (commit_undurable, "alone_commits_what_is_durable"),
    (count_undurable_copy, "alone_commits|own_acks"),
    (forget_log_view, "normal_is_durable"),
    (regress_view, "view never goes back"),
    (overtake_view, "views_in_order"),
    (apply_unexecuted, "ops_in_order"),
    (skip_inheritance, "normal_has_applied_inheritance"),
]


@pytest.mark.parametrize(("plant", "rule"), PLANTED)
def test_every_invariant_can_fail(
    plant: Callable[[ReplicaState], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that breaks the rule stops the replica for good, naming the rule."""
    cluster = bootstrapped(1)
    cluster.start(0)
    cluster.settle()
    cluster.batch(0)
    replica = cluster.machines[0].replica
    monkeypatch.setitem(
        sys.modules["coordinator.vsr.replica"].EVENT_HANDLERS, Tick, lambda state, _: plant(state)
    )

    with pytest.raises(InvariantViolation, match=rule):
        replica.step(Tick(), 0)
    with pytest.raises(CallerError, match="not stepped again"):
        replica.step(PrepareApplied(1), 0)


def test_a_primary_that_commits_without_a_quorum_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster the invariant counts the durable copies that the primary knows of."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    replica = cluster.machines[0].replica
    monkeypatch.setitem(
        sys.modules["coordinator.vsr.replica"].EVENT_HANDLERS,
        Tick,
        lambda state, _: commit_undurable(state),
    )

    with pytest.raises(InvariantViolation, match="durable on a replication quorum"):
        replica.step(Tick(), 0)


@pytest.mark.parametrize(
    ("limit", "rule"),
    [
        ("PIPELINE_PREPARES_MAX", "pipeline_is_bounded"),
        ("UNAPPLIED_PREPARES_MAX", "unapplied_is_bounded"),
    ],
)
def test_the_bounds_are_held_to(limit: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bound lowered under the number in flight, the next step notices."""
    cluster = bootstrapped(1)
    cluster.batch(0)
    cluster.batch(0)
    cluster.sync(0, 1)
    monkeypatch.setattr(sys.modules["coordinator.vsr.invariants"], limit, 0)

    with pytest.raises(InvariantViolation, match=rule):
        cluster.tick(0)


def test_a_backup_with_another_history_stops() -> None:
    """A heartbeat with another checksum at a held entry proves that the logs diverged."""
    cluster = bootstrapped(2)
    heartbeat = CommitMessage(CLUSTER_ID, 0, 0, 1, b"\x01" * 16, 0)

    with pytest.raises(InvariantViolation, match="same committed entry"):
        cluster.receive(1, heartbeat)


def test_the_superblock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that would lower a field is not handed out."""
    cluster = bootstrapped(1)
    cluster.machines[0].superblock = CoreState(0, 0, 1)
    cluster.start(0)
    cluster.machines[0].replica.state.log_view = -1

    with pytest.raises(InvariantViolation, match="no field of the superblock goes back"):
        cluster.machines[0].replica.state.writing = None
        cluster.machines[0].replica.state.persist_superblock()


def test_an_initial_member_that_changed_after_the_question_needs_another_body() -> None:
    """A body with the nonce of an earlier boot is refused; the driver has a newer question
    already."""
    cluster = CoreCluster(2)
    cluster.start(1)
    cluster.start(0)
    cluster.deliver(keep=True)
    cluster.deliver(1)
    stale = b"".join(cluster.machines[0].nonces)
    cluster.start(1)
    cluster.settle()

    assert cluster.step(0, Found(stale, 0)) == [
        Refused(RefusalReason.INITIAL_MEMBERS_CHANGED, None)
    ]
    cluster.found(0)
    cluster.settle()
    assert [machine.replica.status for machine in cluster.machines] == [ReplicaStatus.NORMAL] * 2


def test_who_has_op_1_says_to_nobody_that_it_is_blank() -> None:
    """Once it journals op 1, a replica neither answers nor counts as blank."""
    cluster = CoreCluster(2)
    cluster.start(1)
    cluster.start(0)
    cluster.settle()
    cluster.found(0)
    nonces = cluster.machines[0].nonces
    late = BlankAnswerMessage(CLUSTER_ID, 1, nonces[0], b"\x09" * 16)
    assert rules(cluster.receive(0, late)) == [DropRule.ALREADY_BOOTSTRAPPED]
    cluster.sync(0)
    cluster.sync_superblock(0)
    (prepare,) = [s.message for _, s in cluster.network if isinstance(s.message, PrepareMessage)]
    cluster.network.clear()
    cluster.receive(1, prepare)

    assert rules(cluster.receive(1, prepare)) == [DropRule.ALREADY_BOOTSTRAPPED]
    query = BlankQueryMessage(CLUSTER_ID, 0, nonces[0])
    assert rules(cluster.receive(1, query)) == [DropRule.ALREADY_BOOTSTRAPPED]


def test_an_entry_of_another_cluster_is_dropped() -> None:
    """The entry's own cluster id counts, not only the message's."""
    cluster = bootstrapped(2)
    head = cluster.machines[0].journal[-1]
    foreign = seal(
        parent=head.checksum,
        cluster_id=bytes(16),
        view=0,
        op=2,
        commit=1,
        first_revision=2,
        command_count=1,
        feature_level=1,
        timestamp=2_000,
        body=b"",
    )

    message = PrepareMessage(CLUSTER_ID, 0, 0, foreign)

    assert rules(cluster.receive(1, message)) == [DropRule.OTHER_CLUSTER]


def test_a_backup_with_a_slow_disk_holds_no_more_than_its_tail() -> None:
    """Undurable entries are not forgotten and not piled up: beyond the tail they are dropped."""
    cluster = bootstrapped(3)
    sent = []
    for _ in range(LOG_TAIL_PREPARES + 1):
        cluster.batch(0)
        sent += [s.message for _, s in cluster.network if s.to_replica == 1]
        cluster.network = [item for item in cluster.network if item[1].to_replica == 2]
        while cluster.network:
            cluster.deliver()
        cluster.sync(2)
        cluster.network = [item for item in cluster.network if item[1].to_replica == 0]
        while cluster.network:
            cluster.deliver()
        cluster.sync(0)
        cluster.apply(0)

    results = [cluster.receive(1, message) for message in sent]

    backlog = [effects for effects in results if DropRule.JOURNAL_BACKLOG in rules(effects)]
    assert backlog == results[-1:], "op 1 is durable and may leave the tail; op 2 is not"
    cluster.sync(1)
    assert rules(cluster.receive(1, sent[-1])) == []
    assert cluster.machines[1].replica.marks.op == LOG_TAIL_PREPARES + 2
    assert rules(cluster.receive(1, sent[1])) == [], "held: acknowledged once more"


def test_an_entry_that_left_the_tail_is_dropped() -> None:
    """An entry that left the tail was acknowledged at least a pipeline ago; nobody waits for it."""
    cluster = bootstrapped(2)
    cluster.batch(0)
    old = cluster.network[0][1].message
    cluster.settle()
    for _ in range(LOG_TAIL_PREPARES):
        cluster.batch(0)
        cluster.settle()

    assert rules(cluster.receive(1, old)) == [DropRule.PREPARE_OUT_OF_WINDOW]


def test_a_slow_backup_executes_from_its_journal() -> None:
    """An entry that left the tail unexecuted is committed without a body, and read again."""
    cluster = bootstrapped(2)
    machine = cluster.machines[1]
    for _ in range(2 * LOG_TAIL_PREPARES):
        cluster.batch(0)
        _settle_without_applying(cluster, 1)

    assert machine.replica.marks.op - machine.executed_op > LOG_TAIL_PREPARES
    cluster.settle()
    while machine.applied_op < machine.executed_op:
        cluster.apply(1)
    assert machine.executed_op >= 2 * LOG_TAIL_PREPARES


def _settle_without_applying(cluster: CoreCluster, slow: int) -> None:
    """Let messages and disks finish; only the other replicas are applied."""
    while cluster.network or any(machine.writes for machine in cluster.machines):
        while cluster.network:
            cluster.deliver()
        for machine in cluster.machines:
            cluster.sync(machine.index)
            while machine.index != slow and machine.applied_op < machine.executed_op:
                cluster.apply(machine.index)


def test_a_primary_whose_disk_hangs_stops_admitting() -> None:
    """Backups can commit without it, but it must keep the entries that it has not written."""
    cluster = bootstrapped(3)
    for _ in range(LOG_TAIL_PREPARES + 8):
        cluster.batch(0)
        while cluster.network:
            cluster.deliver()
            cluster.sync(1)
            cluster.sync(2)
        while cluster.machines[0].applied_op < cluster.machines[0].executed_op:
            cluster.apply(0)

    assert cluster.machines[0].replica.batch_refusal() is RefusalReason.JOURNAL_BACKLOG
    cluster.sync(0)
    assert cluster.machines[0].replica.batch_refusal() is None


def test_a_lone_idle_replica_needs_no_ticks() -> None:
    """Nothing is armed: an idle embedded replica costs nothing."""
    cluster = bootstrapped(1)

    assert not [effect for effect in cluster.batch(0) if isinstance(effect, Arm)]
    assert not [effect for effect in cluster.sync(0) if isinstance(effect, Arm)]


def test_the_same_events_have_the_same_effects() -> None:
    """Two clusters that live through the same are equal to the last effect."""

    def life() -> list[list[Effect]]:
        cluster = bootstrapped(3)
        trace = [cluster.batch(0, command_count=n) for n in range(5)]
        while cluster.network:
            trace.append(cluster.deliver())
        trace += [cluster.sync(index) for index in range(3)]
        while cluster.network:
            trace.append(cluster.deliver())
        return trace

    assert life() == life()


def test_a_timeout_is_due_from_its_tick_until_it_is_armed_again() -> None:
    """Armed at 10 for 5 ticks it is due at 15, and stays so; stopped it never is."""
    timeouts, name = Timeouts(), TimeoutName.HEARTBEAT
    timeouts.arm(name, 10, 5)

    assert [timeouts.fired(now) for now in (10, 14, 15, 16)] == [(), (), (name,), (name,)]
    timeouts.arm(name, 15, 5)
    assert timeouts.fired(19) == ()
    timeouts.stop(name)
    assert timeouts.fired(1_000) == ()


@pytest.mark.parametrize(
    ("duration_ms", "expected"), [(0, 1), (1, 1), (TICK_MS, 1), (TICK_MS + 1, 2), (500, 50)]
)
def test_durations_round_up_to_ticks(duration_ms: int, expected: int) -> None:
    """A timeout never fires before its time."""
    assert ticks(duration_ms) == expected


def test_a_backup_without_a_reader_of_initial_members_is_no_initial_member() -> None:
    """The guard holds even where the constructor was not asked."""
    state = ReplicaState(configuration(1, 2), seal, None)
    cluster = bootstrapped(2)
    entry = cluster.machines[0].journal[0]

    assert read_initial_members(entry.body)
    assert not coordinator.vsr.bootstrap.names_this_boot(
        state, PrepareMessage(CLUSTER_ID, 0, 0, entry)
    )
