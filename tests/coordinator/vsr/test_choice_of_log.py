"""The choice of a view's log: cases by hand, and random histories in which nothing may be lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.vsr import InvariantViolation, PrepareHeader
from coordinator.vsr.log_selection import (
    AwaitingRepair,
    AwaitingVotes,
    Choice,
    Chosen,
    Unrecoverable,
    choose,
)
from coordinator.vsr.messages import PARENT_OF_FIRST, DoViewChangeMessage
from coordinator.vsr.quorum import QUORUMS
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID
from viewstamp.format.prepare import seal
from viewstamp.limits import PIPELINE_PREPARES_MAX


def make(op: int, view: int, parent: bytes, commit: int = 0, body: bytes = b"") -> PrepareHeader:
    """Return the header of an entry; `body` distinguishes entries that would be equal."""
    return seal(
        parent=parent,
        cluster_id=CLUSTER_ID,
        view=view,
        op=op,
        commit=commit,
        first_revision=op,
        command_count=1,
        feature_level=1,
        timestamp=op,
        body=body,
    ).header


def chain(*views: int) -> list[PrepareHeader]:
    """Return a log whose entries were sequenced in these views."""
    log: list[PrepareHeader] = []
    for op, view in enumerate(views, start=1):
        log.append(make(op, view, log[-1].checksum if log else PARENT_OF_FIRST))
    return log


def vote(
    replica: int,
    log: list[PrepareHeader],
    log_view: int = 0,
    commit: int = 1,
    faulty: tuple[int, ...] = (),
    uncertain: bool = False,
) -> DoViewChangeMessage:
    """The vote of a replica that holds `log`, with these records damaged."""
    headers = tuple(h for h in log if h.op >= commit and h.op not in faulty)
    open_faults = tuple(op for op in faulty if op > commit)
    return DoViewChangeMessage(
        CLUSTER_ID, replica, 9, log_view, commit, len(log), headers, open_faults, uncertain
    )


OLD = chain(0, 0, 0, 0)
NEW = [*OLD[:2], make(3, 1, OLD[1].checksum), make(4, 1, make(3, 1, OLD[1].checksum).checksum)]

CASES: list[tuple[str, int, list[DoViewChangeMessage], object]] = [
    ("one vote is no quorum", 3, [vote(0, OLD)], "await votes"),
    ("equal logs are kept", 3, [vote(0, OLD), vote(1, OLD)], OLD),
    ("an entry that one of two holds is kept", 3, [vote(0, OLD), vote(1, OLD[:3])], OLD),
    (
        "two of three never held it: it is cut off",
        3,
        [vote(0, OLD), vote(1, OLD[:3]), vote(2, OLD[:3])],
        OLD[:3],
    ),
    ("the later log view decides", 3, [vote(0, NEW, 1), vote(1, OLD)], NEW),
    ("a longer log of an earlier view does not", 3, [vote(0, NEW[:2], 1), vote(1, OLD)], NEW[:2]),
    ("what is committed is not in question", 3, [vote(0, OLD, 0, 4), vote(1, OLD[:2])], OLD),
    (
        "a damaged record is no nack",
        3,
        [vote(0, OLD[:3]), vote(1, OLD, faulty=(4,))],
        "await repair of 4",
    ),
    (
        "a damaged record that a third replica holds is kept",
        3,
        [vote(0, OLD[:3]), vote(1, OLD, faulty=(4,)), vote(2, OLD)],
        OLD,
    ),
    (
        "a damaged record that two never held is cut off",
        3,
        [vote(0, OLD[:3]), vote(1, OLD, faulty=(4,)), vote(2, OLD[:3])],
        OLD[:3],
    ),
    (
        "the next entry names a damaged one, and another vote has it",
        3,
        [vote(0, NEW, 1, faulty=(3,)), vote(1, NEW[:3])],
        NEW,
    ),
    (
        "another entry in the place of the one that is named nacks it",
        2,
        [vote(0, NEW, 1, faulty=(3,)), vote(1, OLD)],
        OLD[:2],
    ),
    (
        "an uncertain head denies nothing",
        3,
        [vote(0, OLD[:3], uncertain=True), vote(1, OLD[:3])],
        "await repair of 4",
    ),
    (
        "with all votes in and no answer people are called",
        3,
        [vote(0, OLD, faulty=(4,)), vote(1, OLD, faulty=(4,)), vote(2, OLD[:3])],
        "unrecoverable 4",
    ),
    (
        "what no other entry can be is the one that is left",
        2,
        [vote(0, OLD[:3], 1, faulty=(3,)), vote(1, OLD[:3])],
        OLD[:3],
    ),
    (
        "what follows another entry than the committed one is not what is left",
        3,
        [vote(0, NEW, 2, 3, faulty=(4,)), vote(1, NEW[:3], 1, 3), vote(2, OLD, 0, 2)],
        NEW[:3],
    ),
    (
        "of two unfinished logs the later entry is taken",
        3,
        [vote(0, NEW), vote(1, OLD)],
        NEW,
    ),
]


def told(choice: Choice) -> object:
    """A choice as the cases write it."""
    if isinstance(choice, AwaitingVotes):
        return "await votes"
    if isinstance(choice, AwaitingRepair):
        return f"await repair of {choice.op}"
    if isinstance(choice, Unrecoverable):
        return f"unrecoverable {choice.op}"
    return choice.head_op, [h.checksum for h in choice.headers if h.op > choice.commit]


@pytest.mark.parametrize(("story", "count", "votes", "expected"), CASES, ids=lambda v: str(v)[:40])
def test_the_votes_decide(
    story: str, count: int, votes: list[DoViewChangeMessage], expected: object
) -> None:
    """Each case's votes give the log that its story says, in any order of arrival."""
    if isinstance(expected, list):
        commit = max(each.commit for each in votes)
        expected = (len(expected), [header.checksum for header in expected[commit:]])

    for order in (votes, votes[::-1]):
        assert told(choose(order, count, QUORUMS[count])) == expected, story


def test_two_entries_of_one_op_and_view_are_an_outrage() -> None:
    """A primary sequences one entry per op; two are a bug that must not be smoothed over."""
    fork = [*OLD[:3], make(4, 0, OLD[2].checksum, body=b"other")]

    with pytest.raises(InvariantViolation, match="one entry per op"):
        choose([vote(0, OLD), vote(1, fork)], 3, QUORUMS[3])


@dataclass
class Disk:
    """The entries that one replica holds."""

    log: list[PrepareHeader]
    log_view: int = 0
    acknowledged: int = 1
    """The head of the last log that it could vouch for."""
    faulty: set[int] = field(default_factory=set)


class VoteHistory:
    """Random views over plain logs. A view begins with the longest log of the latest log view of
    a quorum, as the paper says; that rule sees the undamaged logs, and so is right.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = self.random.choice((2, 3, 3, 4, 5, 6))
        self.quorums = QUORUMS[self.count]
        bootstrapped = chain(0)
        self.disks = [Disk(list(bootstrapped)) for _ in range(self.count)]
        self.committed = list(bootstrapped)
        self.entries = 0
        for view in range(1, self.random.randint(2, 6)):
            self.live(view)

    def some(self, least: int) -> list[Disk]:
        """At least so many of the replicas."""
        return self.random.sample(self.disks, self.random.randint(least, self.count))

    def live(self, view: int) -> None:
        """One view: some replicas install its chosen log, completely or in part, and it grows."""
        quorum = self.some(self.quorums.view_change)
        log = list(max(quorum, key=lambda disk: (disk.log_view, len(disk.log))).log)
        began = len(log)
        for _ in range(self.random.randint(0, 3)):
            if len(log) - len(self.committed) < PIPELINE_PREPARES_MAX:
                self.entries += 1
                body = b"%d" % self.entries
                log.append(make(len(log) + 1, view, log[-1].checksum, len(self.committed), body))
        for disk in quorum:
            self.install(disk, view, log, began)
        self.commit(view, log)

    def install(self, disk: Disk, view: int, log: list[PrepareHeader], began: int) -> None:
        """Install the log. Equal entries stay; a crash may leave the rest half done."""
        same = 0
        while same < min(len(disk.log), len(log)) and disk.log[same] == log[same]:
            same += 1
        reach = self.random.randint(same, len(log))
        if reach >= began and self.random.random() < 0.8:
            disk.log, disk.log_view = log[:reach], view
        elif self.random.random() < 0.5:
            disk.log = log[: min(reach, max(began, same))]

    def commit(self, view: int, log: list[PrepareHeader]) -> None:
        """Commit the entries of the view that a replication quorum holds."""
        heads = sorted((len(d.log) for d in self.disks if d.log_view == view), reverse=True)
        if len(heads) >= self.quorums.replication:
            head = heads[self.quorums.replication - 1]
            if head > len(self.committed):
                self.committed = log[:head]

    def damage(self, disks: list[Disk]) -> None:
        """Let records rot."""
        for disk in disks:
            count = self.random.randint(0, 2)
            disk.faulty = set(self.random.choices(range(1, len(disk.log) + 1), k=count))

    def vote(self, replica: int) -> DoViewChangeMessage:
        """Return the vote of a replica, which knows at least the commits that its entries
        mention."""
        disk = self.disks[replica]
        told_by_log = max(h.commit for h in disk.log)
        most = max(told_by_log, min(len(self.committed), self.equal(disk)))
        commit = self.random.randint(told_by_log, most)
        return vote(replica, disk.log, disk.log_view, commit, tuple(sorted(disk.faulty)))

    def equal(self, disk: Disk) -> int:
        """How many of the committed entries the disk has."""
        return sum(a == b for a, b in zip(disk.log, self.committed, strict=False))

    def votes(self, least: int) -> list[DoViewChangeMessage]:
        """The votes of a random view-change quorum, or of more."""
        size = self.random.randint(least, self.count)
        return [self.vote(replica) for replica in self.random.sample(range(self.count), size)]


def check_keeps_all(history: VoteHistory, chosen: Chosen) -> None:
    """Nothing that was committed is missing in the chosen log, which is one chain."""
    known = {header.op: header for header in chosen.headers}
    assert chosen.commit <= len(history.committed)
    assert chosen.head_op >= len(history.committed), "a committed entry is cut off"
    for header in history.committed[chosen.commit :]:
        assert known[header.op] == header, "a committed entry is replaced"
    for op in range(chosen.commit + 2, chosen.head_op + 1):
        assert known[op].parent == known[op - 1].checksum
    for header in chosen.headers:
        if header.op <= chosen.commit:
            assert header == history.committed[header.op - 1]


@settings(max_examples=400)
@given(st.integers(min_value=0, max_value=2**32))
def test_a_committed_entry_is_never_lost(seed: int) -> None:
    """For any logs of any history, and any damage, a chosen log has every committed entry."""
    history = VoteHistory(seed)
    history.damage(history.some(1))

    chosen = choose(history.votes(history.quorums.view_change), history.count, history.quorums)

    if isinstance(chosen, Chosen):
        check_keeps_all(history, chosen)


@settings(max_examples=200)
@given(st.integers(min_value=0, max_value=2**32))
def test_intact_logs_always_give_a_choice(seed: int) -> None:
    """Without damage every view-change quorum can go on."""
    history = VoteHistory(seed)

    chosen = choose(history.votes(history.quorums.view_change), history.count, history.quorums)

    assert isinstance(chosen, Chosen)
    check_keeps_all(history, chosen)


@settings(max_examples=200)
@given(st.integers(min_value=0, max_value=2**32))
def test_one_rotten_disk_never_stops_a_whole_cluster(seed: int) -> None:
    """When all have voted, the others reveal what one disk lost.

    The exception: they hold two entries, in logs of earlier views, of which it may have been
    either.
    """
    history = VoteHistory(seed)
    history.damage(history.random.sample(history.disks, 1))
    votes = history.votes(history.count)

    chosen = choose(votes, history.count, history.quorums)

    if isinstance(chosen, Unrecoverable):
        held = {h.checksum for each in votes for h in each.headers if h.op == chosen.op}
        assert len(held) > 1
    else:
        assert isinstance(chosen, Chosen)
        check_keeps_all(history, chosen)


def test_a_late_vote_does_not_tell_what_a_later_view_committed() -> None:
    """Only the chain of hashes tells it: the log of the late vote has been replaced since.

    Of five, replicas 2, 3 and 4 began a later view, in which op 3 of `NEW` was committed. Replica 1
    caught up with it. Replica 0 has op 3 of `OLD`, as replica 2 had when it sent its vote.
    """
    late = vote(2, OLD[:3], 1, 2)
    caught_up = vote(1, NEW[:3], 0, 3)

    chosen = choose([vote(0, OLD[:3], 1, 2), caught_up, late], 5, QUORUMS[5])

    assert isinstance(chosen, Chosen)
    assert (chosen.commit, chosen.source, chosen.head_op) == (3, 1, 3)
    assert chosen.headers == tuple(NEW[1:3])


def test_the_entry_after_the_commit_point_tells_what_is_committed() -> None:
    """The replica that knows of the commit has that entry damaged; another has it in an older
    log."""
    knows = vote(0, OLD, 1, 3, faulty=(3,))

    chosen = choose([knows, vote(1, OLD[:3], 0, 2)], 3, QUORUMS[3])

    assert isinstance(chosen, Chosen)
    assert chosen.headers == tuple(OLD[1:])


class Superseded(VoteHistory):
    """A view whose last votes come when others, who sent theirs long ago, are in later views."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.late = [self.vote(replica) for replica in range(self.count)]
        replicas = self.random.sample(range(self.count), self.count)
        left = replicas[self.quorums.view_change :]
        moved_on = [self.disks[index] for index in replicas if index not in left]
        self.some = lambda least: moved_on  # type: ignore[method-assign]
        for view in range(6, 9):
            self.live(view)
        for index in left:
            self.late[index] = self.catch_up(index)

    def catch_up(self, index: int) -> DoViewChangeMessage:
        """The vote of one that was left behind, and got committed entries of the later views."""
        disk = self.disks[index]
        held = self.equal(disk)
        reach = self.random.randint(held, len(self.committed))
        if reach > held:
            disk.log = self.committed[:reach]
        commit = max(reach, *(header.commit for header in disk.log))
        return vote(index, disk.log, disk.log_view, commit)


@settings(max_examples=400)
@given(st.integers(min_value=0, max_value=2**32))
def test_nothing_is_taken_for_committed_on_the_word_of_late_votes(seed: int) -> None:
    """Such a view comes to nothing, but its primary executes the entries that the votes call
    committed."""
    history = Superseded(seed)
    chosen = choose(history.late, history.count, history.quorums)

    if isinstance(chosen, Chosen):
        for header in chosen.headers:
            if header.op <= chosen.commit:
                assert header == history.committed[header.op - 1]
