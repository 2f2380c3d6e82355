"""`python -m testkit.model.traces`: are the runs of the simulator executions of the specification?

Each change that a step of the real core makes to a replica must be what a few actions of the
specification lead to.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass, replace
from typing import Any, Final

from testkit.model.bounds import TlaBounds
from testkit.model.checker import TlcFailed, run_tlc
from testkit.model.recorder import ObservedReplica, RunRecorder
from testkit.simulation.options import FaultKind, Options, draw
from testkit.simulation.simulation import SeedFailure, Simulation
from viewstamp.limits import PIPELINE_PREPARES_MAX

HIDDEN_MAX: Final = 4
"""A step that adopts a log, or commits a pipeline, is several actions."""
FAULTS: Final = frozenset(
    {
        FaultKind.LOSS,
        FaultKind.DUPLICATION,
        FaultKind.DELAY,
        FaultKind.CRASH,
        FaultKind.PARTITION,
    }
)
ACCEPTED = re.compile(r'<<"accepted", (\d+)>>')


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


def options_of(seed: int) -> Options:
    """Return a run of three replicas, with the faults of processes and of the network."""
    return replace(
        draw(seed),
        replica_count=3,
        standby_count=0,
        faults=FAULTS,
        loss_percent=10,
        duplication_percent=10,
        application="chain",
        snapshot_ops=1_000_000,
        commands=100,
        fault_interval_ms=300,
        is_ambushed=False,
        is_bootstrap_struck=False,
        leanings=frozenset(),
        poorly_carried="",
    )


def record(seed: int, changes_max: int) -> RunRecorder:
    """Run a seed, and return what changed on its replicas. Raises SeedFailure if the run fails."""
    simulation = Simulation(options_of(seed))
    recorder = RunRecorder(3, changes_max)
    tell = simulation.checks.tell

    def listen(hook: str, *arguments: Any) -> None:
        if hook == "started":
            recorder.started(arguments[0])
        elif hook == "stepped":
            recorder.stepped(*arguments)
        tell(hook, *arguments)

    simulation.checks.tell = listen  # type: ignore[method-assign]
    simulation.run()
    return recorder


def validate(recorder: RunRecorder, *, seconds_max: int = 3600) -> TraceVerdict:
    """Let TLC look for an execution of the specification in which all this was observed."""
    bounds = TlaBounds(
        view_max=max((each.view for each in recorder.changes), default=0) + 1,
        batches=999,
        restarts=999,
        pipeline=PIPELINE_PREPARES_MAX,
        lazy_journal="all",
        lazy_superblock=True,
    )
    text = (
        "SPECIFICATION TraceSpec\nINVARIANT NotAccepted\n"
        f"{bounds.constants()}    HiddenMax = {HIDDEN_MAX}\n"
    )
    files = {"Trace.cfg": text, "TraceData.tla": recorder.module()}
    output = run_tlc("Trace", files, workers=1, seconds_max=seconds_max)
    is_whole = "Error: Invariant NotAccepted is violated" in output
    if not is_whole and "No error has been found" not in output:
        raise TlcFailed(output[-4000:])
    accepted = max(map(int, ACCEPTED.findall(output)), default=0)
    changes = recorder.changes
    rejected = None if is_whole else changes[accepted]
    return TraceVerdict(len(changes), accepted, rejected)


def main(arguments: list[str]) -> int:
    """Validate some seeds; returns 0 if all are executions of the specification."""
    parser = argparse.ArgumentParser(prog="python -m testkit.model.traces")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=3, help="how many seeds")
    parser.add_argument("--changes", type=int, default=100, help="how much of each run")
    parser.add_argument("--seconds-max", type=int, default=3600, help="for each seed")
    chosen = parser.parse_args(arguments)
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        try:
            verdict = validate(record(seed, chosen.changes), seconds_max=chosen.seconds_max)
        except (SeedFailure, TlcFailed) as error:
            print(f"seed {seed}: {error}", flush=True)
            bad += 1
            continue
        print(f"seed {seed}: {verdict.accepted} of {verdict.changes} changes accepted", flush=True)
        if verdict.rejected is not None:
            print(f"  rejected: {verdict.rejected}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
