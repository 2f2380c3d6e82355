"""A lone replica's whole directory under the real core, with power lost at each step of its
life."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator import vsr
from coordinator.journal import CorruptJournal
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from viewstamp.format.prepare import SealedPrepare, seal
from viewstamp.format.record import SECTOR_BYTES

OPTIONS = DirectoryOptions(Path("data"), 0, 1, CLUSTER_ID, SEGMENT_BYTES)
BATCHES_PER_LIFE = 3
VARIANTS = [(Loss.DROP, 0), (Loss.KEEP, 0), (Loss.PARTLY, 1), (Loss.PARTLY, 2)]


@dataclass
class JournalHistory:
    """The entries acknowledged over all lives: checksums by op."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)


class JournalLife:
    """One process: core, journal and superblock, every effect carried out at once."""

    def __init__(self, storage: MemoryStorage, history: JournalHistory) -> None:
        """Open the directory and start the core on what it holds."""
        self.files: ReplicaFiles = open_replica(OPTIONS, storage)
        self.committed_op = 0
        self._history = history
        self._core = vsr.Replica(vsr.Configuration(CLUSTER_ID, 0, 1, 1), seal=seal)
        self._events: deque[vsr.Event] = deque()
        self.step(self.files.start)

    def step(self, event: vsr.Event) -> None:
        """Give the core an event, and go on until nothing is under way."""
        self._events.append(event)
        while self._events:
            for effect in self._core.step(self._events.popleft(), 0):
                self._carry_out(effect)

    def _carry_out(self, effect: vsr.Effect) -> None:
        assert not isinstance(effect, vsr.Halted), effect
        if isinstance(effect, vsr.BootstrapReady):
            self._events.append(vsr.Found(b"bootstrapped", 1))
        elif isinstance(effect, vsr.PersistPrepares):
            prepares = [each for each in effect.prepares if isinstance(each, SealedPrepare)]
            self.files.journal.append(prepares)
            records = tuple(vsr.RecordId(each.op, each.checksum) for each in prepares)
            self._events.append(vsr.RecordsDurable(records))
        elif isinstance(effect, vsr.PersistSuperblock):
            self.files.superblock.write_core(effect.state)
            self._events.append(vsr.SuperblockDurable(effect.state))
        elif isinstance(effect, vsr.Commit):
            self._apply(effect.op)

    def _apply(self, op: int) -> None:
        """Acknowledge an entry, which must equal the one acknowledged before, if any."""
        prepare = self.files.journal.read(op)
        assert prepare is not None
        assert self._history.acknowledged.setdefault(op, prepare.checksum) == prepare.checksum
        self.committed_op = op
        self._events.append(vsr.PrepareApplied(op))

    def live(self) -> None:
        """Serve a few batches and stop gracefully."""
        for number in range(BATCHES_PER_LIFE):
            self.step(vsr.ClientBatch(b"%d" % number, 1, 1))
        self.files.record_commit(self.committed_op)
        self.end()

    def end(self) -> None:
        """Close the directory."""
        self.files.close()

    @property
    def status(self) -> vsr.ReplicaStatus:
        """The status of the core."""
        return self._core.status


def lives(storage: MemoryStorage, history: JournalHistory) -> None:
    """Bootstrap a replica, serve, stop, start again, serve, and stop."""
    storage.make_directory("data")
    JournalLife(storage, history).live()
    JournalLife(storage, history).live()


def crashes() -> Iterator[tuple[MemoryStorage, JournalHistory]]:
    """The disk after a crash at every step, in every variant, and the acknowledged entries."""
    whole = MemoryStorage()
    lives(whole, JournalHistory())
    for step in range(whole.steps):
        for loss, seed in VARIANTS:
            storage, history = MemoryStorage(), JournalHistory()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                lives(storage, history)
            storage.crash(loss, seed)
            yield storage, history


@pytest.mark.long
def test_what_was_acknowledged_survives_a_crash_at_any_step() -> None:
    """The replica starts after each crash, has every acknowledged entry unchanged, and serves."""
    count = 0
    for storage, history in crashes():
        acknowledged = max(history.acknowledged, default=0)
        storage.make_directory("data")
        life = JournalLife(storage, history)
        assert life.status is vsr.ReplicaStatus.NORMAL
        assert life.committed_op >= acknowledged
        life.live()
        assert JournalLife(storage, history).committed_op == life.committed_op
        count += 1
    assert count > 400


def test_after_a_graceful_stop_no_flipped_byte_loses_anything() -> None:
    """Each flipped byte of the last record is noticed, and nothing is served without it."""
    storage, history = MemoryStorage(), JournalHistory()
    lives(storage, history)
    path = "data/journal/segment-0000000000000003.log"
    before = storage.snapshot()
    used = [at for at, byte in enumerate(storage.content(path)) if byte and at >= SECTOR_BYTES]
    assert used
    for offset in used:
        storage.flip(path, offset)
        with pytest.raises(CorruptJournal, match=r"op 7"):
            JournalLife(storage, history)
        storage.flip(path, offset)
        assert storage.snapshot() == before
