"""Runs seeds: `python -m testkit.world --seed N`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from testkit.world.fault_plan import KINDS_OF_BROKERS
from testkit.world.options import KINDS_ON_FILES, WorldOptions, draw
from testkit.world.run import WorldOutcome
from testkit.world.seeds import SIZES, SWITCHES, command, run_seed, shrink
from viewstamp.transports import GRPCIO, WIRE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds that were asked for; return 1 if one of them failed."""
    chosen = _parser().parse_args(arguments)
    failed = 0
    marks: Counter[str] = Counter()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        outcome = _run(seed, chosen)
        failed += not outcome.is_good
        marks += outcome.marks
    if chosen.marks:
        print("\n".join(f"{count:8} {mark}" for mark, count in marks.most_common()))
    return 1 if failed else 0


def _run(seed: int, chosen: argparse.Namespace) -> WorldOutcome:
    drawn, out = draw(seed), sys.stdout
    options = _changed(drawn, chosen)
    watch = (lambda line: print(line, file=out)) if chosen.verbose else None
    outcome = run_seed(seed, options, watch)
    if outcome.violations and chosen.shrink:
        print(summary(outcome, options))
        options, outcome = shrink(options, outcome)
    if outcome.violations and not chosen.verbose:
        print("\n".join(outcome.story))
    print(summary(outcome, options))
    if outcome.violations:
        print(f"again: {command(seed, options, drawn)}")
    return outcome


def _changed(drawn: WorldOptions, chosen: argparse.Namespace) -> WorldOptions:
    """Return the options of the seed, with what the command line says instead."""
    sizes = {name: getattr(chosen, name) for name in SIZES if getattr(chosen, name) is not None}
    given = {name: getattr(chosen, name) for name in SWITCHES}
    switches: dict[str, Any] = {
        name: bool(value) for name, value in given.items() if value is not None
    }
    if chosen.transport is not None:
        drawn = replace(drawn, transport=chosen.transport)
    options = replace(drawn, **sizes, **switches, flags=(*drawn.flags, *chosen.flag))
    if chosen.faults is not None:
        options = replace(options, faults=tuple(filter(None, chosen.faults.split(","))))
    elif options.brokers and not drawn.brokers:
        options = replace(options, faults=(*options.faults, *KINDS_OF_BROKERS))
    if chosen.drop:
        options = replace(options, dropped=frozenset(map(int, chosen.drop.split(","))))
    if options.is_ring:
        options = replace(options, is_on_files=False)
    if options.is_on_files:
        possible = {*KINDS_ON_FILES, *KINDS_OF_BROKERS}
        on_files = tuple(kind for kind in options.faults if kind in possible)
        options = replace(options, faults=on_files)
    if options.is_changing:
        options = replace(options, rude_peers=0, is_on_files=False)
    if options.transport != WIRE:
        options = replace(options, is_encrypted=False)
    return options if options.replicas > 1 else replace(options, standbys=0)


def summary(outcome: WorldOutcome, options: WorldOptions) -> str:
    """Return what a run was, and what it came to."""
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted((+outcome.faults).items()))
    branches = ", ".join(f"{name} {count}" for name, count in sorted(outcome.branches.items()))
    lines = [
        f"seed {outcome.seed} {'passed' if outcome.is_good else 'FAILED'}: digest"
        f" {outcome.digest}, {outcome.virtual_ms / 1000:.1f} s in {outcome.took_s:.1f} s,"
        f" {outcome.answered} calls answered, {outcome.unknown} unknown",
        f"  {options.replicas} replicas, {options.standbys} standbys, {options.clients} clients of"
        f" {options.callers} callers on {options.transport};"
        f" {counts or 'no faults'}; {branches or 'no rare branch'}",
        *(f"  {violation}" for violation in outcome.violations),
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testkit.world", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="the first seed")
    add("--count", type=int, default=1, help="how many seeds")
    for name in SIZES:
        add(f"--{name}", type=int, help="in place of what the seed draws")
    for name in SWITCHES:
        word = name.removeprefix("is_")
        add(f"--{word}", dest=name, type=int, help=f"1 for a run that is {word}, 0 for another")
    add("--transport", choices=(GRPCIO, WIRE), help="what carries calls, in place of what is drawn")
    add("--faults", help="kinds in place of those drawn, separated by commas; empty for none")
    add("--drop", default="", help="numbers of planned faults that do not happen, with commas")
    add("--flag", action="append", default=[], help="a flag for every coordinator, as --flag=--x=1")
    add("--shrink", action="store_true", help="look for a smaller run that fails alike")
    add("--marks", action="store_true", help="print what was logged in all seeds, and how often")
    add("--verbose", action="store_true", help="print everything that happens")
    return parser


if __name__ == "__main__":
    sys.exit(main())
