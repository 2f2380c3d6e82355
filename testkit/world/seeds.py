"""Runs one seed to its end, good or bad; and looks for the smallest run that fails alike."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from testkit.world.fault_plan import PlannedFault
from testkit.world.options import WorldOptions
from testkit.world.run import WorldOutcome, WorldRun
from testkit.world.story import story_of

# A run takes seconds, and a shrinking should take minutes.
SHRINK_RUNS_MAX: Final = 80
_MS_PER_S: Final = 1_000
SIZES: Final = (
    *("replicas", "standbys", "clients", "callers", "keys", "seconds"),
    *("wanderers", "operators", "watchers", "narrow_watchers", "strangers", "rude_peers"),
    *("members", "brokers"),
)
SWITCHES: Final = (
    *("is_watched", "is_encrypted", "is_on_files", "is_small", "is_changing"),
    "is_ring",
)
"""What is on or off. Options of the command line have their names without the first word."""
_FEWER: Final[tuple[Mapping[str, int], ...]] = (
    *({name: 0} for name in SWITCHES),
    {"operators": 0},
    {"watchers": 0},
    {"narrow_watchers": 0},
    {"strangers": 0},
    {"rude_peers": 0},
    {"members": 0},
    {"brokers": 0},
    {"wanderers": 0},
    {"wanderers": 1},
    {"standbys": 0},
    {"clients": 1},
    {"callers": 1},
)
_NUMBERS: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")

Runner = Callable[[int, WorldOptions], WorldOutcome]


def good_until(seeds: Iterable[int], options: WorldOptions, *wanted: str) -> Counter[str]:
    """Run seeds until all that is wanted has happened; return how often each thing has.

    Raises AssertionError if a promise is broken, or if the seeds end before.
    """
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = WorldRun(seed, options).run()
        assert outcome.violations == [], f"seed {seed}: {outcome.violations}"
        counts += outcome.branches + outcome.faults
        if set(wanted) <= counts.keys():
            return counts
    raise AssertionError(f"no seed has shown {sorted(set(wanted) - counts.keys())}")


def run_seed(
    seed: int,
    options: WorldOptions,
    watch: Callable[[str], None] | None = None,
    ends_at_defects: bool = False,
) -> WorldOutcome:
    """Run once. A world that breaks is a failure like any other."""
    begun_s = time.process_time()
    run = WorldRun(seed, options)
    run.world.ends_at_defects = ends_at_defects
    if watch is not None:
        run.world.schedule.watches.append(watch)
    try:
        outcome = run.run()
    except Exception as error:
        outcome = run.outcome
        outcome.violations.append(f"the world broke: {error!r}")
    outcome.took_s = time.process_time() - begun_s
    if not outcome.is_good:
        outcome.story = story_of(run.world, run.heard, outcome.violations)
    return outcome


def kinds_of(outcome: WorldOutcome) -> frozenset[str]:
    """Return what the violations of a run are called, without what differs from run to run."""
    if outcome.checker:
        return frozenset({outcome.checker})
    return frozenset(_NUMBERS.sub("#", violation) for violation in outcome.violations)


def shrink(
    options: WorldOptions, outcome: WorldOutcome, run: Runner = run_seed
) -> tuple[WorldOptions, WorldOutcome]:
    """Return a run with as few faults as possible that fails in one of the same ways.

    First it leaves out whole kinds of faults, then parts of what is left, in the end single ones.
    Then it ends the load soon after the last fault, and tries fewer clients and no standby.
    """
    search = _Search(options, outcome, run)
    for kind in dict.fromkeys(fault.kind for fault in search.left()):
        search.leave_out([fault for fault in search.left() if fault.kind == kind])
    size = len(search.left()) // 2
    while size:
        for part in _parts(search.left(), size):
            search.leave_out(part)
        size //= 2
    search.shorten()
    for fewer in _FEWER:
        search.change(**fewer)
    return search.options, search.outcome


def _parts(faults: Sequence[PlannedFault], size: int) -> Iterator[Sequence[PlannedFault]]:
    """Yield runs of consecutive faults, the last ones first: they depend on those before."""
    for begin in reversed(range(0, len(faults), size)):
        yield faults[begin : begin + size]


class _Search:
    """The smallest failing run that is known."""

    def __init__(self, options: WorldOptions, outcome: WorldOutcome, run: Runner) -> None:
        self.options = options
        self.outcome = outcome
        self._run = run
        self._runs = 0

    def left(self) -> list[PlannedFault]:
        """Return the faults that still happen."""
        return self.options.planned(self.outcome.seed)

    def leave_out(self, faults: Sequence[PlannedFault]) -> None:
        """Leave these out, if the run fails without them."""
        numbers = {fault.number for fault in faults}
        self._try(replace(self.options, dropped=self.options.dropped | numbers))

    def shorten(self) -> None:
        """End the load in the second after the last fault, or one later."""
        last_ms = max((fault.at_ms for fault in self.left()), default=0)
        for seconds in (last_ms // _MS_PER_S + 1, last_ms // _MS_PER_S + 2):
            if seconds < self.options.seconds:
                self._try(replace(self.options, seconds=seconds))

    def change(self, **changed: int) -> None:
        """Change some sizes, if the run still fails."""
        self._try(replace(self.options, **changed))  # type: ignore[arg-type]

    def _try(self, candidate: WorldOptions) -> None:
        if candidate == self.options or self._runs >= SHRINK_RUNS_MAX:
            return
        self._runs += 1
        outcome = self._run(self.outcome.seed, candidate)
        if kinds_of(outcome) & kinds_of(self.outcome):
            self.options, self.outcome = candidate, outcome


def command(seed: int, options: WorldOptions, drawn: WorldOptions) -> str:
    """Return the command that runs these options again, given what the seed alone draws."""
    words = [f"python -m testkit.world --seed {seed}"]
    for name in SIZES:
        if getattr(options, name) != getattr(drawn, name):
            words.append(f"--{name} {getattr(options, name)}")
    if tuple(options.faults) != tuple(drawn.faults):
        words.append(f"--faults {','.join(options.faults)}")
    if options.transport != drawn.transport:
        words.append(f"--transport {options.transport}")
    for name in SWITCHES:
        if getattr(options, name) != getattr(drawn, name):
            words.append(f"--{name.removeprefix('is_')} {int(getattr(options, name))}")
    words += [f"--flag={flag}" for flag in options.flags if flag not in drawn.flags]
    if options.dropped:
        words.append(f"--drop {','.join(map(str, sorted(options.dropped)))}")
    return " ".join(words)
