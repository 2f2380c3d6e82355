"""Whoever makes things go wrong: draws faults from those of the seed, and ends them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.journal.segment import segment_path
from coordinator.journal.superblock import COPIES, COPY_BYTES
from testkit.checkers.history import held_ops
from testkit.partitions import SHAPES, between, partition
from testkit.simulation.atlas import Atlas
from testkit.simulation.machine import JOURNAL, SUPERBLOCK, Machine, SuperblockCopyOnFile
from testkit.simulation.moments import Moments
from testkit.simulation.options import APART, OF_THE_NETWORK, FaultKind

if TYPE_CHECKING:
    from testkit.simulation.simulation import Simulation

BOOTSTRAP_LOOK_MS: Final = 50
FAULT_MS: Final = (20, 100, 500, 2_000, 5_000)
EFFECTS_BEFORE_CRASH_MAX: Final = 12
DOWN_FOR_LONG_ONE_IN: Final = 3
# Long enough for the others to drop what was missed, where a seed has snapshots.
DOWN_MS: Final = (500, 5_000, 20_000)
ALL_POWER_ONE_IN: Final = 6
SYNCS_BEFORE_FAILURE_MAX: Final = 4
DISKS_LOST_MAX: Final = 3
# Few seeds can have them, so these have more.
OLDER_SUPERBLOCKS_MAX: Final = 8
# Where a seed is ambushed: one view change in so many is struck, one fault in so many has company.
AMBUSH_ONE_IN: Final = 6
AMBUSH_WITHIN_MS: Final = 150
COMPANY_ONE_IN: Final = 4
# Where that is possible, this share of what damages stored data comes at the worst moment.
CORNERED_SHARE: Final = 0.4
CORNER_MS: Final = 300
# Faults that few seeds can have come more often in those.
WEIGHTS: Final = {
    FaultKind.ROT: 2,
    FaultKind.MISDIRECTED: 2,
    FaultKind.LOST_DISK: 2,
    FaultKind.STAGE_CRASH: 4,
}


class Nemesis:
    """The faults of one run. Each stops by itself; `stop` ends all of them."""

    def __init__(self, world: Simulation, random: Random) -> None:
        self._world = world
        self._random = random
        self.atlas = Atlas(world.options, Random(random.randrange(1 << 30)))
        faults = world.options.faults
        kinds = [k for k in FaultKind if k in faults and k not in (*OF_THE_NETWORK, *APART)]
        self._kinds = [kind for kind in kinds for _ in range(WEIGHTS.get(kind, 1))]
        self._has_started = self._is_over = False
        self._lost_disks: Counter[int] = Counter()
        self._older_superblocks: Counter[int] = Counter()
        self._marked: Machine | None = None
        self._doomed = self._random.choice(self.atlas.voters)
        self.kept_down: set[int] = set()
        self.moments = Moments(world, self)

    def start(self) -> None:
        """Begin to make trouble once every initial member has the first entry.

        Only clocks may be wrong before: op 1 begins log time.
        """
        self.moments.clocks.begin()
        self._wait_for_bootstrap()

    def booted(self, machine: Machine) -> None:
        """Let one initial member die while the cluster is bootstrapped, if the seed has that.

        It may come back as one that forgot what it said, like a lost disk. If more did, the
        bootstrap would have to begin anew, on empty disks, by people.
        """
        is_struck = self._world.options.is_bootstrap_struck and machine.index == self._doomed
        if is_struck and machine.boots == 1 and machine.process is not None:
            self._world.marks.hit("bootstrap struck")
            machine.process.crash_after_effects = self._random.randrange(EFFECTS_BEFORE_CRASH_MAX)
        self.moments.booted(machine)

    def _wait_for_bootstrap(self) -> None:
        if not (self._kinds or self.moments.has_strikes):
            return
        if not self._world.is_bootstrapped_everywhere:
            self._world.schedule.after(BOOTSTRAP_LOOK_MS, self._wait_for_bootstrap)
            return
        self._has_started = True
        self.moments.start()
        if self._kinds:
            self._world.schedule.after(self._pause_ms(), self._strike_again)

    def view_changed(self, machine: Machine) -> None:
        """A replica leaves a view, or enters one: a good moment to strike, it or another."""
        self.moments.view_changed(machine)
        is_awake = self._has_started and not self._is_over
        if not (is_awake and self._kinds and self._world.options.is_ambushed):
            return
        if self._random.randrange(AMBUSH_ONE_IN) == 0:
            self._marked = machine
            self._world.schedule.after(self._random.randint(0, AMBUSH_WITHIN_MS), self._strike)

    def stop(self) -> None:
        """Let everything be repaired that can be: no fault happens any more."""
        self._is_over = True
        self.moments.stop()
        self.kept_down.clear()
        for machine in self._world.machines:
            machine.is_disk_slow = machine.is_stage_slow = False
            machine.disk.capacity_bytes = 1 << 40
            machine.disk.failing_syncs.clear()
            machine.disk.sectors_misdirected = 0
            if machine.process is not None:
                machine.process.crash_after_effects = None
            machine.resume()
            self._world.schedule.after(0, machine.boot_again)

    def _pause_ms(self) -> int:
        return 1 + int(self._random.expovariate(1 / self._world.options.fault_interval_ms))

    def _strike_again(self) -> None:
        if self._is_over:
            return
        self._strike()
        has_company = self._random.randrange(COMPANY_ONE_IN) == 0
        if self._world.options.is_ambushed and has_company:
            self._world.schedule.after(self._random.randint(0, AMBUSH_WITHIN_MS), self._strike)
        self._world.schedule.after(self._pause_ms(), self._strike_again)

    def _strike(self) -> None:
        if self._is_over:
            return
        kind = self._random.choice(self._kinds)
        if STRIKES[kind](self):
            self._world.marks.hit(f"fault {kind.value}")

    def _for_a_while(self, end: Callable[[], None]) -> None:
        self._world.schedule.after(self._random.choice(FAULT_MS), end)

    def _machine(self) -> Machine:
        """Pick a machine: one whose view changed just now, or in half of the cases a primary."""
        marked, self._marked = self._marked, None
        if marked is not None and self._random.random() < 0.5:
            return marked
        machines = self._world.machines
        primaries = [machine for machine in machines if machine.is_leading]
        return self._random.choice(
            primaries if primaries and self._random.random() < 0.5 else machines
        )

    def _victim(self) -> Machine:
        """Pick a machine whose disk may be damaged."""
        return self._world.machines[self._random.choice(self.atlas.victims)]

    def _note(self, machine: Machine | None, *what: object) -> None:
        self._world.trace.note("*" if machine is None else machine.name, "fault", *what)

    # --- The faults; each returns whether it happened ---

    def _partition(self) -> bool:
        members = list(range(self._world.options.machine_count))
        shape = self._random.choice(SHAPES)
        links = partition(shape, members, self._machine().index, self._random)
        self._world.network.cut(links)
        self._note(None, "partition", shape, links)
        self._world.marks.hit(f"partition {shape}")
        self._for_a_while(lambda: self._world.network.cut([]))
        return True

    def _clog(self) -> bool:
        members = range(self._world.options.machine_count)
        links = [(a, b) for a in members for b in members if a != b and self._random.random() < 0.4]
        until_ms = self._world.schedule.now_ms + self._random.choice(FAULT_MS[:4])
        self._world.network.clog(links, until_ms)
        self._note(None, "clog", links, until_ms)
        return bool(links)

    def _crash(self) -> bool:
        machine = self._machine()
        if machine.process is None:
            return False
        self._maybe_keep_down(machine)
        machine.process.crash_after_effects = self._random.randrange(EFFECTS_BEFORE_CRASH_MAX)
        return True

    def _power(self) -> bool:
        machine = self._machine()
        is_all = self._random.randrange(ALL_POWER_ONE_IN) == 0
        machines = self._world.machines if is_all else [machine]
        if not is_all:
            self._maybe_keep_down(machine)
        for each in machines:
            each.crash(is_power=True, reason="of all" if is_all else "")
        self._world.marks.hit("power of all", int(is_all))
        return True

    def _maybe_keep_down(self, machine: Machine) -> None:
        if self._random.randrange(DOWN_FOR_LONG_ONE_IN) == 0:
            self.keep_down(machine, self._random.choice(DOWN_MS))

    def keep_down(self, machine: Machine, duration_ms: int) -> None:
        """Let no process start on a machine for some time."""
        self.kept_down.add(machine.index)
        self._world.schedule.after(duration_ms, lambda: self._let_up(machine))

    def _let_up(self, machine: Machine) -> None:
        self.kept_down.discard(machine.index)
        machine.boot_again()

    def _pause(self) -> bool:
        machine = self._machine()
        duration_ms = self._random.choice(FAULT_MS)
        self._note(machine, "pause", duration_ms)
        machine.pause(duration_ms)
        return machine.is_up

    def _slow_disk(self) -> bool:
        machine = self._machine()
        machine.is_disk_slow = True
        self._for_a_while(lambda: setattr(machine, "is_disk_slow", False))
        return True

    def _slow_stage(self) -> bool:
        machine = self._machine()
        machine.is_stage_slow = True
        self._for_a_while(lambda: setattr(machine, "is_stage_slow", False))
        return True

    def _rot(self) -> bool:
        if self._random.random() < CORNERED_SHARE and self._corner(self._rot_head):
            return True
        # The last entries are the ones that anybody still asks for.
        return self._rot_one(
            self._victim(),
            lambda held: max(0, len(held) - 1 - int(self._random.expovariate(1 / 6))),
        )

    def _rot_one(self, machine: Machine, pick: Callable[[list[int]], int]) -> bool:
        """Damage one of the entries that a journal holds."""
        if machine.process is None:
            return False
        journal = machine.process.files.journal
        ops = held_ops(journal)
        if not ops:
            return False
        op = ops[pick(ops)]
        place = journal.index.get(op)
        assert place is not None
        machine.damaged_ops.add(op)
        path = segment_path(JOURNAL, place.segment)
        machine.disk.rot(path, place.offset, place.extent_bytes, self._random)
        self._note(machine, "rot of op", op)
        return True

    def _corner(self, hurt: Callable[[Machine], bool]) -> bool:
        """Let as few as may commit, hurt all of them but one, and let that one die.

        What they committed is intact on the dead one alone. The others, who missed it, come back,
        and must not agree with those who were hurt that it never was. False if that cannot be.
        """
        machines = self._world.machines
        victims = [machines[index] for index in self.atlas.voters]
        primary = next((machine for machine in machines if machine.is_leading), None)
        if primary is None or primary in victims or not self._may_corner:
            return False
        group = [machine.index for machine in (primary, *victims)]
        others = [machine.index for machine in machines if machine.index not in group]
        self._world.network.cut(between([group, others]))
        self._note(primary, "cornered with", self.atlas.voters)
        self._world.marks.hit("cornered")

        def strike() -> None:
            if not self._is_over:
                for victim in victims:
                    hurt(victim)
                self._world.schedule.after(self._random.randint(0, CORNER_MS), finish)

        def finish() -> None:
            if not self._is_over:
                self._world.network.cut([])
                self.keep_down(primary, self._random.choice(DOWN_MS[:2]))
                primary.crash(reason="cornered")

        self._world.schedule.after(self._random.randint(0, CORNER_MS), strike)
        return True

    @property
    def _may_corner(self) -> bool:
        """Whether the seed has the other faults that this takes."""
        return self._world.options.faults >= {FaultKind.CRASH, FaultKind.PARTITION}

    def rot_last(self, machine: Machine) -> bool:
        """Damage the last entry."""
        return self._rot_one(machine, lambda held: len(held) - 1)

    def rot_op(self, machine: Machine, op: int) -> bool:
        """Damage this entry, if it is there."""
        journal = None if machine.process is None else machine.process.files.journal
        if journal is None or journal.header(op) is None:
            return False
        return self._rot_one(machine, lambda held: held.index(op))

    def _rot_head(self, machine: Machine) -> bool:
        """Damage the last entry, and let the process come back to it."""
        is_hurt = self.rot_last(machine)
        machine.crash(is_power=self._random.random() < 0.5, reason="rotten")
        return is_hurt

    def _superblock_rot(self) -> bool:
        """Damage one copy of four, at most one for each process: two must be left to agree."""
        machine = self._random.choice(self._world.machines)
        process = machine.process
        if process is None or process.has_rotten_superblock or not process.files.superblock.exists:
            return False
        process.has_rotten_superblock = True
        copy = self._random.randrange(COPIES)
        machine.disk.rot(SUPERBLOCK, copy * COPY_BYTES, COPY_BYTES, self._random)
        self._note(machine, "rot of superblock copy", copy)
        return True

    def _stage_crash(self) -> bool:
        machine = self._machine()
        if machine.process is None:
            return False
        self._note(machine, "a stage dies")
        return machine.process.application.crash_stage()

    def _misdirected(self) -> bool:
        machine = self._victim()
        machine.is_untrusted = True
        machine.disk.sectors_misdirected = self._random.randint(
            1, self._world.options.segment_sectors
        )
        self._note(machine, "next write is misdirected")
        return True

    def _full_disk(self) -> bool:
        machine = self._machine()
        used_bytes = machine.disk.capacity_bytes - machine.disk.free_bytes("")
        machine.disk.capacity_bytes = used_bytes
        self._note(machine, "disk full")
        self._for_a_while(lambda: setattr(machine.disk, "capacity_bytes", 1 << 40))
        return True

    def _failed_sync(self) -> bool:
        machine = self._machine()
        which = machine.disk.syncs + self._random.randrange(SYNCS_BEFORE_FAILURE_MAX)
        machine.disk.failing_syncs.add(which)
        self._note(machine, "a sync will fail")
        return True

    def _lost_disk(self) -> bool:
        if self._random.random() < CORNERED_SHARE and self._corner(self._lose_disk):
            return True
        return self._lose_disk(self._victim())

    def _lose_disk(self, machine: Machine) -> bool:
        if self._lost_disks[machine.index] >= DISKS_LOST_MAX:
            return False
        self._lost_disks[machine.index] += 1
        machine.lose_disk()
        return True

    def put_back(self, machine: Machine, superblock: SuperblockCopyOnFile) -> bool:
        """Put an older superblock back; that costs the disk. Return whether it happened."""
        count = self._older_superblocks[machine.index]
        if machine.process is None or count >= OLDER_SUPERBLOCKS_MAX:
            return False
        self._older_superblocks[machine.index] += 1
        self._note(machine, "older superblock", superblock.sequence)
        machine.put_back(superblock)
        return True


STRIKES: Final[dict[FaultKind, Callable[[Nemesis], bool]]] = {
    FaultKind.PARTITION: Nemesis._partition,
    FaultKind.CLOG: Nemesis._clog,
    FaultKind.CRASH: Nemesis._crash,
    FaultKind.POWER: Nemesis._power,
    FaultKind.PAUSE: Nemesis._pause,
    FaultKind.SLOW_DISK: Nemesis._slow_disk,
    FaultKind.SLOW_STAGE: Nemesis._slow_stage,
    FaultKind.ROT: Nemesis._rot,
    FaultKind.SUPERBLOCK_ROT: Nemesis._superblock_rot,
    FaultKind.STAGE_CRASH: Nemesis._stage_crash,
    FaultKind.MISDIRECTED: Nemesis._misdirected,
    FaultKind.FULL_DISK: Nemesis._full_disk,
    FaultKind.FAILED_SYNC: Nemesis._failed_sync,
    FaultKind.LOST_DISK: Nemesis._lost_disk,
}
