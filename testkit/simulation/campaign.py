"""`python -m testkit.simulation.campaign`: many seeds, in processes side by side, resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from testkit.campaign import SeedRunner
from testkit.simulation import document
from testkit.simulation.figures import WHOLE_SEEDS, markdown, shortfalls, total
from testkit.simulation.fingerprint import fingerprint
from testkit.simulation.options import Scale, draw
from testkit.simulation.outcome import Outcome, run_seed

FAILURES_SHOWN: Final = 20
GROUPS: Final = {
    "faults": "fault ",
    "partitions": "partition ",
    "messages": "sent ",
    "statuses": "status ",
    "drop rules": "dropped ",
    "branches": "branch ",
    "other marks": "",
}


def _run_one(scale: Scale, seed: int) -> Outcome:
    return run_seed(draw(seed, scale))


def runner(scale: Scale) -> SeedRunner[Outcome]:
    """Return what runs the seeds of a campaign of this scale."""
    return SeedRunner(partial(_run_one, scale), Outcome, fingerprint)


def problems(outcomes: Sequence[Outcome], scale: Scale) -> list[str]:
    """Why the campaign does not count: it must have run, and every seed must have been worked."""
    if not outcomes:
        return ["no seed was run"]
    found = [f"seed {o.seed}: {o.failure.splitlines()[0]}" for o in outcomes if not o.is_good]
    idle = [o.seed for o in outcomes if o.is_good and o.commands < scale.value]
    if idle:
        found.append(f"seeds with less than {scale.value} commands: {idle[:FAILURES_SHOWN]}")
    return found


def too_rare(outcomes: Sequence[Outcome], scale: Scale) -> list[str]:
    """Return what a whole campaign met too rarely; nothing for a shorter one."""
    is_whole = scale is Scale.CAMPAIGN and len(outcomes) >= WHOLE_SEEDS
    return shortfalls(outcomes) if is_whole else []


def summary(outcomes: Sequence[Outcome]) -> list[Table]:
    """Tables of what all seeds together went through."""
    left = dict(total(outcomes))
    tables = []
    for title, prefix in GROUPS.items():
        table = Table("what", "times", "seeds", title=title)
        for name in sorted(name for name in left if name.startswith(prefix)):
            seeds = sum(outcome.counts[name] > 0 for outcome in outcomes)
            table.add_row(name.removeprefix(prefix), f"{left.pop(name):,}", f"{seeds:,}")
        tables.append(table)
    return tables


def report(outcomes: Sequence[Outcome], scale: Scale, console: Console) -> int:
    """Print what the campaign came to; returns the exit status."""
    for table in summary(outcomes):
        console.print(table)
    found = problems(outcomes, scale) + too_rare(outcomes, scale)
    if outcomes and not too_rare(outcomes, scale):
        for each in shortfalls(outcomes):
            console.print(f"rare: {each}", markup=False)
    for problem in found[:FAILURES_SHOWN]:
        console.print(f"PROBLEM: {problem}", markup=False)
    took_s = sum(outcome.took_s for outcome in outcomes)
    console.print(
        f"{len(outcomes):,} seeds, {sum(not o.is_good for o in outcomes):,} failed; "
        f"{sum(o.commands for o in outcomes):,} commands in {sum(o.ops for o in outcomes):,} ops; "
        f"{sum(o.simulated_ms for o in outcomes) / 3_600_000:,.1f} h simulated in {took_s:,.0f} s"
    )
    return 1 if found else 0


def main(arguments: list[str]) -> int:
    """Run a campaign; returns 0 if every seed is good."""
    parser = argparse.ArgumentParser(prog="python -m testkit.simulation.campaign")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="short runs, as in `make test`")
    parser.add_argument("--state", type=Path, help="where the seeds done are kept")
    parser.add_argument("--figures", type=Path, help="where the figures go, as markdown")
    chosen = parser.parse_args(arguments)
    console = Console()
    scale = Scale.QUICK if chosen.quick else Scale.CAMPAIGN
    seeds = range(chosen.seed, chosen.seed + chosen.count)
    outcomes = runner(scale).run(seeds, chosen.processes, chosen.state, console)
    if chosen.figures is not None and outcomes:
        document.write(chosen.figures, "figures", markdown(outcomes))
    return report(outcomes, scale, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
