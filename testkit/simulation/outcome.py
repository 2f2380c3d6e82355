"""What one seed came to, as a value that goes between processes and into files."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from testkit.simulation.options import FaultKind, Options, Scale
from testkit.simulation.simulation import SeedFailure, Simulation

LINES_KEPT: Final = 60
# A long seed takes a few seconds. One that takes this long goes round within a single event.
SEED_CPU_S_MAX: Final = 120


class NoEnd(Exception):  # noqa: N818 - it says what happened.
    """A run that used up its processor time."""


@contextmanager
def bounded_cpu(limit_s: float) -> Iterator[None]:
    """Raise NoEnd inside of what takes longer. Signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(number: int, frame: Any) -> None:
        raise NoEnd(f"the run took {limit_s} s of processor time")

    before = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run. `failure` is empty if it went well; `kind` is what a failure is called.

    `took_s` is processor time.
    """

    seed: int
    kind: str = ""
    failure: str = ""
    commands: int = 0
    ops: int = 0
    simulated_ms: int = 0
    took_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    transcript: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether every promise held."""
        return not self.kind


def run_seed(options: Options, *, is_verbose: bool = False, lines: int = LINES_KEPT) -> Outcome:
    """Run one simulation to its end, good or bad."""
    simulation = Simulation(options, is_verbose=is_verbose)
    began = time.process_time()
    kind, failure = "", ""
    transcript: tuple[str, ...] = ()
    try:
        with bounded_cpu(SEED_CPU_S_MAX):
            simulation.run()
    except SeedFailure as error:
        kind, failure = error.kind, str(error)
        transcript = tuple(simulation.trace.lines(lines))
    history = simulation.checks.history
    return Outcome(
        seed=options.seed,
        kind=kind,
        failure=failure,
        commands=sum(entry.header.command_count for entry in history.entries),
        ops=len(history.entries),
        simulated_ms=simulation.schedule.now_ms,
        took_s=time.process_time() - began,
        counts=simulation.marks.counts,
        transcript=transcript,
    )


def shrink(options: Options, kind: str) -> tuple[Options, Outcome]:
    """Look for a smaller run that fails in the same way: fewer faults, then fewer commands.

    Returns the smallest found, which may be what was given.
    """
    best, outcome = options, run_seed(options)
    for fault in sorted(options.faults, key=lambda fault: fault.value):
        best, outcome = _smaller(
            best, outcome, replace(best, faults=without(best.faults, fault)), kind
        )
    while best.commands > 1:
        fewer = replace(best, commands=best.commands // 2)
        smaller, outcome = _smaller(best, outcome, fewer, kind)
        if smaller is best:
            break
        best = smaller
    return best, outcome


def _smaller(
    best: Options, outcome: Outcome, candidate: Options, kind: str
) -> tuple[Options, Outcome]:
    tried = run_seed(candidate)
    return (candidate, tried) if tried.kind == kind else (best, outcome)


def without(faults: frozenset[FaultKind], fault: FaultKind) -> frozenset[FaultKind]:
    """The same faults but one."""
    return faults - {fault}


def command(options: Options, drawn: Options) -> str:
    """The command that runs these options again, given what the seed alone draws."""
    words = [f"python -m testkit.simulation --seed {options.seed}"]
    if drawn.commands >= Scale.CAMPAIGN.value:
        words.append("--campaign")
    if options.commands != drawn.commands:
        words.append(f"--commands {options.commands}")
    if options.standby_count != drawn.standby_count:
        words.append(f"--standbys {options.standby_count}")
    if options.faults != drawn.faults:
        names = ",".join(sorted(fault.value for fault in options.faults))
        words.append(f"--only {names or 'none'}")
    return " ".join(words)
