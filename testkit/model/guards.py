"""`python -m testkit.model.guards`: the guards of the specification, taken out one after the
other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from testkit.campaigns import document
from testkit.model.checker import TlcFailed, TlcVerdict
from testkit.model.removals import REMOVALS, GuardRemoval
from testkit.model.results import checked


def problem(removal: GuardRemoval, verdict: TlcVerdict) -> str | None:
    """Return why a verdict is not what the table says; None if it is."""
    if removal.redundant and verdict.violated:
        return f"{removal.name} is not redundant: {verdict.violated} does not hold without it"
    if not removal.redundant and not verdict.violated:
        return f"{removal.name} can be removed, and everything holds"
    return None


def problem_of_script(removal: GuardRemoval, chosen: argparse.Namespace) -> str | None:
    """Return how a script breaks something although all guards are there; None if it does not."""
    if not removal.bounds.steps:
        return None
    verdict = checked(
        chosen.results, removal.bounds, workers=chosen.workers, seconds_max=chosen.seconds_max
    )
    return f"the script of {removal.name} breaks {verdict.violated}" if verdict.violated else None


def markdown(found: dict[str, TlcVerdict]) -> str:
    """Return the table of `docs/tla/README.md`: every guard, with a result or without."""
    lines = [
        "| guard | without it | what does not hold | states | steps | processor seconds |",
        "|---|---|---|---|---|---|",
    ]
    for removal in REMOVALS:
        verdict = found.get(removal.name)
        if verdict is None:
            lines.append(f"| {removal.name} | {removal.about} | not run | | | |")
            continue
        broken = verdict.violated or f"nothing: {removal.redundant}"
        lines.append(
            f"| {removal.name} | {removal.about} | {broken} | {verdict.states:,} "
            f"| {len(verdict.path)} | {verdict.processor_seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Remove the guards; returns 0 if each is found, or not, as its table says."""
    parser = argparse.ArgumentParser(prog="python -m testkit.model.guards")
    parser.add_argument("--only", nargs="*", help="names of guards")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds-max", type=int, default=3600, help="for each guard")
    parser.add_argument("--results", type=Path, help="a file: go on after what it has")
    parser.add_argument("--table", type=Path, help="where to write the table, as markdown")
    parser.add_argument("--trace", action="store_true", help="print how it comes to the violation")
    chosen = parser.parse_args(arguments)
    found: dict[str, TlcVerdict] = {}
    problems: list[str] = []
    for removal in (each for each in REMOVALS if not chosen.only or each.name in chosen.only):
        outcome = run(removal, chosen)
        if isinstance(outcome, TlcVerdict):
            found[removal.name] = outcome
        what = problem(removal, outcome) if isinstance(outcome, TlcVerdict) else outcome
        also = problem_of_script(removal, chosen)
        problems += [each for each in (what, also) if each is not None]
    if chosen.table is not None:
        document.write(chosen.table, "removals", markdown(found))
    print("\n".join(problems) or f"{len(found)} removals, each as its table says")
    return 1 if problems else 0


def run(removal: GuardRemoval, chosen: argparse.Namespace) -> TlcVerdict | str:
    """Check the specification without one guard; return the verdict, or why there is none."""
    try:
        verdict = checked(
            chosen.results, removal.planted, workers=chosen.workers, seconds_max=chosen.seconds_max
        )
    except TlcFailed as error:
        return f"{removal.name}: {error}"
    came = f"{verdict.violated}: {' '.join(verdict.path)}" if verdict.violated else "nothing"
    print(f"{removal.name:20} {verdict.states:>10,} {verdict.seconds:>5.0f} s  {came}", flush=True)
    if chosen.trace:
        print(verdict.trace)
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
