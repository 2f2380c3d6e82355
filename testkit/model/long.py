"""`python -m testkit.model.long`: random executions of clusters that are too large to visit whole.

TLC's simulation mode takes random steps. It goes in slices of `SLICE_TRACES` executions, each from
a seed of its own. Finished slices are in a file, and the same command goes on after them; a change
of the specification or of a cluster begins that cluster anew.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from testkit.campaigns import document
from testkit.model.bounds import TlaBounds
from testkit.model.checker import TlcFailed, run_tlc, violated_in
from testkit.model.removals import FIVE
from testkit.model.results import fingerprint

SLICE_TRACES: Final = 500
DEPTH: Final = 60
"""How many steps an execution has at most."""
STATES: Final = re.compile(r"Progress: (\d+) states checked")
HOLDS: Final = "everything holds"

SIMULATED: Final[Mapping[str, TlaBounds]] = {
    "five replicas, crashes": replace(
        FIVE,
        view_max=5,
        batches=4,
        pipeline=2,
        restarts=2,
        lazy_journal="all",
        lazy_superblock=True,
    ),
    "five replicas, a lost disk": replace(
        FIVE, view_max=6, batches=4, pipeline=2, lost_disks=1, restarts=1
    ),
    "five replicas, damage and a journal that lost its end": replace(
        FIVE, view_max=5, batches=4, restarts=1, damaged_records=1, lost_tails=1
    ),
    "four replicas, a lost disk": TlaBounds(
        replica_count=4, view_max=5, batches=4, lost_disks=1, restarts=1
    ),
}


@dataclass(frozen=True, slots=True)
class SimulatedSlice:
    """Some random executions from one seed. `violated` names what does not hold, or is empty."""

    seed: int
    traces: int
    states: int
    seconds: float
    violated: str
    trace: str = ""


def simulate(bounds: TlaBounds, seed: int, *, seconds_max: int) -> SimulatedSlice:
    """Let TLC take random steps. Raises TlcFailed."""
    began = time.monotonic()
    options = ("-simulate", f"num={SLICE_TRACES}", "-depth", f"{DEPTH}", "-seed", f"{seed}")
    output = run_tlc(
        bounds.module, bounds.files(), workers=1, seconds_max=seconds_max, options=options
    )
    states = STATES.findall(output)
    violated = violated_in(output)
    if not states and not violated:
        raise TlcFailed(output[-4000:])
    trace = output[output.find("The behavior up to this point is:") :] if violated else ""
    seen = int(states[-1]) if states else 0
    return SimulatedSlice(seed, SLICE_TRACES, seen, time.monotonic() - began, violated, trace)


def slices(path: Path, bounds: TlaBounds) -> list[SimulatedSlice]:
    """Return the finished slices of a cluster, in order."""
    if not path.exists():
        return []
    wanted = fingerprint(bounds)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [SimulatedSlice(**each["slice"]) for each in lines if each["fingerprint"] == wanted]


def run_for(minutes: int, path: Path, seconds_max: int) -> Iterator[tuple[str, SimulatedSlice]]:
    """Run one slice of each cluster in turn until the time is over, and keep each."""
    end = time.monotonic() + 60 * minutes
    while True:
        for name, bounds in SIMULATED.items():
            if time.monotonic() >= end:
                return
            seed = len(slices(path, bounds)) + 1
            done = simulate(bounds, seed, seconds_max=seconds_max)
            with path.open("a") as kept:
                line = {"fingerprint": fingerprint(bounds), "slice": asdict(done)}
                kept.write(json.dumps(line) + "\n")
            yield name, done


def markdown(path: Path) -> str:
    """Return the table of `docs/tla/README.md`."""
    lines = [
        f"| cluster | executions of at most {DEPTH} steps | states | minutes | result |",
        "|---|---|---|---|---|",
    ]
    for name, bounds in SIMULATED.items():
        done = slices(path, bounds)
        broken = sorted({each.violated for each in done if each.violated})
        result = f"{', '.join(broken)} does not hold" if broken else HOLDS if done else "not run"
        traces, states = sum(each.traces for each in done), sum(each.states for each in done)
        minutes = sum(each.seconds for each in done) / 60
        lines.append(f"| {name} | {traces:,} | {states:,} | {minutes:.0f} | {result} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run slices; returns 0 if everything held in each."""
    parser = argparse.ArgumentParser(prog="python -m testkit.model.long")
    parser.add_argument("--minutes", type=int, default=60, help="how long slices are begun")
    parser.add_argument("--results", type=Path, required=True, help="where finished slices are")
    parser.add_argument("--table", type=Path, help="where to write the table, as markdown")
    parser.add_argument("--seconds-max", type=int, default=3600, help="for each slice")
    chosen = parser.parse_args(arguments)
    bad = 0
    for name, done in run_for(chosen.minutes, chosen.results, chosen.seconds_max):
        bad += bool(done.violated)
        print(f"{name}, seed {done.seed}: {done.states:,} states, {done.violated or HOLDS}")
        print(done.trace, end="", flush=True)
    if chosen.table is not None:
        document.write(chosen.table, "long models", markdown(chosen.results))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
