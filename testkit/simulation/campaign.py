"""`python -m testkit.simulation.campaign`: many seeds, in processes side by side, resumable.

Seeds are run in chunks. What a chunk came to is added to the state file, a line each, so that a
campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import fields
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from testkit.simulation import document
from testkit.simulation.figures import WHOLE_SEEDS, markdown, shortfalls, total
from testkit.simulation.fingerprint import fingerprint
from testkit.simulation.options import Scale, draw
from testkit.simulation.outcome import Outcome, run_seed
from testkit.simulation.workers import pool

CHUNK_SEEDS: Final = 5
# A seed ends by itself long before (`outcome.SEED_CPU_S_MAX`), unless the machine stands still.
CHUNK_S_MAX: Final = 1_800
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


class CampaignStalled(Exception):  # noqa: N818 - it says what happened.
    """No chunk came to an end in time; the seeds under way are named."""


def run_chunk(seeds: Sequence[int], scale: Scale) -> list[Outcome]:
    """Run some seeds in order, and collect the garbage of each."""
    outcomes = []
    for seed in seeds:
        gc.disable()
        try:
            outcomes.append(run_seed(draw(seed, scale)))
        finally:
            gc.enable()
            gc.collect()
    return outcomes


def load(path: Path | None) -> list[Outcome]:
    """What earlier runs of the campaign with this very code came to."""
    if path is None or not path.exists():
        return []
    code = fingerprint()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Outcome(**{**line["outcome"], "counts": Counter(line["outcome"]["counts"])})
        for line in kept
        if line["code"] == code
    ]


def save(path: Path | None, outcomes: Sequence[Outcome]) -> None:
    """Add what a chunk came to."""
    if path is None:
        return
    code = fingerprint()
    with path.open("a") as file:
        for outcome in outcomes:
            kept = {field.name: getattr(outcome, field.name) for field in fields(Outcome)}
            file.write(json.dumps({"code": code, "outcome": kept}) + "\n")


def run(
    seeds: Sequence[int], scale: Scale, processes: int, state: Path | None, console: Console
) -> list[Outcome]:
    """Run all seeds that the state file does not know yet; returns what all came to."""
    wanted = set(seeds)
    done = [outcome for outcome in load(state) if outcome.seed in wanted]
    known = {outcome.seed for outcome in done}
    left = [seed for seed in seeds if seed not in known]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("seeds", total=len(seeds), completed=len(done))
        for outcomes in _finished(left, scale, processes):
            save(state, outcomes)
            done.extend(outcomes)
            failed = sum(not outcome.is_good for outcome in done)
            progress.update(task, completed=len(done), description=f"seeds, {failed} failed")
    return done


def _finished(seeds: Sequence[int], scale: Scale, processes: int) -> Iterator[list[Outcome]]:
    """Yield chunks as they are done."""
    chunks = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
    if processes == 1:
        for chunk in chunks:
            yield run_chunk(chunk, scale)
        return
    with pool(processes) as workers:
        waiting = {workers.submit(run_chunk, chunk, scale): chunk for chunk in chunks}
        while waiting:
            for future in _first_done(waiting, processes):
                del waiting[future]
                yield future.result()


def _first_done(
    waiting: dict[Future[list[Outcome]], Sequence[int]], processes: int
) -> set[Future[list[Outcome]]]:
    """Wait until some chunk is done, whichever it is; raises CampaignStalled."""
    finished, _ = wait(waiting, timeout=CHUNK_S_MAX, return_when=FIRST_COMPLETED)
    if not finished:
        seeds = [list(chunk) for future, chunk in waiting.items() if future.running()]
        for process in multiprocessing.active_children():
            process.terminate()
        raise CampaignStalled(f"nothing ended in {CHUNK_S_MAX} s; under way: {seeds[:processes]}")
    return finished


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
    outcomes = run(seeds, scale, chosen.processes, chosen.state, console)
    if chosen.figures is not None and outcomes:
        document.write(chosen.figures, "figures", markdown(outcomes))
    return report(outcomes, scale, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
