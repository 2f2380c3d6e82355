"""`python -m testkit.simulation.guards`: the guards of the protocol, taken out one after the other.

For every known pitfall and every checker there is a planted bug. Each is run with the seeds of a
campaign, from the first on, until one fails: what the table says is what a campaign would need.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Final

from testkit.simulation import document
from testkit.simulation.fingerprint import fingerprint
from testkit.simulation.plant import Plant, Verdict, look
from testkit.simulation.planted_bugs import PLANTS
from testkit.simulation.planted_guards import GUARDS
from testkit.simulation.workers import pool

ALL: Final = (*GUARDS, *PLANTS)
CORE: Final = {"InvariantViolation": "the core's own invariants"}


def key(plant: Plant) -> str:
    """What tells a plant from all others."""
    return f"{plant.name} {plant.bug.__name__}"


def run_plant(name: str) -> Verdict:
    """Run one plant, from the first seed on."""
    plant = next(each for each in ALL if key(each) == name)
    return look(plant, range(1, plant.seeds_max + 1))


def problem(plant: Plant, verdict: Verdict) -> str | None:
    """Why a verdict is not what the table says; None if it is."""
    if plant.redundant and verdict.found_by:
        return f"{key(plant)} is not redundant: seed {verdict.seed} found {verdict.failure}"
    if not plant.redundant and not verdict.found_by:
        return f"{key(plant)} was not found in {verdict.seeds} seeds"
    return None


def verdicts(
    plants: Sequence[Plant], processes: int, state: Path | None
) -> Iterator[tuple[Plant, Verdict]]:
    """Run what the state file does not know yet; yield each as it is done."""
    known = load(state)
    left = {key(plant): plant for plant in plants}
    for name in [name for name in left if name in known]:
        yield left.pop(name), known[name]
    with pool(processes) as workers:
        running = {workers.submit(run_plant, name): name for name in left}
        for done in as_completed(running):
            verdict = done.result()
            save(state, running[done], verdict)
            yield left[running[done]], verdict


def load(state: Path | None) -> dict[str, Verdict]:
    """Return the verdicts found with exactly this code."""
    if state is None or not state.exists():
        return {}
    kept = [json.loads(line) for line in state.read_text().splitlines()]
    code = fingerprint()
    return {line["plant"]: Verdict(**line["verdict"]) for line in kept if line["code"] == code}


def save(state: Path | None, name: str, verdict: Verdict) -> None:
    """Add what was found."""
    if state is not None:
        with state.open("a") as file:
            line = {"code": fingerprint(), "plant": name, "verdict": asdict(verdict)}
            file.write(json.dumps(line) + "\n")


def markdown(found: dict[str, Verdict]) -> str:
    """The tables of `docs/simulation.md`: pitfalls, then checkers."""
    lines = ["| pitfall | planted bug | seeds | found by |", "|---|---|---|---|"]
    for guard in GUARDS:
        if key(guard) in found:
            verdict = found[key(guard)]
            nobody = f"nobody: {guard.redundant}" if guard.redundant else "nobody yet"
            by = CORE.get(verdict.found_by, verdict.found_by) or nobody
            seeds = f"{verdict.seeds}" if verdict.found_by else f"none of {verdict.seeds}"
            lines.append(f"| {guard.name} | {guard.about} | {seeds} | {by} |")
    lines += ["", "| checker | planted bug | seeds |", "|---|---|---|"]
    for plant in PLANTS:
        if key(plant) in found:
            verdict = found[key(plant)]
            seeds = f"{verdict.seeds}" if verdict.found_by else f"none of {verdict.seeds}"
            lines.append(f"| {plant.name} | {plant.about} | {seeds} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the plants; returns 0 if each is found, or not, as its table says."""
    parser = argparse.ArgumentParser(prog="python -m testkit.simulation.guards")
    parser.add_argument("--only", nargs="*", help="pitfalls, checkers, or names of bugs")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--state", type=Path, help="where verdicts are kept")
    parser.add_argument("--table", type=Path, help="where to write the tables, as markdown")
    chosen = parser.parse_args(arguments)
    plants = [p for p in ALL if not chosen.only or {p.name, p.bug.__name__} & set(chosen.only)]
    found: dict[str, Verdict] = {}
    problems: list[str] = []
    for plant, verdict in verdicts(plants, chosen.processes, chosen.state):
        found[key(plant)] = verdict
        came = f"seed {verdict.seed}: {verdict.failure}" if verdict.found_by else "not found"
        print(f"{key(plant):44} {verdict.seeds:>4} seeds {verdict.took_s:>5.0f} s  {came[:140]}")
        problems += [what for what in [problem(plant, verdict)] if what is not None]
    if chosen.table is not None:
        document.write(chosen.table, "guards", markdown(found))
    print("\n".join(problems) or f"{len(found)} plants, each as its table says")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
