"""`python -m testkit.world.campaign`: many seeds of the world, two at a time, resumable."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from testkit.campaigns import document, ledger
from testkit.campaigns.campaign import SeedRunner
from testkit.campaigns.fingerprint import fingerprint
from testkit.world.branches import NAMES
from testkit.world.fault_plan import ALL_KINDS
from testkit.world.options import draw
from testkit.world.run import WorldOutcome
from testkit.world.seeds import run_seed

ENTRY: Final = "testkit.world.seeds"
FAILURES_SHOWN: Final = 20
# So many seeds are a whole campaign: then every kind of fault, and every branch, has to have
# happened so often. What never happens proves nothing.
WHOLE_SEEDS: Final = 1_000
TIMES_MIN: Final = 10
_MS_PER_S: Final = 1_000


def _run_one(seed: int) -> WorldOutcome:
    return run_seed(seed, draw(seed))


def runner() -> SeedRunner[WorldOutcome]:
    """Return what runs the seeds of a campaign."""
    return SeedRunner(_run_one, WorldOutcome, partial(fingerprint, ENTRY))


def problems(outcomes: Sequence[WorldOutcome]) -> list[str]:
    """Return why a campaign does not count: each seed must have run, been worked, and be good."""
    if not outcomes:
        return ["no seed was run"]
    found = [f"seed {o.seed}: {o.violations[0]}" for o in outcomes if not o.is_good]
    idle = [o.seed for o in outcomes if o.is_good and not o.answered]
    if idle:
        found.append(f"seeds without an answered call: {idle[:FAILURES_SHOWN]}")
    return [*found, *shortfalls(outcomes)]


def shortfalls(outcomes: Sequence[WorldOutcome]) -> list[str]:
    """Return what a whole campaign should have gone through, and has not."""
    if len(outcomes) < WHOLE_SEEDS:
        return []
    wanted = [(f"fault {kind}", [o.faults[kind] for o in outcomes]) for kind in ALL_KINDS]
    wanted += [(f"branch {name}", [o.branches[name] for o in outcomes]) for name in NAMES]
    return [
        f"{name}: {sum(counts)} times in {len(outcomes):,} seeds, {TIMES_MIN} are wanted"
        for name, counts in wanted
        if sum(counts) < TIMES_MIN
    ]


def markdown(outcomes: Sequence[WorldOutcome]) -> str:
    """Return the figures of a campaign as tables."""
    faults = [(kind, [o.faults for o in outcomes]) for kind in ALL_KINDS]
    branches = [(name, [o.branches for o in outcomes]) for name in NAMES]
    tables = [
        _table(("figure", "value"), _headline(outcomes)),
        _table(("fault", "times", "seeds"), (_counted(*each) for each in faults)),
        _table(("branch", "times", "seeds"), (_counted(*each) for each in branches)),
    ]
    return "\n".join(tables)


def entry_of(outcomes: Sequence[WorldOutcome], code: str) -> ledger.Entry:
    """Return what is kept of a campaign over consecutive seeds."""
    return ledger.Entry(
        day=datetime.datetime.now(datetime.UTC).date().isoformat(),
        code=ledger.short(code),
        first=min(outcome.seed for outcome in outcomes),
        count=len(outcomes),
        failed=sum(not outcome.is_good for outcome in outcomes),
        virtual_ms=sum(outcome.virtual_ms for outcome in outcomes),
        took_s=round(sum(outcome.took_s for outcome in outcomes)),
        answered=sum(outcome.answered for outcome in outcomes),
        faults=sum(outcome.faults.total() for outcome in outcomes),
    )


def _headline(outcomes: Sequence[WorldOutcome]) -> list[tuple[str, ...]]:
    took_s = sum(outcome.took_s for outcome in outcomes)
    virtual_s = sum(outcome.virtual_ms for outcome in outcomes) // _MS_PER_S
    return [
        ("seeds", f"{len(outcomes):,}"),
        ("seeds that failed", f"{sum(not outcome.is_good for outcome in outcomes):,}"),
        ("virtual time", f"{virtual_s / 60:,.0f} min"),
        ("processor time", f"{took_s / 60:,.0f} min, {took_s / len(outcomes):.1f} s for a seed"),
        ("calls answered", f"{sum(outcome.answered for outcome in outcomes):,}"),
        ("calls of unknown outcome", f"{sum(outcome.unknown for outcome in outcomes):,}"),
        ("faults", f"{sum(outcome.faults.total() for outcome in outcomes):,}"),
        ("turns of processes, packets and threads", f"{sum(o.steps for o in outcomes):,}"),
    ]


def _counted(name: str, counters: Sequence[Counter[str]]) -> tuple[str, ...]:
    counts = [counter[name] for counter in counters]
    return name, f"{sum(counts):,}", f"{sum(count > 0 for count in counts):,}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def report(outcomes: Sequence[WorldOutcome], console: Console) -> int:
    """Print what the campaign came to; return the exit status."""
    if outcomes:
        console.print(markdown(outcomes), markup=False)
    found = problems(outcomes)
    for problem in found[:FAILURES_SHOWN]:
        console.print(f"PROBLEM: {problem}", markup=False)
    if found:
        console.print("again: python -m testkit.world --shrink --seed N")
    return 1 if found else 0


def main(arguments: list[str]) -> int:
    """Run a campaign; return 0 if every seed is good."""
    parser = argparse.ArgumentParser(prog="python -m testkit.world.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--state", type=Path, help="where the seeds done are kept")
    parser.add_argument("--figures", type=Path, help="where the figures go, as markdown")
    parser.add_argument("--ledger", type=Path, help="the campaigns so far, where this one is added")
    chosen = parser.parse_args(arguments)
    console, runs = Console(), runner()
    seeds = range(chosen.seed, chosen.seed + chosen.count)
    outcomes = runs.run(seeds, chosen.processes, chosen.state, console)
    if outcomes and chosen.ledger is not None:
        ledger.record(chosen.ledger, entry_of(outcomes, runs.code()))
    if outcomes and chosen.figures is not None:
        document.write(chosen.figures, "figures", figures(outcomes, chosen.ledger))
    return report(outcomes, console)


def figures(outcomes: Sequence[WorldOutcome], campaigns: Path | None) -> str:
    """Return the tables of a page: the campaigns so far, and this one."""
    if campaigns is None:
        return markdown(outcomes)
    head, *rows = ledger.rows(ledger.load(campaigns))
    return f"{_table(head, rows)}\n{markdown(outcomes)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
