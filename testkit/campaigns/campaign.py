"""Many seeds, in processes side by side, resumable: what the campaigns of all simulators share.

Seeds are run in chunks. What a chunk came to is added to the state file, a line each, so that a
campaign that was interrupted goes on where it was.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from testkit.campaigns.workers import pool

CHUNK_SEEDS: Final = 5
# Processes are replaced after about so many chunks each: five hundred seeds left more than a
# gigabyte in one. (The executor's own way to do that stands still in Python 3.11.)
CHUNKS_OF_A_PROCESS: Final = 10
# A seed ends by itself long before, unless the machine stands still.
CHUNK_S_MAX: Final = 1_800


class SeedOutcome(Protocol):
    """What one seed came to: a data class whose fields go into a file, as do its counts."""

    @property
    def seed(self) -> int:
        """The number of the run."""
        ...

    @property
    def is_good(self) -> bool:
        """Whether every promise held."""
        ...


Result = TypeVar("Result", bound=SeedOutcome)


class CampaignStalled(Exception):  # noqa: N818 - it says what happened.
    """No chunk came to an end in time; the seeds under way are named."""


@dataclass(frozen=True, slots=True)
class SeedRunner(Generic[Result]):
    """Runs single seeds; processes get copies of it.

    `outcome` is the class of what a run returns, `code` what tells this code from any other.
    """

    run_seed: Callable[[int], Result]
    outcome: type[Result]
    code: Callable[[], str]

    def run_chunk(self, seeds: Sequence[int]) -> list[Result]:
        """Run some seeds in order, and collect the garbage of each."""
        outcomes = []
        for seed in seeds:
            gc.disable()
            try:
                outcomes.append(self.run_seed(seed))
            finally:
                gc.enable()
                gc.collect()
        return outcomes

    def load(self, path: Path | None) -> list[Result]:
        """What earlier runs of the campaign with this very code came to."""
        if path is None or not path.exists():
            return []
        code = self.code()
        kept = [json.loads(line) for line in path.read_text().splitlines()]
        return [self.outcome(**_read(line["outcome"])) for line in kept if line["code"] == code]

    def save(self, path: Path | None, outcomes: Iterable[Result]) -> None:
        """Add what a chunk came to."""
        if path is None:
            return
        code, names = self.code(), [field.name for field in fields(self.outcome)]  # type: ignore[arg-type]
        with path.open("a") as file:
            for outcome in outcomes:
                kept = {name: getattr(outcome, name) for name in names}
                file.write(json.dumps({"code": code, "outcome": kept}) + "\n")

    def run(
        self, seeds: Sequence[int], processes: int, state: Path | None, console: Console
    ) -> list[Result]:
        """Run all seeds that the state file does not know yet; returns what all came to."""
        wanted = set(seeds)
        done = [outcome for outcome in self.load(state) if outcome.seed in wanted]
        known = {outcome.seed for outcome in done}
        left = [seed for seed in seeds if seed not in known]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
            task = progress.add_task("seeds", total=len(seeds), completed=len(done))
            for outcomes in self._finished(left, processes):
                self.save(state, outcomes)
                done.extend(outcomes)
                failed = sum(not outcome.is_good for outcome in done)
                progress.update(task, completed=len(done), description=f"seeds, {failed} failed")
        return done

    def _finished(self, seeds: Sequence[int], processes: int) -> Iterator[list[Result]]:
        """Yield chunks as they are done."""
        chunks = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
        if processes == 1:
            for chunk in chunks:
                yield self.run_chunk(chunk)
            return
        size = processes * CHUNKS_OF_A_PROCESS
        for begin in range(0, len(chunks), size):
            yield from self._side_by_side(chunks[begin : begin + size], processes)

    def _side_by_side(
        self, chunks: Sequence[Sequence[int]], processes: int
    ) -> Iterator[list[Result]]:
        """Yield chunks as they are done, by processes of their own."""
        with pool(processes) as workers:
            waiting = {workers.submit(self.run_chunk, chunk): chunk for chunk in chunks}
            while waiting:
                for future in _first_done(waiting, processes):
                    del waiting[future]
                    yield future.result()


def _read(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an outcome; what a file has as an object was a Counter."""
    return {
        name: Counter(value) if isinstance(value, dict) else value for name, value in kept.items()
    }


def _first_done(
    waiting: dict[Future[list[Result]], Sequence[int]], processes: int
) -> set[Future[list[Result]]]:
    """Wait until some chunk is done, whichever it is; raises CampaignStalled."""
    finished, _ = wait(waiting, timeout=CHUNK_S_MAX, return_when=FIRST_COMPLETED)
    if not finished:
        seeds = [list(chunk) for future, chunk in waiting.items() if future.running()]
        for process in multiprocessing.active_children():
            process.terminate()
        raise CampaignStalled(f"nothing ended in {CHUNK_S_MAX} s; under way: {seeds[:processes]}")
    return finished
