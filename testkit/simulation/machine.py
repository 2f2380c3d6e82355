"""One machine: a disk that lasts, and one process after the other that runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.journal import CorruptRecord, Journal, SuperblockOlder
from coordinator.journal.segment import segment_path
from coordinator.replica.data_directory import DirectoryOptions, open_replica
from coordinator.snapshot.errors import NoIntactCopy
from testkit.checkers.history import held_ops
from testkit.memory_storage import SimulatedCrash
from testkit.simulation.application import Application
from testkit.simulation.clients import Read
from testkit.simulation.disk import DISK_REFUSES, STEPS_BEFORE_CRASH_MAX, SimulatedDisk
from testkit.simulation.levels import BOOTSTRAP_LEVEL
from testkit.simulation.process import EPOCH_US, Process, ProcessEnded
from testkit.simulation.wrong_clocks import CLOCK_SKEW_US_MAX, WrongClock
from viewstamp.format.prepare import SealedPrepare, seal
from viewstamp.format.record import SECTOR_BYTES

if TYPE_CHECKING:
    from testkit.simulation.simulation import Simulation

DIRECTORY: Final = "data"
JOURNAL: Final = f"{DIRECTORY}/journal"
SUPERBLOCK: Final = f"{DIRECTORY}/superblock"
# A process comes back at once, or after a while.
REBOOT_MS_MAX: Final = (30, 1_500)
BOOTSTRAP_MS_MAX: Final = 300
SLOW_DISK_TIMES: Final = 30
SLOW_STAGE_TIMES: Final = 50


@dataclass(frozen=True, slots=True)
class Doom:
    """Where a story ends a process: before some I/O step, from 0, of its next job of a kind."""

    kind: str
    step: int
    is_power: bool


@dataclass(frozen=True, slots=True)
class SuperblockCopyOnFile:
    """The file of a superblock as it once was, and the sequence of its state."""

    content: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """The segments of a journal by path, as they once were, and the ops that they hold."""

    segments: dict[str, bytes]
    ops: frozenset[int]


class Machine:
    """A replica's machine."""

    def __init__(self, world: Simulation, index: int, random: Random) -> None:
        self.world = world
        self.index = index
        self.name = f"r{index}"
        self.disk = SimulatedDisk()
        self.process: Process | None = None
        self.boots = 0
        self.is_disk_slow = False
        self.is_stage_slow = False
        self.is_stage_hung = False
        self.stalled_until_ms = 0
        self.damaged_ops: set[int] = set()
        """Entries of which a copy on this disk was damaged, now or earlier."""
        self.is_untrusted = False
        """Whether writes was misdirected on this disk, which may have hit any entry."""
        self.doom: Doom | None = None
        self.named_superblock = 0
        """The sequence of the superblock that the journal names; 0 for none."""
        self.has_older_superblock = False
        """Whether an older copy of the superblock was put in its place."""
        self._random = random
        self._is_paused = False
        self._deferred: list[tuple[int, Callable[[], None]]] = []
        self.wrong_clock = WrongClock()
        self._skew_us = random.randint(-CLOCK_SKEW_US_MAX, CLOCK_SKEW_US_MAX)

    # --- Time ---

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let the process that runs now do something later, if it still runs then."""
        boot = self.boots
        self.world.schedule.after(delay_ms, lambda: self._run(boot, action))

    def _run(self, boot: int, action: Callable[[], None]) -> None:
        if boot != self.boots or self.process is None:
            return
        if self._is_paused:
            self._deferred.append((boot, action))
            return
        try:
            action()
        except ProcessEnded as ended:
            self.world.marks.hit(f"crash {ended.reason}")
            self.crash(reason=ended.reason)
        except DISK_REFUSES as error:
            self.world.marks.hit(f"process ended by {type(error).__name__}")
            self.crash(reason=str(error))

    def pause(self, duration_ms: int) -> None:
        """Freeze the process: everything waits, and then comes at once."""
        self._is_paused = True
        self.world.schedule.after(duration_ms, self.resume)

    def resume(self) -> None:
        """Go on where the process was frozen."""
        self._is_paused = False
        deferred, self._deferred = self._deferred, []
        for boot, action in deferred:
            self._run(boot, action)

    def wall_clock_us(self) -> int:
        """This machine's idea of the time, which is not the others'."""
        now_ms = self.world.schedule.now_ms
        return self.true_clock_us() + self._skew_us + self.wrong_clock.ahead_us(now_ms)

    def true_clock_us(self) -> int:
        """The time that a right clock would tell."""
        return EPOCH_US + self.monotonic_us()

    def latest_right_us(self) -> int:
        """The latest time that a right clock may tell."""
        return self.true_clock_us() + CLOCK_SKEW_US_MAX

    def monotonic_us(self) -> int:
        """The time since the run began."""
        return self.world.schedule.now_ms * 1_000

    def disk_ms(self) -> int:
        """How long the next job on the disk takes."""
        most = self.world.options.sync_ms * (SLOW_DISK_TIMES if self.is_disk_slow else 1)
        stalled_ms = max(0, self.stalled_until_ms - self.world.schedule.now_ms)
        return stalled_ms + self._random.randint(0, 2 * most)

    def bootstrap_ms(self) -> int:
        """How long it takes to make the first entry."""
        return self._random.randint(0, BOOTSTRAP_MS_MAX)

    def stage_ms(self) -> int:
        """How long the stages take for the next entry."""
        most = self.world.options.apply_ms * (SLOW_STAGE_TIMES if self.is_stage_slow else 1)
        return self._random.randint(0, 2 * most)

    # --- Processes ---

    @property
    def is_up(self) -> bool:
        """Whether a process runs."""
        return self.process is not None

    @property
    def is_leading(self) -> bool:
        """Whether a process runs here that is primary, as far as it knows."""
        core = None if self.process is None else self.process.core
        return (
            core is not None
            and core.status is vsr.ReplicaStatus.NORMAL
            and core.primary == self.index
        )

    def boot(self) -> None:
        """Start a process on what the disk holds."""
        assert self.process is None, f"{self.name} runs already"
        self.boots += 1
        options = self.world.options
        directory = DirectoryOptions(
            Path(DIRECTORY),
            replica_id=self.index,
            replica_count=options.replica_count,
            cluster_id=self.world.cluster_id,
            segment_bytes=options.segment_sectors * SECTOR_BYTES,
        )
        try:
            files = open_replica(directory, self.disk)
        except (SuperblockOlder, NoIntactCopy) as error:
            self._refused(error)
            return
        except (SimulatedCrash, *DISK_REFUSES) as error:
            self.world.trace.note(self.name, "boot", f"failed: {error}")
            self.world.marks.hit(f"boot ended by {type(error).__name__}")
            self._end(is_power=isinstance(error, SimulatedCrash))
            return
        configuration = vsr.Configuration(
            self.world.cluster_id,
            self.index,
            options.replica_count,
            BOOTSTRAP_LEVEL,
            options.standby_count,
        )
        core = vsr.Replica(
            configuration,
            seal=seal,
            read_initial_members=self.world.kind.read_initial_members,
            jitter=lambda limit: self._random.randint(0, limit),
        )
        self.process = process = Process(self, files, core)
        self.world.trace.note(self.name, "boot", self.boots)
        is_uncertain = files.recovery.head_uncertain
        self.world.marks.hit("start with an uncertain head", int(is_uncertain))
        self.world.nemesis.booted(self)
        self.world.checks.started(self.index, files, self)
        self.later(0, lambda: process.step(files.start))
        self.later(0, process.standing.begin)

    def _refused(self, error: SuperblockOlder | NoIntactCopy) -> None:
        """Give the machine an empty disk, as the refusal tells its operator to.

        An older superblock may name a snapshot that was deleted since.
        """
        assert self.has_older_superblock, f"{self.name} has its own superblock: {error}"
        self.world.marks.hit("start refused with an older superblock")
        self.lose_disk()

    def new_application(self, state: bytes | None) -> Application:
        """The stages of a process, empty or in the state of a snapshot."""
        return self.world.kind.replica(self._random, state)

    def meet_doom(self, kind: str) -> None:
        """End here if this is the job in which a story wants it."""
        doom = self.doom
        if doom is not None and doom.kind == kind:
            self.doom = None
            self.crash(is_power=doom.is_power, reason=f"in {kind}", step=doom.step)

    def crash(self, *, is_power: bool = False, reason: str = "", step: int | None = None) -> None:
        """End the process, or the power of the whole machine, and start again after a while.

        The job under way comes as far as I/O step `step`, or as some random one.
        """
        if self.process is None:
            return
        if step is None:
            step = self._random.randrange(self._random.choice(STEPS_BEFORE_CRASH_MAX))
        torn = self.process.writer.tear(self.disk, step)
        self.world.marks.hit(f"torn {torn.partition(' before ')[0]}" if torn else "torn nothing")
        what = "power" if is_power else "killed"
        self.world.trace.note(self.name, what, reason, "" if torn is None else f"({torn})")
        self._end(is_power=is_power)

    def _end(self, *, is_power: bool) -> None:
        self.process = None
        self._deferred.clear()
        self.boots += 1
        if is_power:
            self.disk.lose_power(self._random)
        else:
            self.disk.end_process()
        reboot_ms = self._random.randint(1, self._random.choice(REBOOT_MS_MAX))
        self.world.schedule.after(reboot_ms, self.boot_again)
        self.world.nemesis.moments.ended(self)

    def boot_again(self) -> None:
        """Start unless the machine runs already or must stay down."""
        if self.process is None and not self.world.is_kept_down(self.index):
            self.boot()

    def lose_disk(self) -> None:
        """Put a new, empty disk into the machine. The process does not survive it."""
        if self.process is not None:
            self.world.trace.note(self.name, "new disk")
        self.world.checks.disk_lost(self.index)
        self.world.generations.disk_lost(self.index)
        self.disk = SimulatedDisk()
        self.named_superblock, self.has_older_superblock = 0, False
        self.is_untrusted = False
        self.damaged_ops.clear()
        self._end(is_power=False)

    def put_back(self, superblock: SuperblockCopyOnFile) -> None:
        """End the process, and put an older copy of its superblock in place of the present one."""
        assert superblock.sequence < self.named_superblock, "nothing tells that it is older"
        self.crash(reason="for an older superblock")
        self.disk.replace(SUPERBLOCK, superblock.content)
        self.has_older_superblock = True

    def journal_copy(self) -> JournalCopy:
        """Return the segments as they are now."""
        assert self.process is not None, f"{self.name} is down"
        files = self.disk.snapshot()
        segments = {path: data for path, data in files.items() if path.startswith(f"{JOURNAL}/")}
        return JournalCopy(segments, frozenset(held_ops(self.process.files.journal)))

    def put_back_journal(self, copy: JournalCopy) -> None:
        """End the process, and put an older copy of its journal in place of the present one."""
        present = self.journal_copy()
        self.crash(reason="for an older journal")
        for path in present.segments:
            self.disk.remove(path)
        for path, content in copy.segments.items():
            self.disk.replace(path, content)
        self.damaged_ops |= present.ops - copy.ops

    # --- What arrives ---

    def receive(self, message: Any) -> None:
        """Take a message from the network."""
        self.later(0, lambda: self._received(message))

    def _received(self, message: Any) -> None:
        process = self.process
        assert process is not None
        if isinstance(message, Read):
            process.read_requested(message)
        elif hasattr(message, "cluster_id"):
            process.standing.received(message)
        else:
            process.requested(message)

    # --- The journal, with damage ---

    def is_excused(self, op: int) -> bool:
        """Whether this disk need not give back an entry that it took."""
        return self.is_untrusted or op in self.damaged_ops

    @property
    def journal(self) -> Journal:
        """The journal of the process that runs."""
        assert self.process is not None, f"{self.name} is down"
        return self.process.files.journal

    def holds_durably(self, segment: int, offset: int, size: int) -> bool:
        """Whether a loss of power would leave these bytes of the journal as readers see them."""
        return self.disk.is_durable(segment_path(JOURNAL, segment), offset, size)

    def read(self, journal: Journal, op: int) -> tuple[SealedPrepare | None, bool]:
        """Read an entry; the second value says that it is held, and damaged."""
        try:
            return journal.read(op), False
        except CorruptRecord as error:
            assert self.is_excused(op), f"nobody damaged op {op} on {self.name}: {error}"
            return None, True
