"""Runs seeds: `python -m testkit.world --seed N`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from testkit.world.faults import KINDS
from testkit.world.run import WorldOptions, WorldOutcome, WorldRun

_LAST_LINES = 80


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds that were asked for; return 1 if one of them failed."""
    options = _parser().parse_args(arguments)
    faults = tuple(filter(None, options.faults.split(",")))
    sizes = WorldOptions(
        replicas=options.replicas,
        clients=options.clients,
        seconds=options.seconds,
        faults=faults,
        flags=(*WorldOptions.flags, *options.flag),
    )
    failed = 0
    marks: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        outcome = _run(seed, sizes, verbose=options.verbose)
        failed += bool(outcome.violations)
        marks += outcome.marks
    if options.marks:
        print("\n".join(f"{count:8} {mark}" for mark, count in marks.most_common()))
    return 1 if failed else 0


def _run(seed: int, options: WorldOptions, *, verbose: bool) -> WorldOutcome:
    out, begun_s = sys.stdout, time.perf_counter()
    run = WorldRun(seed, options)
    if verbose:
        run.world.schedule.watches.append(lambda line: print(line, file=out))
    outcome = run.run()
    if outcome.violations and not verbose:
        print("\n".join(list(run.world.schedule.transcript)[-_LAST_LINES:]))
    print(_summary(outcome, time.perf_counter() - begun_s))
    return outcome


def _summary(outcome: WorldOutcome, took_s: float) -> str:
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.faults.items()))
    lines = [
        f"seed {outcome.seed} {'FAILED' if outcome.violations else 'passed'}: digest"
        f" {outcome.digest}, {outcome.virtual_ms / 1000:.1f} s in {took_s:.1f} s,"
        f" {outcome.answered} calls answered, {outcome.unknown} unknown; {counts or 'no faults'}",
        *(f"  {violation}" for violation in outcome.violations),
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testkit.world", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the first seed")
    add("--count", type=int, default=1, help="how many seeds")
    add("--replicas", type=int, default=3)
    add("--clients", type=int, default=3)
    add("--seconds", type=int, default=10, help="virtual time under load")
    add("--faults", default=",".join(KINDS), help="kinds, separated by commas; empty for none")
    add("--flag", action="append", default=[], help="a flag for every coordinator, as --flag=--x=1")
    add("--marks", action="store_true", help="print what was logged in all seeds, and how often")
    add("--verbose", action="store_true", help="print everything that happens")
    return parser


if __name__ == "__main__":
    sys.exit(main())
