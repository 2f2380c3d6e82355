"""Random lives of a member's journal: appends, view changes, repairs, crashes, rot, snapshots.

A model knows the acknowledged entries. The journal never shows an entry from outside the log, and
never looks as if an acknowledged entry had not been there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from coordinator.journal import Journal
from coordinator.replica.start import SnapshotCut, continues
from testkit.journal_builders import create, prepare, reopen
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from viewstamp.format.prepare import NO_PARENT, SealedPrepare
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import PIPELINE_PREPARES_MAX

SEEDS = 60
LIVES_PER_SEED = 12
STEPS_PER_LIFE = 6
BODY_BYTES = (0, 3, 300, 700, 2000, 4096, 9000)


@dataclass
class MemberModel:
    """The acknowledged entries, those possibly written since, and those that a snapshot covers."""

    log: dict[int, SealedPrepare] = field(default_factory=dict)
    pending: list[dict[int, SealedPrepare]] = field(default_factory=list)
    committed_op: int = 0
    base: tuple[int, bytes] = (0, NO_PARENT)
    view: int = 1

    @property
    def head_op(self) -> int:
        """The last op of the log."""
        return max(self.log, default=self.base[0])


class JournalMember:
    """A journal over a disk that fails, and the model of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.storage = MemoryStorage()
        self.model = MemberModel()
        self.faults = 0
        self.journal = create(self.storage, replica_count=3)
        self.journal.close()

    # --- What a replica does ---

    def body(self) -> bytes:
        """Dense bytes, behind which no tear can hide."""
        return self.random.randbytes(self.random.choice(BODY_BYTES))

    def next_group(self, count: int) -> list[SealedPrepare]:
        """Entries that continue the log."""
        model, group = self.model, list[SealedPrepare]()
        op = model.head_op
        parent = model.log[op].checksum if op in model.log else model.base[1]
        for _ in range(count):
            op += 1
            commit = self.random.randint(0, min(model.committed_op, op - 1))
            group.append(prepare(op, parent, view=model.view, commit=commit, body=self.body()))
            parent = group[-1].checksum
        return group

    def append(self) -> None:
        """Journal a group; any prefix of it may be there if the machine stops."""
        group, log = self.next_group(self.random.randint(1, 4)), self.model.log
        self.model.pending = [
            log | {p.op: p for p in group[:count]} for count in range(len(group) + 1)
        ]
        self.journal.append(group)
        self.acknowledge(self.model.pending[-1])

    def change_view(self) -> None:
        """Replace some or all entries that are not committed, never more than a pipeline has."""
        model = self.model
        model.view += 1
        kept_op = max(model.committed_op, model.base[0], model.head_op - PIPELINE_PREPARES_MAX)
        last_op = self.random.randint(kept_op, model.head_op)
        shorter = {op: each for op, each in model.log.items() if op <= last_op}
        model.pending = [model.log, shorter]
        self.journal.discard_after(last_op)
        self.acknowledge(shorter)

    def acknowledge(self, log: dict[int, SealedPrepare]) -> None:
        """Note that a call returned: its effect lasts for ever."""
        self.model.log, self.model.pending = log, []

    def commit(self) -> None:
        """Have the cluster commit more of the log."""
        low = self.model.committed_op
        self.model.committed_op = self.random.randint(low, max(low, self.model.head_op))

    def truncate(self) -> None:
        """Take a snapshot of a committed entry; the superblock names it first."""
        model = self.model
        op = self.random.randint(model.base[0], max(model.committed_op, model.base[0]))
        if op in model.log:
            model.base = op, model.log[op].checksum
            self.journal.truncate_before(op + 1)

    def repair(self) -> None:
        """Fetch missing entries from the cluster, which has the log; then settle."""
        log = self.model.log
        for op in self.journal.missing_ops:
            if op in log:
                self.journal.append([log[op]])
        held_op = max([op for op in log if self.journal.header(op)], default=0)
        for op in range(max(held_op, self.model.base[0]) + 1, self.model.head_op + 1):
            self.journal.append([log[op]])
        self.journal.discard_after(self.model.head_op)
        assert self.journal.mark_repaired()
        assert self.journal.is_settled

    def repaired(self) -> bool:
        """Repair everything, unless the machine stops meanwhile."""
        if self.random.random() < 0.5:
            self.storage.crash_at = self.storage.steps + self.random.randrange(20)
        try:
            self.repair()
        except SimulatedCrash:
            self.crash()
            return False
        self.storage.crash_at = None
        self.faults = 0
        return True

    def take_snapshot_over(self) -> None:
        """Adopt a snapshot that the cluster sent after going on without this replica.

        The replica's own last entries were never committed there, and may reach beyond the cut.
        """
        model = self.model
        op = self.random.randint(max(model.committed_op, model.base[0]) + 1, model.head_op + 40)
        checksum = self.random.randbytes(16)
        model.base, model.committed_op = (op, checksum), op
        self.acknowledge({})
        self.journal.restart_at(op, checksum)

    def await_repair(self) -> None:
        """Take a snapshot while no peer can repair anything; settling is refused."""
        self.truncate()
        if self.journal.missing_ops:
            assert not self.journal.mark_repaired()
            assert not self.journal.is_settled

    # --- What happens to it ---

    def rot(self) -> None:
        """Flip a byte of some record."""
        used = [
            (path, at)
            for path, content in self.storage.snapshot().items()
            for at in range(SECTOR_BYTES, len(content), SECTOR_BYTES)
            if any(content[at : at + SECTOR_BYTES])
        ]
        if used:
            path, at = self.random.choice(used)
            within = self.random.choice((30, self.random.randrange(SECTOR_BYTES)))
            self.storage.flip(path, at + within, self.random.randint(1, 255))
            self.faults += 1

    def open(self) -> None:
        """Open it, perhaps through crashes of the opening itself."""
        for _ in range(20):
            if self.random.random() < 0.3:
                self.storage.crash_at = self.storage.steps + self.random.randrange(8)
            try:
                self.journal, _ = reopen(
                    self.storage,
                    replica_count=3,
                    replay_op=self.model.base[0] + 1,
                    base_checksum=self.model.base[1],
                )
            except SimulatedCrash:
                self.crash()
                continue
            self.storage.crash_at = None
            return
        raise AssertionError("opening never comes through")

    def crash(self) -> None:
        """Lose power, with some unsynced writes kept."""
        loss = self.random.choice((Loss.DROP, Loss.KEEP, Loss.PARTLY, Loss.PARTLY))
        self.storage.crash(loss, self.random.randrange(1 << 30))

    def live(self) -> None:
        """Do a few things, and stop or be stopped."""
        actions = [self.append] * 6 + [self.change_view, self.commit, self.truncate]
        if self.random.random() < 0.7:
            self.storage.crash_at = self.storage.steps + self.random.randrange(30)
        try:
            for _ in range(STEPS_PER_LIFE):
                self.random.choice(actions)()
            if self.random.random() < 0.1:
                self.take_snapshot_over()
            self.storage.crash_at = None
            self.journal.close()
            self.storage.restart_process()
        except SimulatedCrash:
            self.crash()

    # --- What must hold ---

    def check(self) -> None:
        """Hold the journal to the model, and let the model adopt what is there."""
        model, journal = self.model, self.journal
        base_op = model.base[0]
        if self.is_overtaken:
            journal.restart_at(*model.base)
        possible = [
            {op: each for op, each in log.items() if op > base_op}
            for log in (model.pending or [model.log])
        ]
        held = {
            op: found
            for op in range(base_op + 1, base_op + 200)
            if journal.header(op) is not None and (found := journal.read(op)) is not None
        }
        missing = set(journal.missing_ops)
        fitting = [log for log in possible if self.fits(log, held, missing, journal)]
        assert fitting, (possible, held, missing, journal.head_uncertain)
        if not self.faults:
            assert (missing, journal.head_uncertain) == (set(), False)
            assert held in possible
        model.log, model.pending = fitting[-1], []

    @property
    def is_overtaken(self) -> bool:
        """Return whether the snapshot's cut is missing from the journal, as a start finds out."""
        op, checksum = self.model.base
        return op > 0 and not continues(self.journal, SnapshotCut(1, op, checksum))

    @staticmethod
    def fits(
        log: dict[int, SealedPrepare],
        held: dict[int, SealedPrepare],
        missing: set[int],
        journal: Journal,
    ) -> bool:
        """Return whether the journal shows this log, and reports everything else as missing."""
        known_op = max([*held, *missing], default=0)
        return all(log.get(op) == each for op, each in held.items()) and all(
            op in held or op in missing or (op > known_op and journal.head_uncertain) for op in log
        )


@pytest.mark.parametrize("rotting", [False, True])
def test_no_life_of_a_member_forgets_or_makes_up_an_entry(rotting: bool) -> None:
    """The journal keeps its promises over many lives, with damage and crashes, even while
    opening."""
    lives = 0
    for seed in range(SEEDS):
        member = JournalMember(seed)
        for _ in range(LIVES_PER_SEED):
            member.open()
            member.check()
            if member.faults and member.random.random() < 0.4:
                member.await_repair()
                member.journal.close()
                member.storage.restart_process()
                continue
            if member.faults and not member.repaired():
                continue
            member.live()
            lives += 1
            if rotting and member.random.random() < 0.5:
                for _ in range(member.random.randint(1, 3)):
                    member.rot()
    assert lives > SEEDS * LIVES_PER_SEED // 2
