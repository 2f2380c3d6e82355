"""`python -m testkit.simulation --seed N`: run one seed, and say what came of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from testkit.simulation.options import FaultKind, Options, Scale, draw
from testkit.simulation.outcome import LINES_KEPT, Outcome, command, run_seed, shrink


def main(arguments: list[str]) -> int:
    """Return 0 if every promise held, else 1."""
    chosen = _parser().parse_args(arguments)
    drawn = draw(chosen.seed, Scale.CAMPAIGN if chosen.campaign else Scale.QUICK)
    options = _changed(drawn, chosen)
    outcome = run_seed(options, is_verbose=chosen.verbose, lines=chosen.lines)
    if outcome.is_good:
        _print_good(options, outcome)
        return 0
    if chosen.shrink:
        options, outcome = shrink(options, outcome.kind)
    _print_bad(options, outcome, drawn)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testkit.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--campaign", action="store_true", help="as long as in a campaign")
    parser.add_argument("--verbose", action="store_true", help="print everything that happens")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller failure")
    parser.add_argument("--lines", type=int, default=LINES_KEPT, help="how many before the failure")
    parser.add_argument("--commands", type=int, help="only so many")
    parser.add_argument("--replicas", type=int, help="in place of what the seed draws")
    parser.add_argument("--standbys", type=int, help="in place of what the seed draws")
    parser.add_argument("--only", help="of the faults only these, by name, with commas; or none")
    return parser


def _changed(options: Options, chosen: argparse.Namespace) -> Options:
    """The options of the seed, with what the command line says instead."""
    if chosen.commands is not None:
        options = replace(options, commands=chosen.commands)
    if chosen.replicas is not None:
        options = replace(options, replica_count=chosen.replicas)
    if chosen.standbys is not None or options.replica_count == 1:
        options = replace(options, standby_count=chosen.standbys or 0)
    if chosen.only is not None:
        names = [name for name in chosen.only.split(",") if name not in ("", "none")]
        options = replace(options, faults=frozenset(map(FaultKind, names)))
    return options


def _print_good(options: Options, outcome: Outcome) -> None:
    print(described(options))
    for name, count in sorted(outcome.counts.items()):
        print(f"{count:>8} {name}")
    print(
        f"seed {outcome.seed} is good: {outcome.commands} commands in {outcome.ops} ops, "
        f"{outcome.simulated_ms} ms simulated in {outcome.took_s:.2f} s"
    )


def _print_bad(options: Options, outcome: Outcome, drawn: Options) -> None:
    print("\n".join(outcome.transcript))
    print(f"\nseed {outcome.seed} FAILED: {outcome.failure}")
    print(described(options))
    print(f"again: {command(options, drawn)} --verbose")


def described(options: Options) -> str:
    """The options on one line."""
    faults = ",".join(sorted(fault.value for fault in options.faults))
    return (
        f"{options.application}, {options.replica_count} replicas, "
        f"{options.standby_count} standbys, {options.client_count} clients, "
        f"{options.commands} commands, faults: {faults or 'none'}, one in "
        f"{options.fault_interval_ms} ms"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
