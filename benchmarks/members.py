"""Measures what signs of life of group members cost: prints one JSON object.

`python -m benchmarks.members [--members N] [--rounds N] [--seconds S]`. One cluster is started
here. 50 sessions are members of so many groups that there are N memberships; each shows life as
often as the cluster asks of so many. In turns, every other round in reverse, all are `quiet`, or
show life: `together`, all members of a session at once, as the client library does it, or `alone`,
each at a moment of its own, as members of 10,000 programs would. Each is measured once without
other load and once beside `create_concurrent`. The report has the processor time of all processes
of the cluster, as a share of one core, and the commands per second with signs of life as ratios of
those without, round by round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.commands import machine, told_by
from benchmarks.telemetry import cpu_seconds, interval_of
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalCluster
from viewstamp.limits import MEMBER_HEARTBEAT_MS, MEMBER_TIMEOUT_MAX_US, ROOT_USERNAME

STREAM, TOPIC = "members", "events"
SESSIONS: Final = 50
MEMBERS: Final = 10_000
ROUNDS: Final = 6
SECONDS: Final = 10.0
# Signs of life leave in so many parts of an interval.
PARTS: Final = 250
LOAD: Final = "create_concurrent"
MODES: Final = ("quiet", "together", "alone")


@dataclass(slots=True)
class ShownMember:
    """One membership, and what it knows."""

    client: Client
    group: str
    epoch: int
    assignment: int = 0
    count: int = 0
    interval_ms: int = 0  # how often the cluster asks it to show life

    async def settle(self) -> bool:
        """Tell what is given up and heard of; return whether nothing is left to tell."""
        answer = await self._show()
        if not answer.must_heartbeat:
            return self.interval_ms >= MEMBER_HEARTBEAT_MS
        told = await self.client.groups.heartbeat(
            STREAM,
            TOPIC,
            self.group,
            member_epoch=self.epoch,
            owned_partitions=(),
            known_assignment=self.assignment,
        )
        self.epoch, self.assignment = told.member_epoch, told.assignment
        return False

    async def show_life(self) -> None:
        """Show life once."""
        await self._show()
        self.count += 1

    async def _show(self) -> Any:
        answer = await self.client.groups.keep_alive(
            STREAM,
            TOPIC,
            self.group,
            member_epoch=self.epoch,
            known_assignment=self.assignment,
        )
        self.epoch, self.assignment = answer.member_epoch, answer.assignment
        self.interval_ms = answer.interval_ms
        return answer


async def joined(clients: Sequence[Client], count: int) -> list[ShownMember]:
    """Create groups and let every session join each of them; return the settled members."""
    admin = clients[0]
    await admin.streams.create(STREAM)
    await admin.topics.create(STREAM, TOPIC, partitions_count=SESSIONS)
    groups = [f"group-{number}" for number in range(count // SESSIONS)]
    for group in groups:
        await admin.groups.create(
            STREAM, TOPIC, group, member_timeout_ms=MEMBER_TIMEOUT_MAX_US // 1_000
        )
    members = []
    for client in clients:
        answers = await asyncio.gather(*(client.groups.join(STREAM, TOPIC, g) for g in groups))
        members += [
            ShownMember(client, group, answer.member_epoch)
            for group, answer in zip(groups, answers, strict=True)
        ]
    while not all(await asyncio.gather(*(member.settle() for member in members))):
        print("settling", file=sys.stderr)
    return members


def parts_of(members: Sequence[ShownMember], mode: str) -> list[Sequence[ShownMember]]:
    """Return the members that show life at one moment, for all moments of an interval."""
    if mode == "quiet":
        return []
    if mode == "alone":
        return [members[number::PARTS] for number in range(PARTS)]
    parts: dict[Client, list[ShownMember]] = {}
    for member in members:
        parts.setdefault(member.client, []).append(member)
    return list(parts.values())


@asynccontextmanager
async def showing_life(parts: Sequence[Sequence[ShownMember]]) -> AsyncIterator[None]:
    """Let all members show life during the block."""
    showing = asyncio.create_task(_show_life(parts))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _show_life(parts: Sequence[Sequence[ShownMember]]) -> None:
    if not parts:
        return
    loop = asyncio.get_running_loop()
    interval_ms = max(member.interval_ms for part in parts for member in part)
    pause_s, begin_s = interval_ms / 1000 / len(parts), loop.time()
    number = 0
    async with asyncio.TaskGroup() as under_way:
        while True:
            for member in parts[number % len(parts)]:
                under_way.create_task(member.show_life())
            number += 1
            await asyncio.sleep(max(0.0, begin_s + number * pause_s - loop.time()))


async def measured(cluster: LocalCluster, seconds: float) -> dict[str, float]:
    """Return the cores that the cluster takes by itself, and its throughput under load."""
    before_s = cpu_seconds(cluster)
    await asyncio.sleep(seconds)
    cores = (cpu_seconds(cluster) - before_s) / seconds
    command = [sys.executable, "-m", "benchmarks.load", LOAD, "--seconds", str(seconds)]
    command += ["--address", cluster.address]
    command += ["--password-file", str(cluster.root_password_path)]
    told = await told_by(command)
    return {"cores": cores, "commands_per_s": told["commands_per_s"]}


async def compared(
    cluster: LocalCluster, members: Sequence[ShownMember], options: argparse.Namespace
) -> dict[str, Any]:
    """Measure in turns."""
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for number in range(options.rounds):
        for mode in MODES[:: -1 if number % 2 else 1]:
            async with showing_life(parts_of(members, mode)):
                found[mode].append(await measured(cluster, options.seconds))
            print(mode, found[mode][-1], file=sys.stderr)
    ratios = {
        mode: [
            alive["commands_per_s"] / quiet["commands_per_s"]
            for quiet, alive in zip(found["quiet"], found[mode], strict=True)
        ]
        for mode in MODES[1:]
    }
    return {
        "cores": {mode: round(median(r["cores"] for r in rows), 3) for mode, rows in found.items()},
        "commands_per_s": {
            mode: round(median(r["commands_per_s"] for r in rows), 1)
            for mode, rows in found.items()
        },
        "ratio": {mode: round(median(each), 3) for mode, each in ratios.items()},
        "ratio_interval": {
            mode: [round(end, 3) for end in interval_of(each)] for mode, each in ratios.items()
        },
        "shown": sum(member.count for member in members),
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a cluster with members, and measure it."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vs-members")))
        cluster = await stack.enter_async_context(LocalCluster(directory, "127.0.0.1:0"))
        password = cluster.root_password_path.read_text().strip()
        clients = [
            await stack.enter_async_context(
                await connect(cluster.address, username=ROOT_USERNAME, password=password)
            )
            for _ in range(SESSIONS)
        ]
        members = await joined(clients, options.members)
        found = await compared(cluster, members, options)
    asked_ms = max(member.interval_ms for member in members)
    return {"machine": machine(), "members": len(members), "interval_ms": asked_ms, **found}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.members", description=__doc__)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
