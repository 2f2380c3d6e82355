"""Processes killed under load, each at a moment with many commands in flight."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from viewstamp.loadtest.generator import SILENCE_MAX_S, LoadGenerator
from viewstamp.loadtest.oracle import Check, Violation

PROCESSES: Final = ("coordinator", "users", "streams", "consumer_groups")
IN_FLIGHT_MIN: Final = 100


class Killable(Protocol):
    """What a kill needs of a cluster."""

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process. Raises ProcessLookupError if it is not running."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every process is ready. Raises ClusterFailed."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: of what, with how many commands in flight, and how long it was felt."""

    process: str
    in_flight: int
    first_new_ms: int
    in_flight_ms: int


async def kill_under_load(
    cluster: Killable, load: LoadGenerator, process: str, delay_s: float
) -> Kill:
    """Kill a process `delay_s` from now, at the first moment with 100 commands in flight.

    Returns once all of these are acknowledged and every process is ready again. Raises LoadFailed
    if they never are, ClusterFailed if a process does not come back.
    """
    await cluster.wait_ready(SILENCE_MAX_S)
    await asyncio.sleep(delay_s)
    while load.in_flight < IN_FLIGHT_MIN:
        await load.until_in_flight(IN_FLIGHT_MIN)
    # From here to the signal nothing else runs in this process: the count is of that moment.
    in_flight, unanswered = load.in_flight, load.unanswered()
    cluster.kill(process)
    restored = await load.until_restored(time.monotonic_ns(), unanswered)
    await cluster.wait_ready(SILENCE_MAX_S)
    return Kill(process, in_flight, restored.first_new_ms, restored.in_flight_ms)


def check_kills(
    wanted: Sequence[str], kills: Sequence[Kill], restarts: Mapping[str, int]
) -> list[Violation]:
    """Return where the kills were not those asked for, too quiet, or not survived."""
    evidence = [
        f"{kill.process} was killed with only {kill.in_flight} commands in flight"
        for kill in kills
        if kill.in_flight < IN_FLIGHT_MIN
    ]
    if [kill.process for kill in kills] != list(wanted):
        evidence.append(f"{len(wanted)} kills were asked for, {len(kills)} were made")
    for process, count in sorted(Counter(kill.process for kill in kills).items()):
        if restarts.get(process, 0) != count:
            text = f"{process} was killed {count} times and restarted {restarts.get(process, 0)}"
            evidence.append(f"{text} times")
    return [Violation(Check.KILLS, line) for line in evidence]
