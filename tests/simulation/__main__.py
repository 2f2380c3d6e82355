"""`python -m tests.simulation`: run one seed and say what came of it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.options import FaultKind, Options, Scale, draw
from tests.simulation.simulation import Failure, Simulation

LINES_SHOWN = 60


def main(arguments: list[str]) -> int:
    """Return 0 if the seed went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--campaign", action="store_true", help="as long as in a campaign")
    parser.add_argument("--verbose", action="store_true", help="print everything that happens")
    parser.add_argument("--lines", type=int, default=LINES_SHOWN, help="lines before the failure")
    parser.add_argument("--faults", default="", help="only these, by name, with commas")
    chosen = parser.parse_args(arguments)
    kinds = tuple(FaultKind(name) for name in chosen.faults.split(",") if name)
    options = draw(chosen.seed, Scale.CAMPAIGN if chosen.campaign else Scale.QUICK, kinds)
    return run(options, is_verbose=chosen.verbose, lines=chosen.lines)


def run(options: Options, *, is_verbose: bool, lines: int) -> int:
    """Run one seed and print what came of it."""
    print(options)
    simulation = Simulation(options, is_verbose=is_verbose)
    began = time.monotonic()
    try:
        marks = simulation.run()
    except Failure as failure:
        print("\n".join(simulation.trace.lines(lines)))
        print(f"FAILED: {failure}")
        raise
    took = time.monotonic() - began
    ops = len(simulation.checks.history.entries)
    print(f"ok: {ops} ops in {simulation.schedule.now_ms} ms simulated, {took:.2f} s")
    print("\n".join(f"{count:>8} {name}" for name, count in sorted(marks.counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
