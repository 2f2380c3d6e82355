"""`python -m testkit.model.traces`: are recorded runs executions of the specification?

Runs of the simulator and of real processes are recorded. Each change that a step of
the real core makes to a replica must be what a few actions of the specification lead to.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from testkit.model import real_runs
from testkit.model.bounds import TlaBounds
from testkit.model.checker import TlcFailed, run_tlc
from testkit.model.observed import ObservedReplica, ObservedRun
from testkit.model.simulated_runs import REPLICAS, of_links, of_messages
from viewstamp.limits import PIPELINE_PREPARES_MAX

HIDDEN_MAX: Final = PIPELINE_PREPARES_MAX + 2
"""A step that adopts a log, or commits a pipeline, is several actions."""
ACCEPTED = re.compile(r'<<"accepted", (\d+)>>')

SOURCES: Final[Mapping[str, Callable[[int, int], Iterator[ObservedRun]]]] = {
    "links": of_links,
    "messages": of_messages,
    "processes": real_runs.of_processes,
}
"""Record a run of a seed, and yield windows of at most so many changes.

The first two are simulated: links and processes are hurt, or messages are.
"""


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """How many of the observed changes the specification explains, and the first it does not."""

    changes: int
    accepted: int
    rejected: ObservedReplica | None

    @property
    def is_accepted(self) -> bool:
        """Whether the whole run is an execution of the specification."""
        return self.accepted == self.changes


def validate(run: ObservedRun, *, seconds_max: int = 3600) -> TraceVerdict:
    """Let TLC look for an execution of the specification in which all this was observed."""
    text = (
        "SPECIFICATION TraceSpec\nINVARIANT NotAccepted\n"
        f"{bounds_of(run).constants()}    HiddenMax = {HIDDEN_MAX}\n"
    )
    files = {"Trace.cfg": text, "TraceData.tla": run.module()}
    output = run_tlc("Trace", files, workers=1, seconds_max=seconds_max)
    is_whole = "Error: Invariant NotAccepted is violated" in output
    if not is_whole and "No error has been found" not in output:
        raise TlcFailed(output[-4000:])
    changes = len(run.changes)
    accepted = changes if is_whole else max(map(int, ACCEPTED.findall(output)), default=0)
    return TraceVerdict(changes, accepted, None if is_whole else run.changes[accepted])


def bounds_of(run: ObservedRun) -> TlaBounds:
    """Return bounds that no recorded run reaches."""
    views = (each.view for each in (*run.beginning, *run.changes))
    return TlaBounds(
        replica_count=REPLICAS,
        view_max=max(views) + 1,
        batches=999,
        restarts=999,
        pipeline=PIPELINE_PREPARES_MAX,
        lazy_journal="all",
        lazy_superblock=True,
    )


def main(arguments: list[str]) -> int:
    """Validate some runs; returns 0 if all are executions of the specification."""
    parser = argparse.ArgumentParser(prog="python -m testkit.model.traces")
    parser.add_argument("sources", nargs="*", default=[*SOURCES], help=", ".join(SOURCES))
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds of each")
    parser.add_argument("--changes", type=int, default=80, help="how many changes a window has")
    parser.add_argument("--windows", type=int, default=3, help="how many windows of each run")
    parser.add_argument("--seconds-max", type=int, default=900, help="for each window")
    chosen = parser.parse_args(arguments)
    bad = 0
    for source in chosen.sources:
        for seed in range(chosen.seed, chosen.seed + chosen.count):
            for number, run in enumerate(liveliest(source, seed, chosen)):
                bad += not explained(f"{source} {seed}, window {number}", run, chosen.seconds_max)
    return 1 if bad else 0


def liveliest(source: str, seed: int, chosen: argparse.Namespace) -> list[ObservedRun]:
    """Return the windows of a run with the most restarts and views, in the order of time."""
    found = list(SOURCES[source](seed, chosen.changes))
    rank = sorted(range(len(found)), key=lambda each: -found[each].liveliness)
    return [found[each] for each in sorted(rank[: chosen.windows])]


def explained(name: str, run: ObservedRun, seconds_max: int) -> bool:
    """Validate one window, print what came of it, and return whether it is explained."""
    began = time.monotonic()
    try:
        verdict = validate(run, seconds_max=seconds_max)
    except TlcFailed as error:
        print(f"{name}: {error}", flush=True)
        return False
    took_s = time.monotonic() - began
    print(
        f"{name}: {verdict.accepted} of {verdict.changes} changes accepted, with {run.restarts} "
        f"restarts and {run.views} views, in {took_s:.0f} s",
        flush=True,
    )
    if verdict.rejected is not None:
        print(f"  rejected: {verdict.rejected}")
    return verdict.rejected is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
