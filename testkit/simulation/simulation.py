"""A whole cluster in one process and one seed: trouble first, then peace, and checks throughout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from unittest.mock import patch

from coordinator import vsr
from coordinator.vsr import reads, view_change
from coordinator.vsr.quorum import QUORUMS
from testkit.checkers.checker import Broken
from testkit.checkers.checks import Checks
from testkit.checkers.history import History
from testkit.partitions import apart
from testkit.simulation import checkers
from testkit.simulation.application import ApplicationKind, SimulatedRequest
from testkit.simulation.branches import counted
from testkit.simulation.chain import CHAIN
from testkit.simulation.clients import Client, Read
from testkit.simulation.domains import DOMAINS
from testkit.simulation.levels import level_behind
from testkit.simulation.machine import Machine
from testkit.simulation.marks import Marks
from testkit.simulation.nemesis import Nemesis
from testkit.simulation.network import CLIENT_ADDRESS, Network
from testkit.simulation.options import COMMANDS_PER_REQUEST, OF_STORED_DATA, Options
from testkit.simulation.schedule import Schedule
from testkit.simulation.snapshots import Generations
from testkit.simulation.space import small
from testkit.simulation.trace import Trace

CLUSTER_ID: Final = bytes(15) + b"\x09"
# Requests that are asked for when all faults are over: the cluster must serve again.
REQUESTS_AFTERWARDS: Final = 12
START_WITHIN_MS: Final = 300
# In so many of the seeds with sound disks a part of the cluster must do alone at the end.
PART_ALONE_SHARE: Final = 0.8
# How the rest of a cluster whose core must do alone fares: it is gone, or cut off for good.
CUT_SHAPES: Final = ("isolated", "deaf", "mute")
REST_SHAPES: Final = ("down", *CUT_SHAPES)
# A cluster that does this much and gets nowhere is going round in circles.
STEPS_MAX: Final = 1_000_000
APPLICATIONS: Final[dict[str, ApplicationKind]] = {"chain": CHAIN, "domains": DOMAINS}


class SeedFailure(Exception):  # noqa: N818 - it is what a run comes to, not an error of this package.
    """The run went wrong: what, when, and what led to it."""

    def __init__(self, simulation: Simulation, cause: BaseException) -> None:
        self.simulation = simulation
        self.cause = cause
        self.kind = cause.checker if isinstance(cause, Broken) else type(cause).__name__
        super().__init__(f"{self.kind} at {simulation.schedule.now_ms} ms: {cause}")


class Simulation:
    """One run."""

    def __init__(self, options: Options, *, is_verbose: bool = False) -> None:
        self.options = options
        self.cluster_id = CLUSTER_ID
        self.schedule = Schedule()
        self.trace = Trace(lambda: self.schedule.now_ms, is_verbose=is_verbose)
        self.marks = Marks()
        self.kind = APPLICATIONS[options.application]
        model = self.kind.model()
        self.generations = Generations(options.replica_count)
        history = History(options.replica_count, model, lambda op: level_behind(op - 1))
        self.checks = Checks(history, checkers.CHECKERS)
        self.network = Network(
            options, self.schedule, self.random("network"), self.marks, self._deliver
        )
        self.machines = [
            Machine(self, index, self.random(f"machine {index}"))
            for index in range(options.machine_count)
        ]
        self.clients = [
            Client(
                self,
                index,
                self.kind.load(model, self.random(f"load {index}")),
                self.random(f"client {index}"),
            )
            for index in range(options.client_count)
        ]
        self.nemesis = Nemesis(self, self.random("nemesis"))
        self.phase = "safety"
        self.rush_until_ms = 0
        """Until then clients ask again as soon as they are answered."""
        self._commands_wanted = options.commands
        self._commands_asked = 0
        self._rest: tuple[int, ...] = ()
        """Who is down or cut off in the second phase, for good."""
        self._is_rest_down = False

    def random(self, name: str) -> Random:
        """Every part draws its own numbers, so that a change of one leaves the others alone."""
        return Random(f"{self.options.seed} {name}")

    # --- What parts ask of the whole ---

    @property
    def is_load_over(self) -> bool:
        """Whether clients have asked for all that they should."""
        return self._commands_asked >= self._commands_wanted

    @property
    def is_bootstrapped_everywhere(self) -> bool:
        """Whether every replica holds the first entry, durably, and may act on it."""
        return all(
            machine.process is not None and machine.process.core.status is vsr.ReplicaStatus.NORMAL
            for machine in self.machines
        )

    def asked(self, pending: SimulatedRequest | Read) -> None:
        """Count what a client begins."""
        if isinstance(pending, Read):
            self.checks.read_asked(pending)
        else:
            self._commands_asked += pending.command_count

    def want(self, requests: int) -> None:
        """Let clients ask for about so many more requests."""
        self._commands_wanted = max(
            self._commands_wanted, self._commands_asked + requests * COMMANDS_PER_REQUEST
        )
        for client in self.clients:
            client.start()

    def is_kept_down(self, index: int) -> bool:
        """Whether a replica's machine may not start now."""
        return index in self.nemesis.kept_down or (self._is_rest_down and index in self._rest)

    def _deliver(self, source: int, target: int, message: Any) -> None:
        if target >= CLIENT_ADDRESS:
            self.clients[target - CLIENT_ADDRESS].received(message)
        else:
            self.machines[target].receive(message)

    # --- The run ---

    def run(self) -> Marks:
        """Run both phases; raises Failure."""
        try:
            with seeded_entropy(self.random("entropy")), self.limits(), counted(self.marks):
                self.start()
                self.run_until(self.is_answered, self.options.safety_ms)
                self._heal()
                if not self.run_until(self.is_at_rest, self.options.liveness_ms):
                    raise Broken("Liveness", f"no rest in {self.options.liveness_ms} ms: {self}")
                self.check_end()
        except Exception as error:
            raise SeedFailure(self, error) from error
        return self.marks

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Let limits of the product be as small as this simulation's world."""
        waiting_max = self.options.reads_waiting_max
        with (
            patch.object(reads, "READ_INDEXES_WAITING_MAX", waiting_max),
            patch.object(view_change, "FORFEIT_LAG_OPS", self.options.forfeit_lag_ops),
            small(self.options.segment_sectors),
        ):
            yield

    def start(self) -> None:
        """Schedule the first boot of every machine, every client and the nemesis."""
        random = self.random("start")
        for machine in self.machines:
            self.schedule.after(random.randint(0, START_WITHIN_MS), machine.boot_again)
        for client in self.clients:
            self.schedule.after(random.randint(0, START_WITHIN_MS), client.start)
        self.nemesis.start()

    def run_until(self, is_done: Any, duration_ms: int) -> bool:
        """Go on until it is done; False if that takes too long."""
        end_ms = self.schedule.now_ms + duration_ms
        while not is_done():
            if self.schedule.now_ms > end_ms:
                return False
            assert self.schedule.steps < STEPS_MAX, f"{STEPS_MAX} steps lead nowhere: {self}"
            if not self.schedule.step():
                return False
        return True

    def is_answered(self) -> bool:
        """Whether the load is over and no client waits for an answer."""
        return self.is_load_over and all(client.pending is None for client in self.clients)

    def _heal(self) -> None:
        """End all faults. Where nothing stored was damaged, a view-change quorum must do alone.

        Standbys stay: in the end they have to have everything.
        """
        self.phase = "liveness"
        count = self.options.replica_count
        random = self.random("heal")
        shape = "whole"
        is_sound = not (self.options.faults & OF_STORED_DATA or self.options.is_bootstrap_struck)
        if is_sound and random.random() < PART_ALONE_SHARE:
            self._rest = self._drawn_rest(random)
            shape = random.choice(REST_SHAPES) if self._rest else shape
        self.trace.note("*", "heal", shape, self._rest)
        self.marks.hit(f"heal {shape}")
        self._is_rest_down = shape == "down"
        for index in self._rest if self._is_rest_down else ():
            self.machines[index].crash(reason="stays down")
        core = [index for index in range(count) if index not in self._rest]
        self.network.heal(apart(core, self._rest, shape) if shape in CUT_SHAPES else ())
        self.nemesis.stop()
        self.want(REQUESTS_AFTERWARDS)

    def _drawn_rest(self, random: Random) -> tuple[int, ...]:
        """Return all but a view-change quorum; in half of the cases with the primary."""
        count = self.options.replica_count
        order = random.sample(range(count), count)
        if random.random() < 0.5:
            leads = {m.index for m in self.machines if m.is_leading}
            order.sort(key=lambda index: index not in leads)
        return tuple(sorted(order[: count - QUORUMS[count].view_change]))

    @property
    def _core(self) -> list[Machine]:
        """The machines that must come to rest at the end: all, or as few as can do."""
        return [machine for machine in self.machines if machine.index not in self._rest]

    def is_at_rest(self) -> bool:
        """Whether all has been answered, and all members of the core have applied the same log."""
        if not self.is_answered():
            return False
        marks = set()
        for machine in self._core:
            process = machine.process
            if process is None or process.core.status is not vsr.ReplicaStatus.NORMAL:
                return False
            its = process.core.marks
            marks.add((its.view, its.op, its.commit_max, its.applied_op))
        return len(marks) == 1 and all(op == applied for _, op, _, applied in marks)

    def check_end(self) -> None:
        """Check what must hold once the cluster is at rest. Raises Broken."""
        history = self.checks.history
        executed = min(m.process.core.marks.applied_op for m in self._core if m.process is not None)
        if executed < max(history.acknowledged_op, len(history.entries)):
            raise Broken("AcknowledgedIsKept", f"op {executed} is the end; more was acknowledged")

    def __str__(self) -> str:
        lines = [f"{m.name} {m.process.core if m.process else 'down'}" for m in self.machines]
        pending = [c.pending for c in self.clients if c.pending is not None]
        return "\n  ".join([*lines, f"{len(pending)} clients wait: {pending[:3]}"])


@contextmanager
def seeded_entropy(random: Random) -> Iterator[None]:
    """Let what the product draws from the operating system come from the seed."""
    with patch.object(os, "urandom", random.randbytes):
        yield
