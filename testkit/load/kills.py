"""Processes killed under load, each at a moment with many commands in flight."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from testkit.load.cuts import (
    Asked,
    CutKill,
    Moment,
    SnapshotRequests,
    moment_of,
    wall_clock_us,
)
from testkit.load.generator import SILENCE_MAX_S, LoadGenerator
from testkit.load.oracle import Check, Violation
from testkit.load.session import LoadFailed
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.routing import SERVICE_NAMES

PROCESSES: Final = ("coordinator", *SERVICE_NAMES)
IN_FLIGHT_MIN: Final = 100
# If a kill meant for a cut falls after its decision the next cut is tried, so many at most.
CUT_ATTEMPTS_MAX: Final = 30
# Of the usual time from cut to decision: this process learns of the cut late, and wakes up late.
EARLIER: Final = 0.5


class PlannedKill(NamedTuple):
    """A planned kill; `during_cut` means between the cut of a snapshot and its decision."""

    process: str
    during_cut: bool = False


class Killable(Protocol):
    """The part of a cluster that a kill uses."""

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process. Raises ProcessLookupError if it is not running."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every process is ready. Raises ClusterFailed."""


@dataclass(frozen=True, slots=True)
class ProcessKill:
    """One kill: of what, with how many commands in flight, and how long it was felt."""

    process: str
    in_flight: int
    first_new_ms: int
    in_flight_ms: int
    # Of a kill that was meant for a cut.
    cut: CutKill | None = None

    @property
    def counts(self) -> bool:
        """Whether it fell where it was meant to."""
        return self.cut is None or self.cut.moment is Moment.CUT


async def kill_under_load(
    cluster: Killable, load: LoadGenerator, process: str, delay_s: float
) -> ProcessKill:
    """Kill a process `delay_s` from now, at the first moment with 100 commands in flight.

    Returns once all of these are acknowledged and every process is ready again. Raises LoadFailed
    if they never are, ClusterFailed if a process does not come back.
    """
    await cluster.wait_ready(SILENCE_MAX_S)
    await asyncio.sleep(delay_s)
    while load.in_flight < IN_FLIGHT_MIN:
        await load.until_in_flight(IN_FLIGHT_MIN)
    return await _kill(cluster, load, process)


async def kill_during_cut(
    cluster: Killable,
    load: LoadGenerator,
    requests: SnapshotRequests,
    process: str,
    chance: random.Random,
) -> list[ProcessKill]:
    """Kill a process between the cut of a snapshot and its decision; return all attempts.

    All but the last came too late; if that did too, it was the last allowed. Raises as
    `kill_under_load` does, and what asking for snapshots raised.
    """
    attempts: list[ProcessKill] = []
    for _ in range(CUT_ATTEMPTS_MAX):
        await cluster.wait_ready(SILENCE_MAX_S)
        asked = await requests.next_asked()
        await asyncio.wait((asked.cut, asked.decided), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(chance.uniform(0.0, EARLIER * requests.duration_s))
        while load.in_flight < IN_FLIGHT_MIN:
            await load.until_in_flight(IN_FLIGHT_MIN)
        if asked.decided.done():
            asked.decided.result()
            continue
        asked.is_disturbed = True
        attempts.append(await _kill_during(cluster, load, asked, process))
        if attempts[-1].counts:
            break
    return attempts


async def _kill_during(
    cluster: Killable, load: LoadGenerator, asked: Asked, process: str
) -> ProcessKill:
    killed_us = wall_clock_us()
    kill = await _kill(cluster, load, process)
    try:
        async with asyncio.timeout(SILENCE_MAX_S):
            snapshot = await asked.decided
    except TimeoutError as error:
        text = f"{process} was killed during a cut: nothing was decided within {SILENCE_MAX_S:g} s"
        raise LoadFailed(text) from error
    state = snapshots_pb2.SnapshotState.Name(snapshot.state)
    moment = moment_of(killed_us, snapshot)
    cut = CutKill(snapshot.generation, moment, state.removeprefix("SNAPSHOT_STATE_"))
    return replace(kill, cut=cut)


async def _kill(cluster: Killable, load: LoadGenerator, process: str) -> ProcessKill:
    """Kill now; from here to the signal nothing else runs in this process."""
    in_flight, unanswered = load.in_flight, load.unanswered()
    cluster.kill(process)
    restored = await load.until_restored(time.monotonic_ns(), unanswered)
    await cluster.wait_ready(SILENCE_MAX_S)
    return ProcessKill(process, in_flight, restored.first_new_ms, restored.in_flight_ms)


def check_kills(
    wanted: Sequence[PlannedKill], kills: Sequence[ProcessKill], restarts: Mapping[str, int]
) -> list[Violation]:
    """Return where the kills were not those asked for, too quiet, or not survived."""
    evidence = [
        f"{kill.process} was killed with only {kill.in_flight} commands in flight"
        for kill in kills
        if kill.in_flight < IN_FLIGHT_MIN
    ]
    made = [PlannedKill(kill.process, kill.cut is not None) for kill in kills if kill.counts]
    if made != list(wanted):
        evidence += _differences(wanted, made)
    for process, count in sorted(Counter(kill.process for kill in kills).items()):
        if restarts.get(process, 0) != count:
            text = f"{process} was killed {count} times and restarted {restarts.get(process, 0)}"
            evidence.append(f"{text} times")
    return [Violation(Check.KILLS, line) for line in evidence]


def _differences(wanted: Sequence[PlannedKill], made: Sequence[PlannedKill]) -> list[str]:
    counts, found = Counter(wanted), Counter(made)
    return [
        f"{kill.process} was to be killed {counts[kill]} times"
        f"{' during a cut' if kill.during_cut else ''}, and was {found[kill]} times"
        for kill in sorted({*wanted, *made})
        if counts[kill] != found[kill]
    ] or ["the kills came in another order than planned"]
