"""Stories about a cluster, told in text files: what is done to it, and what must come of it.

The simulation runs as always, with all its checkers, but nothing goes wrong unless the story says
so. One step stands on each line; `#` begins a comment. WHO is `r0`, `primary`, `backup` (the first
one), or a name given by `call NAME WHO`. See `STEPS` for the steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coordinator import vsr
from coordinator.journal.segment import segment_path
from coordinator.journal.superblock import COPY_BYTES
from testkit.checkers.checker import Broken
from testkit.checkers.history import held_ops
from testkit.partitions import between, partition
from testkit.simulation.branches import counted
from testkit.simulation.chain import COUNTERS, ChainApplication
from testkit.simulation.machine import (
    JOURNAL,
    SUPERBLOCK,
    Doom,
    JournalCopy,
    Machine,
    SuperblockCopyOnFile,
)
from testkit.simulation.moments import copy_of_superblock
from testkit.simulation.options import Options, Scale, draw
from testkit.simulation.simulation import SeedFailure, Simulation, seeded_entropy
from testkit.simulation.wrong_clocks import US_PER_S, WrongClock
from viewstamp.limits import FORFEIT_LAG_OPS

WAIT_MS: Final = 60_000
SETTINGS: Final = (
    "seed",
    "replicas",
    "standbys",
    "clients",
    "sectors",
    "application",
    "snapshots",
    "retain",
    "reads",
)
RETAIN_BYTES: Final = 1 << 20


def quiet(settings: dict[str, str]) -> Options:
    """Return options without any fault."""
    application = settings.get("application", "chain")
    return replace(
        draw(int(settings.get("seed", "1")), Scale.QUICK),
        replica_count=int(settings.get("replicas", "3")),
        standby_count=int(settings.get("standbys", "0")),
        client_count=int(settings.get("clients", "3")),
        segment_sectors=int(settings.get("sectors", "16")),
        application=application,
        commands=0,
        faults=frozenset(),
        delay_ms=2,
        loss_percent=0,
        duplication_percent=0,
        sync_ms=2,
        apply_ms=1,
        think_ms=5,
        is_bursty=False,
        is_ambushed=False,
        is_bootstrap_struck=False,
        leanings=frozenset(),
        poorly_carried="",
        forfeit_lag_ops=FORFEIT_LAG_OPS,
        retain_ms=int(settings.get("retain", "0")),
        retain_bytes=RETAIN_BYTES,
        snapshot_ops=int(settings.get("snapshots", "0")),
        reads_percent=int(settings.get("reads", "10")) if application == "chain" else 0,
    )


class Scenario:
    """One story under way."""

    def __init__(self, text: str) -> None:
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        words = [(number, line) for number, line in enumerate(lines, start=1) if line]
        settings = {
            line.split()[0]: line.split()[1] for _, line in words if line.split()[0] in SETTINGS
        }
        self._steps = [step for step in words if step[1].split()[0] not in SETTINGS]
        self.simulation = Simulation(quiet(settings))
        self._names: dict[str, Machine] = {}
        self._superblocks: dict[int, SuperblockCopyOnFile] = {}
        self._journals: dict[int, JournalCopy] = {}
        self._entropy = seeded_entropy(self.simulation.random("entropy"))

    def play(self) -> None:
        """Take every step; raises Failure with the line that it came to."""
        simulation = self.simulation
        with self._entropy, simulation.limits(), counted(simulation.marks):
            number, line = 0, "bootstrap"
            try:
                self.simulation.start()
                for number, line in self._steps:
                    self.simulation.trace.note("*", "step", f"line {number}: {line}")
                    self._step(line)
            except Exception as error:
                self.simulation.trace.note("*", "failed", f"line {number}: {line}")
                raise SeedFailure(self.simulation, error) from error

    def _step(self, line: str) -> None:
        for pattern, step in STEPS:
            match = re.fullmatch(pattern, line)
            if match is not None:
                step(self, *match.groups())
                return
        raise ValueError(f"no step reads {line!r}; see STEPS in {__name__}")

    # --- Who ---

    def who(self, name: str) -> Machine:
        """The machine that a word means."""
        machines = self.simulation.machines
        if name in self._names:
            return self._names[name]
        if name == "primary":
            return self._primary()
        if name == "backup":
            primary = self._primary()
            return next(m for m in machines if m is not primary and m.process is not None)
        return machines[int(name.removeprefix("r"))]

    def _primary(self) -> Machine:
        """The one of the latest view that serves."""
        serving = [
            (machine.process.core.view, machine.index)
            for machine in self.simulation.machines
            if machine.process is not None
            and machine.process.core.status is vsr.ReplicaStatus.NORMAL
            and machine.process.core.primary == machine.index
        ]
        assert serving, f"nobody is primary: {self.simulation}"
        return self.simulation.machines[max(serving)[1]]

    def call(self, name: str, who: str) -> None:
        """Give a machine a name, for later."""
        self._names[name] = self.who(who)

    # --- Load and time ---

    def ask(self, requests: str) -> None:
        """Let clients begin requests, without waiting for the answers."""
        self.simulation.want(int(requests))

    def answers(self) -> None:
        """Wait until every client has its answer."""
        if not self.simulation.run_until(self.simulation.is_answered, WAIT_MS):
            raise Broken("Liveness", f"not answered in {WAIT_MS} ms: {self.simulation}")

    def write(self, requests: str) -> None:
        """Let clients make requests and get their answers."""
        self.ask(requests)
        self.answers()

    def run(self, duration_ms: str) -> None:
        """Let time pass."""
        self.simulation.run_until(lambda: False, int(duration_ms))

    def settle(self) -> None:
        """Heal everything; all replicas must come to the same rest, with all clients answered."""
        self.simulation.network.heal()
        self.simulation.nemesis.stop()
        self.simulation.want(3)
        if not self.simulation.run_until(self.simulation.is_at_rest, WAIT_MS):
            raise Broken("Liveness", f"no rest in {WAIT_MS} ms: {self.simulation}")
        self.simulation.check_end()

    # --- Trouble ---

    def crash(self, who: str) -> None:
        """Kill a process; it stays down until `boot`."""
        machine = self.who(who)
        self.simulation.nemesis.kept_down.add(machine.index)
        machine.crash(reason="killed")

    def crash_within(self, who: str, effects: str) -> None:
        """Kill a process after so many more effects; it comes back by itself."""
        process = self.who(who).process
        assert process is not None, f"{who} is down"
        process.crash_after_effects = int(effects)

    def crash_in_job(self, how: str, who: str, kind: str, step: str) -> None:
        """End a process, or a machine's power, before some I/O step of its next job of a kind.

        The machine comes back by itself. Jobs are `append`, `snapshot`, `adopt`, `state transfer`.
        """
        self.who(who).doom = Doom(kind, int(step), is_power=how == "power")

    def power(self, who: str) -> None:
        """Take the power from a machine, or from all; they stay down until `boot`."""
        machines = self.simulation.machines if who == "all" else [self.who(who)]
        for machine in machines:
            self.simulation.nemesis.kept_down.add(machine.index)
            machine.crash(is_power=True)

    def boot(self, who: str) -> None:
        """Start a machine, or all."""
        for machine in self.simulation.machines if who == "all" else [self.who(who)]:
            self.simulation.nemesis.kept_down.discard(machine.index)
            machine.boot_again()

    def pause(self, who: str, duration_ms: str) -> None:
        """Freeze a process."""
        self.who(who).pause(int(duration_ms))

    def slow_disk(self, who: str) -> None:
        """Make a disk slow, until `settle`."""
        self.who(who).is_disk_slow = True

    def hang(self, who: str) -> None:
        """Let the stages of a replica stand still, until `settle`."""
        self.who(who).is_stage_hung = True

    def resign(self, who: str) -> None:
        """Ask a replica to lead no more."""
        self.simulation.nemesis.moments.resign(self.who(who))

    def alone(self, who: str) -> None:
        """Let a replica die before it tells a log that it is to lead with, whose head rots."""
        self.simulation.nemesis.moments.leave_alone_with_its_log(self.who(who))

    def fail_sync(self, who: str) -> None:
        """Let the next sync of a disk fail."""
        disk = self.who(who).disk
        disk.failing_syncs.add(disk.syncs)

    def fill_disk(self, who: str) -> None:
        """Leave no space on a disk, until `settle`."""
        disk = self.who(who).disk
        disk.capacity_bytes -= disk.free_bytes("")

    def clock(self, who: str, where: str, by_s: str) -> None:
        """Set a clock wrong, until `settle`."""
        jump_us = int(by_s) * US_PER_S * (1 if where == "ahead" else -1)
        self.who(who).wrong_clock = WrongClock(jump_us)

    def lose_disk(self, who: str) -> None:
        """Replace a disk by an empty one."""
        self.who(who).lose_disk()

    def copy_superblock(self, who: str) -> None:
        """Keep the superblock of a replica as it is now."""
        self._superblocks.update(copy_of_superblock(self.who(who)))

    def put_superblock_back(self, who: str) -> None:
        """Put the copy in place of the superblock, with a new start."""
        machine = self.who(who)
        machine.put_back(self._superblocks[machine.index])

    def copy_journal(self, who: str) -> None:
        """Keep the journal of a replica as it is now."""
        machine = self.who(who)
        self._journals[machine.index] = machine.journal_copy()

    def put_journal_back(self, who: str) -> None:
        """Put the copy in place of the journal, with a new start."""
        machine = self.who(who)
        machine.put_back_journal(self._journals[machine.index])

    def diverge(self, who: str, word: str | None) -> None:
        """Change a replica's state without an entry in the log.

        Requests use the counters `in use`, so the answers differ from then on. They do not use the
        other one, which only a snapshot shows.
        """
        machine = self.who(who)
        assert machine.process is not None, f"{who} is down"
        application = machine.process.application
        assert isinstance(application, ChainApplication), "only the chain can be changed"
        counters = application.state.counters
        for counter in range(COUNTERS) if word else (COUNTERS,):
            counters[counter] = counters.get(counter, 0) + 1
        self.simulation.generations.diverged.add(machine.index)

    def rot(self, which: str, who: str) -> None:
        """Damage the record of an op: a number, `last`, or `committed` (the last that is)."""
        machine = self.who(who)
        assert machine.process is not None, f"{who} is down"
        journal = machine.process.files.journal
        ops = held_ops(journal)
        names = {"last": ops[-1], "committed": len(self.simulation.checks.history.entries)}
        op = names[which] if which in names else int(which)
        place = journal.index.get(op)
        assert place is not None, f"{who} does not hold op {op}"
        machine.damaged_ops.add(op)
        for offset in range(place.offset, place.offset + place.extent_bytes, 512):
            machine.disk.flip(segment_path(JOURNAL, place.segment), offset)

    def misdirect(self, who: str, sectors: str) -> None:
        """Let the next record of a disk land so many sectors from its place."""
        machine = self.who(who)
        machine.is_untrusted = True
        machine.disk.sectors_misdirected = int(sectors)

    def rot_superblock(self, who: str) -> None:
        """Damage one copy of the superblock."""
        disk = self.who(who).disk
        disk.rot(SUPERBLOCK, 2 * COPY_BYTES, COPY_BYTES, self.simulation.random("rot"))

    def cut(self, shape: str, who: str) -> None:
        """Partition: `isolate`, `deaf` (hears nobody), `mute` (nobody hears it), `bridge`."""
        chosen = self.who(who).index
        members = list(range(self.simulation.options.machine_count))
        shape = {"isolate": "isolated"}.get(shape, shape)
        random = self.simulation.random("cut")
        self.simulation.network.cut(partition(shape, members, chosen, random))

    def cut_between(self, one: str, other: str) -> None:
        """Cut both directions between two groups, such as `r0,r1`."""
        groups = [[self.who(who).index for who in side.split(",")] for side in (one, other)]
        self.simulation.network.cut(between(groups))

    def mend(self) -> None:
        """End the partition."""
        self.simulation.network.cut([])

    # --- What must have come of it ---

    def expect_primary(self, word: str | None, who: str) -> None:
        """Who leads, or does not."""
        is_so = self._primary() is self.who(who)
        assert is_so == (word is None), f"{self._primary().name} is primary: {self.simulation}"

    def expect_view(self, relation: str | None, view: str) -> None:
        """The view of the primary."""
        process = self._primary().process
        assert process is not None
        found = process.core.view
        holds = found > int(view) if relation else found == int(view)
        assert holds, f"the view is {found}: {self.simulation}"

    def expect_status(self, who: str, status: str) -> None:
        """The status of a replica."""
        process = self.who(who).process
        found = "down" if process is None else process.core.status.value
        assert found == status, f"{who} is {found}: {self.simulation}"

    def expect_log_time(self, within_s: str) -> None:
        """That the last entry was made just now, by true time."""
        for machine in self.simulation.machines:
            assert machine.process is not None, f"{machine.name} is down"
            ahead_us = machine.process.core.log_time_us - machine.true_clock_us()
            assert abs(ahead_us) <= int(within_s) * US_PER_S, f"{machine.name}: {ahead_us} us ahead"

    def expect_mark(self, word: str | None, name: str) -> None:
        """That something happened at least once, or never; see `Marks`."""
        count = self.simulation.marks.counts[name]
        found = sorted(self.simulation.marks.counts)
        assert (count > 0) == (word is None), f"{name!r} happened {count} times; so did {found}"


# What a line reads, and what it does.
STEPS: Final[tuple[tuple[str, Callable[..., None]], ...]] = (
    (r"call (\w+) (\w+)", Scenario.call),
    (r"ask (\d+)", Scenario.ask),
    (r"answers", Scenario.answers),
    (r"write (\d+)", Scenario.write),
    (r"run (\d+)", Scenario.run),
    (r"settle", Scenario.settle),
    (r"crash (\w+)", Scenario.crash),
    (r"crash (\w+) within (\d+) effects", Scenario.crash_within),
    (r"(crash|power) (\w+) in ([\w ]+) before step (\d+)", Scenario.crash_in_job),
    (r"power (\w+)", Scenario.power),
    (r"boot (\w+)", Scenario.boot),
    (r"pause (\w+) (\d+)", Scenario.pause),
    (r"slow disk (\w+)", Scenario.slow_disk),
    (r"hang (\w+)", Scenario.hang),
    (r"resign (\w+)", Scenario.resign),
    (r"alone (\w+)", Scenario.alone),
    (r"fail sync (\w+)", Scenario.fail_sync),
    (r"fill disk (\w+)", Scenario.fill_disk),
    (r"clock (\w+) (ahead|behind) by (\d+)", Scenario.clock),
    (r"lose disk (\w+)", Scenario.lose_disk),
    (r"copy superblock of (\w+)", Scenario.copy_superblock),
    (r"put superblock of (\w+) back", Scenario.put_superblock_back),
    (r"copy journal of (\w+)", Scenario.copy_journal),
    (r"put journal of (\w+) back", Scenario.put_journal_back),
    (r"diverge (\w+)( in use)?", Scenario.diverge),
    (r"rot (\w+) on (\w+)", Scenario.rot),
    (r"rot superblock of (\w+)", Scenario.rot_superblock),
    (r"misdirect (\w+) by (\d+)", Scenario.misdirect),
    (r"(isolate|deaf|mute|bridge) (\w+)", Scenario.cut),
    (r"cut ([\w,]+) from ([\w,]+)", Scenario.cut_between),
    (r"mend", Scenario.mend),
    (r"expect primary (not )?(\w+)", Scenario.expect_primary),
    (r"expect view (above )?(\d+)", Scenario.expect_view),
    (r"expect (\w+) is (\w+)", Scenario.expect_status),
    (r"expect log time within (\d+)", Scenario.expect_log_time),
    (r"expect (no )?mark (.+)", Scenario.expect_mark),
)
