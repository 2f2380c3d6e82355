"""Hostile callers beside an honest one: `python -m tests.abuse.campaign`.

Three replicas are bootstrapped and filled. The honest caller is measured alone, then beside all
kinds of attack at once, then alone again. The promise is kept if no answer was INTERNAL or UNKNOWN,
no process was restarted, the view did not change, and no honest call failed. A view that changed
while the machine gave a coordinator no processor for long is reported, but breaks no promise.

Exit code: 0 if every promise was kept, 1 if not, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from testkit.load.interrupt import cancel_on_signals
from tests.abuse import scene
from tests.abuse.attacks import KINDS
from tests.abuse.honest import Figures, Honest, plain_caller
from tests.abuse.observation import Observation
from tests.abuse.report import print_report, write_tables
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalReplicas
from viewstamp.limits import TOPICS_PER_STREAM_MAX

CALLS: Final = 1_000_000
SECONDS: Final = 180.0
# The attack ends after this time on a slow machine, too: with too few calls it proves nothing.
SECONDS_MAX: Final = 1_800.0
IDLE_S: Final = 15.0
CALMING_S: Final = 5.0
REPLICAS: Final = 3
ATTACKERS: Final = 3
CLIENT_TIMEOUT_S: Final = 60.0
VIEW_CHANGED: Final = "the view changed"
# Callers of a replica may get this answer during a view change.
NOT_IN_SERVICE: Final = "the replica is not in service"
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Plan:
    """The least that a campaign must do: a number of calls, and a number of seconds."""

    calls: int = CALLS
    seconds: float = SECONDS
    idle_s: float = IDLE_S
    replicas: int = REPLICAS
    topics: int = TOPICS_PER_STREAM_MAX
    kinds: tuple[str, ...] = tuple(KINDS)


@dataclass(frozen=True, slots=True)
class AbuseOutcome:
    """The results of a campaign. `attacks` has the counts of each kind."""

    plan: Plan
    seconds: float
    phases: dict[str, Figures]
    attacks: dict[str, dict[str, Any]]
    observation: Observation

    @property
    def calls(self) -> int:
        """Hostile calls in all."""
        return sum(each["calls"] for each in self.attacks.values())

    def broken(self) -> list[str]:
        """Return the promises that were broken."""
        seen = self.observation
        found = [
            f"{name}: {text}" for name, each in self.attacks.items() for text in each["broken"]
        ]
        found += [f"{name} was restarted {count} times" for name, count in seen.restarts.items()]
        if seen.unexcused_views:
            found.append(f"{VIEW_CHANGED}: {seen.views}")
        for phase, figures in self.phases.items():
            found += [
                f"honest caller, {phase}: {error} x {count}"
                for error, count in figures.errors.items()
                if not (seen.excuses and NOT_IN_SERVICE in error)
            ]
        if self.calls < self.plan.calls:
            found.append(f"{self.calls} hostile calls were made; {self.plan.calls} are demanded")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return all results, for JSON."""
        return {
            "plan": asdict(self.plan),
            "seconds": round(self.seconds, 1),
            "hostile_calls": self.calls,
            "honest": {name: figures.as_dict() for name, figures in self.phases.items()},
            "attacks": self.attacks,
            "memory_mib": {name: asdict(each) for name, each in self.observation.memory.items()},
            "restarts": self.observation.restarts,
            "views": self.observation.views,
            "stalls": {str(view): text for view, text in self.observation.excuses.items()},
            "broken": self.broken(),
        }


class Attackers:
    """Processes of hostile callers, and their newest counts."""

    def __init__(self, addresses: Sequence[str], kinds: Sequence[str]) -> None:
        self._addresses = ",".join(addresses)
        self._groups = [list(kinds[index::ATTACKERS]) for index in range(ATTACKERS)]
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []
        self.counts: dict[str, dict[str, Any]] = {}

    @property
    def calls(self) -> int:
        """The number of all calls so far."""
        return sum(each["calls"] for each in self.counts.values())

    async def start(self) -> None:
        """Start all processes."""
        for kinds in filter(None, self._groups):
            command = (sys.executable, "-m", "tests.abuse.attacker", self._addresses, *kinds)
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            self._processes.append(process)
            self._readers.append(asyncio.create_task(self._read(process)))

    async def stop(self) -> None:
        """Let all processes end. Raises RuntimeError if one of them failed."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(b"stop\n")
                await process.stdin.drain()
        await asyncio.gather(*self._readers)
        codes = [await process.wait() for process in self._processes]
        if any(codes):
            raise RuntimeError(f"attackers ended with {codes}: see their tracebacks above")

    def kill(self) -> None:
        """Kill the processes that still run."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.counts.update(json.loads(line))


async def run(directory: Path, plan: Plan, say: Console) -> AbuseOutcome:
    """Run the campaign and return its results."""
    async with LocalReplicas(directory, plan.replicas, "127.0.0.1:0") as replicas:
        password = replicas.root_password_path.read_text().strip()
        async with await connected(replicas, "root", password) as admin:
            say.print("filling the cluster")
            await scene.prepare(admin, topics=plan.topics)
            observation = Observation(replicas, admin)
            async with _beside(observation.run()), _honest(replicas) as honest:
                return await _phases(plan, say, replicas, observation, honest)


async def _phases(
    plan: Plan, say: Console, replicas: LocalReplicas, observation: Observation, honest: Honest
) -> AbuseOutcome:
    phases: dict[str, Figures] = {}
    say.print(f"idle: the honest caller alone, {plan.idle_s:g} s")
    await asyncio.sleep(CALMING_S)
    honest.begin_phase()
    await asyncio.sleep(plan.idle_s)
    phases["idle"] = honest.begin_phase()
    attackers = Attackers(replicas.addresses, plan.kinds)
    begun = time.monotonic()
    try:
        await attackers.start()
        await _until_enough(plan, say, attackers, begun)
        phases["abused"] = honest.begin_phase()
        seconds = time.monotonic() - begun
    finally:
        await _ended(attackers)
    await asyncio.sleep(CALMING_S)
    honest.begin_phase()
    await asyncio.sleep(plan.idle_s)
    phases["afterwards"] = honest.begin_phase()
    return AbuseOutcome(plan, seconds, phases, attackers.counts, observation)


async def _until_enough(plan: Plan, say: Console, attackers: Attackers, begun: float) -> None:
    with say.status("attacking") as status:
        while (passed := time.monotonic() - begun) < SECONDS_MAX:
            if passed >= plan.seconds and attackers.calls >= plan.calls:
                return
            status.update(f"attacking: {attackers.calls:,} calls in {passed:.0f} s")
            await asyncio.sleep(0.5)


async def _ended(attackers: Attackers) -> None:
    try:
        await attackers.stop()
    finally:
        attackers.kill()


async def connected(replicas: LocalReplicas, username: str, password: str) -> Client:
    """Return a client of the product's own."""
    return await connect(
        replicas.addresses, username=username, password=password, timeout_s=CLIENT_TIMEOUT_S
    )


@asynccontextmanager
async def _honest(replicas: LocalReplicas) -> AsyncIterator[Honest]:
    logins = plain_caller(replicas.addresses[0])
    async with await connected(replicas, scene.HONEST, scene.PASSWORD) as client:
        honest = Honest(client, logins)
        task = asyncio.create_task(honest.run())
        try:
            yield honest
        finally:
            honest.stop()
            await task
            await logins.close()


@asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="Abuse a cluster, and see what others notice.")
    parser.add_argument("--calls", type=int, default=CALLS, help="at least; default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="at least; default: %(default)s"
    )
    parser.add_argument("--idle-seconds", type=float, default=IDLE_S)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only these")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--tables", type=Path, help="put the tables into this document")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign, print its results, and return the exit code."""
    options = parsed(arguments)
    logging.getLogger("viewstamp").addHandler(logging.NullHandler())
    console = Console(highlight=False, stderr=True)
    directory = Path(tempfile.mkdtemp(prefix="viewstamp-abuse-"))
    console.print(f"directory {directory}")
    kinds = tuple(options.kind or KINDS)
    plan = Plan(options.calls, options.seconds, options.idle_seconds, kinds=kinds)
    try:
        outcome = asyncio.run(_interruptible(directory, plan, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: nothing was shown")
        return EXIT_INTERRUPTED
    print_report(console, outcome.as_dict())
    if options.json:
        options.json.write_text(json.dumps(outcome.as_dict(), indent=1) + "\n")
    if options.tables:
        write_tables(options.tables, outcome.as_dict())
    return EXIT_BROKEN if outcome.broken() else EXIT_KEPT


async def _interruptible(directory: Path, plan: Plan, console: Console) -> AbuseOutcome:
    cancel_on_signals()
    return await run(directory, plan, console)


if __name__ == "__main__":
    sys.exit(main())
