"""Properties over random interleavings. The harness checks order, agreement and durability."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.vsr import ReadIndexRequested, ReplicaStatus
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped
from viewstamp.limits import PREPARE_RESEND_MS, TICK_MS

Action = tuple[str, int, int]
HEAL_ROUNDS_MAX = 64


def actions(*names: str) -> st.SearchStrategy[list[Action]]:
    """Lists of actions, each with two numbers to choose a replica, a message or an amount."""
    number = st.integers(min_value=0, max_value=1_000)
    return st.lists(st.tuples(st.sampled_from(names), number, number), max_size=120)


class Play:
    """Carries out random actions as far as they are possible at that moment."""

    def __init__(self, cluster: CoreCluster) -> None:
        self.cluster = cluster
        self.tokens = 0

    def run(self, script: list[Action]) -> None:
        """All actions in turn."""
        for name, first, second in script:
            getattr(self, name)(first, second)

    def batch(self, first: int, second: int) -> None:
        self.cluster.batch(0, command_count=first % 4, wall_clock_us=second)

    def sync(self, first: int, second: int) -> None:
        self.cluster.sync(first % len(self.cluster.machines), 1 + second % 3)

    def superblock(self, first: int, second: int) -> None:
        machine = self.cluster.machines[first % len(self.cluster.machines)]
        if machine.superblock_write is not None:
            self.cluster.sync_superblock(machine.index)

    def apply(self, first: int, second: int) -> None:
        machine = self.cluster.machines[first % len(self.cluster.machines)]
        if machine.can_apply:
            self.cluster.apply(machine.index)

    def read(self, first: int, second: int) -> None:
        self.tokens += 1
        self.cluster.step(0, ReadIndexRequested(self.tokens))

    def tick(self, first: int, second: int) -> None:
        self.cluster.now_ticks += first % 10
        self.cluster.tick(second % len(self.cluster.machines))

    def deliver(self, first: int, second: int) -> None:
        if self.cluster.network:
            self.cluster.deliver(first % len(self.cluster.network))

    def duplicate(self, first: int, second: int) -> None:
        if self.cluster.network:
            self.cluster.deliver(first % len(self.cluster.network), keep=True)

    def lose(self, first: int, second: int) -> None:
        if self.cluster.network:
            del self.cluster.network[first % len(self.cluster.network)]

    def crash(self, first: int, second: int) -> None:
        self.cluster.start(0)

    def heal(self) -> None:
        """Lose nothing any more, and let time pass until the primary committed its log."""
        for _ in range(HEAL_ROUNDS_MAX):
            self.cluster.settle()
            marks = self.cluster.machines[0].replica.marks
            if marks.op == marks.applied_op:
                return
            self.cluster.now_ticks += PREPARE_RESEND_MS // TICK_MS
            self.cluster.tick(0)
        raise AssertionError(f"not all committed: {self.cluster.machines[0].replica!r}")


@given(actions("batch", "sync", "apply", "read"))
def test_alone_all_that_is_admitted_commits_in_order(script: list[Action]) -> None:
    """In any order of writes, applying and batches every admitted entry executes."""
    play = Play(bootstrapped(1))
    play.run(script)

    play.heal()

    executed = sorted(play.cluster.history)
    assert executed == [*range(1, len(executed) + 1)] == play.cluster.admitted_ops


@given(actions("batch", "batch", "sync", "superblock", "apply", "read", "crash"))
def test_alone_nothing_executed_is_lost_by_crashes(script: list[Action]) -> None:
    """Each new process executes the same entries from the first, and its view is a later one."""
    play = Play(bootstrapped(1))
    play.run(script)
    superblock = play.cluster.machines[0].superblock
    executed = max(play.cluster.history)

    play.cluster.start(0)
    play.heal()

    replica = play.cluster.machines[0].replica
    assert replica.status is ReplicaStatus.NORMAL
    assert superblock is not None
    assert replica.view == superblock.view + 1
    assert replica.marks.commit_min >= executed


@settings(max_examples=150)
@given(
    actions("batch", "batch", "sync", "sync", "apply", "read", "tick", "deliver", "deliver")
    | actions("batch", "sync", "apply", "read", "tick", "deliver", "duplicate", "lose")
)
def test_three_replicas_agree_whatever_the_network_does(script: list[Action]) -> None:
    """Loss, repetition and reordering do not change the history; admitted entries commit."""
    play = Play(bootstrapped(3))
    play.run(script)

    play.heal()

    executed = sorted(play.cluster.history)
    assert executed == [*range(1, len(executed) + 1)] == play.cluster.admitted_ops
    assert max(machine.executed_op for machine in play.cluster.machines[1:]) <= len(executed)


@given(
    st.sampled_from([2, 3, 4, 5, 6]),
    actions("sync", "superblock", "tick", "deliver", "deliver", "duplicate", "lose"),
)
def test_bootstrap_succeeds_once_the_network_lets_it(count: int, script: list[Action]) -> None:
    """Lost and repeated questions and answers delay a bootstrap, and never double it."""
    cluster = CoreCluster(count)
    for index in range(count):
        cluster.start(index)
    play = Play(cluster)
    play.run(script)
    while not cluster.machines[0].nonces:
        cluster.now_ticks += 50
        cluster.tick(0)
        cluster.settle()

    cluster.found(0)
    play.run(script)
    play.heal()

    assert list(cluster.history) == [1]
