"""Kill the primary of three loaded replicas again and again, and judge what the callers saw.

SIGKILL hits the primary at random moments. Callers create, delete and read topics out of a small
set, so that they meet. One order of all operations must explain what each saw; it is the order of
the cluster's revisions, with nothing lost and nothing done twice. In the end all replicas must have
applied the same op, with the same digests.

Exit code: 0 if every promise was kept, 1 if not, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testkit.load.failures import CLUSTER_FAILURES
from testkit.load.interrupt import cancel_on_signals
from tests.replicas.trial import ReplicasTrial, digests, on_transports, trial, under_load
from viewstamp.cluster.local import COORDINATOR
from viewstamp.transports import GRPCIO, WIRE

KILLS: Final = 20
REPLICAS: Final = 3
# Pauses between a return and the next kill, and between a kill and the wait for the killed one.
OPERATIONS: Final = 150
DELAY_MAX_S: Final = 1.0
# With snapshots a restart does not replay the whole log, which grows with each kill.
ARGUMENTS: Final = ("--snapshot-commands", "5000")
# The callers share the processors meanwhile.
READY_TIMEOUT_S: Final = 180.0
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class PrimaryKill:
    """One death of a primary, between these moments on the monotonic clock, in nanoseconds."""

    replica: int
    successor: int
    killed_ns: int
    healed_ns: int


async def kill_again_and_again(made: ReplicasTrial, kills: int, seed: int) -> list[PrimaryKill]:
    """Kill the primary so many times; each time wait until the killed replica follows again."""
    chosen, found = random.Random(seed), []
    async with under_load(made):
        for _ in range(kills):
            await made.until_answered(OPERATIONS)
            await asyncio.sleep(chosen.uniform(0, DELAY_MAX_S))
            primary = await made.primary()
            made.replicas.replicas[primary].kill(COORDINATOR)
            killed_ns = time.monotonic_ns()
            await made.until_answered(OPERATIONS)
            successor = await made.primary()
            await made.replicas.wait_ready(READY_TIMEOUT_S)
            found.append(PrimaryKill(primary, successor, killed_ns, time.monotonic_ns()))
    return found


async def violations(made: ReplicasTrial) -> list[str]:
    """Return the faults at the end, in what callers saw or among the replicas."""
    states = {digests(status) for status in await made.settled()}
    differ = [f"the replicas ended in {len(states)} different states"] if len(states) > 1 else []
    unanswered = sum(operation.returned_at is None for _, operation in made.history)
    # A caller with an open outcome leaves: if too many left, nothing would be tested.
    open_ended = [f"{unanswered} operations were never answered"] if unanswered else []
    return [*differ, *open_ended, *made.violations()]


async def run(
    directory: Path, kills: int, seed: int, transports: Sequence[str]
) -> tuple[ReplicasTrial, list[PrimaryKill], list[str]]:
    """Run the whole test. Raises CLUSTER_FAILURES."""
    cancel_on_signals()
    adapt = on_transports(transports)
    async with trial(directory, REPLICAS, arguments=ARGUMENTS, adapt=adapt) as made:
        found = await kill_again_and_again(made, kills, seed)
        return made, found, await violations(made)


def window_ms(answers_ns: Sequence[int], kill: PrimaryKill) -> float:
    """Return the longest time without an answer that ended between a kill and its healing."""
    gaps = [b - a for a, b in pairwise(answers_ns) if kill.killed_ns < b <= kill.healed_ns]
    return max(gaps) / 1e6


def answers_between(answers_ns: Sequence[int], kill: PrimaryKill) -> int:
    """Return how many operations were answered between a kill and its healing."""
    return sum(kill.killed_ns < at <= kill.healed_ns for at in answers_ns)


def print_kills(console: Console, made: ReplicasTrial, kills: Sequence[PrimaryKill]) -> None:
    """Print each kill, and its cost for the callers."""
    answers_ns = sorted(
        operation.returned_at for _, operation in made.history if operation.returned_at is not None
    )
    columns = ("kill", "primary", "successor", "without answers, ms", "answered while it was away")
    table = Table(*columns)
    for number, kill in enumerate(kills, 1):
        cells = (number, kill.replica, kill.successor, f"{window_ms(answers_ns, kill):.0f}")
        table.add_row(*map(str, cells), str(answers_between(answers_ns, kill)))
    console.print(table)
    windows = [window_ms(answers_ns, kill) for kill in kills]
    console.print(
        f"{len(made.history)} operations; without answers: median {median(windows):.0f} ms,"
        f" worst {max(windows):.0f} ms"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the test, print its result, and return the exit code."""
    parser = argparse.ArgumentParser(description="Kill the primary of loaded replicas.")
    parser.add_argument("--kills", type=int, default=KILLS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the kills")
    parser.add_argument(
        "--transports",
        default=WIRE,
        metavar="NAME,...",
        help=f"what carries the calls of each replica, such as {GRPCIO},{WIRE},{WIRE}"
        " (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    logging.getLogger("viewstamp").addHandler(logging.NullHandler())
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="viewstamp-cluster-"))
    console.print(
        f"{options.kills} kills, seed {options.seed}, on {options.transports},"
        f" directory {directory}"
    )
    exit_code = EXIT_BROKEN
    try:
        exit_code = _judge(console, directory, options)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        exit_code = EXIT_INTERRUPTED
    if exit_code == EXIT_BROKEN:
        console.print(f"kept as evidence: {directory}")
    else:
        shutil.rmtree(directory)
    return exit_code


def _judge(console: Console, directory: Path, options: argparse.Namespace) -> int:
    try:
        transports = options.transports.split(",")
        made, kills, found = asyncio.run(run(directory, options.kills, options.seed, transports))
    except CLUSTER_FAILURES as error:
        text = escape(f"{type(error).__name__}: {error}")
        console.print(f"[red]the test could not be brought to an end[/red]: {text}")
        return EXIT_BROKEN
    print_kills(console, made, kills)
    for violation in found:
        console.print(f"[red]{escape(violation)}")
    console.print("[red]a promise was broken" if found else "[green]every promise was kept")
    return EXIT_BROKEN if found else EXIT_KEPT


if __name__ == "__main__":
    sys.exit(main())
