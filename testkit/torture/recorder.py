"""The history of a round: transactions as they are answered, and what no caller expected."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from testkit.oracles.transactions import Transaction

NS_PER_MS: Final = 1_000_000
SURPRISES_MAX: Final = 50


@dataclass(slots=True)
class Recorder:
    """Everything that the callers of a round saw, on the monotonic clock, in nanoseconds."""

    history: list[Transaction] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    # Answers that break a promise by themselves, in sentences.
    surprises: list[str] = field(default_factory=list)
    # The highest revision that any caller was told.
    revision: int = 0
    _answers_ns: list[int] = field(default_factory=list)
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, transaction: Transaction, kind: str) -> None:
        """Keep a transaction; `kind` is what the figures count it as."""
        self.history.append(transaction)
        self.counts[f"{kind} {transaction.outcome}"] += 1
        if transaction.returned_at is None:
            return
        self._answers_ns.append(transaction.returned_at)
        self.revision = max(self.revision, transaction.revision or 0)
        self._progress.set()

    def surprise(self, text: str) -> None:
        """Keep an answer that nobody should get."""
        if len(self.surprises) < SURPRISES_MAX:
            self.surprises.append(text)

    async def until_answered(self, count: int, timeout_s: float) -> bool:
        """Wait until so many further transactions were answered; return whether they were."""
        wanted = len(self._answers_ns) + count
        try:
            async with asyncio.timeout(timeout_s):
                while len(self._answers_ns) < wanted:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    def silences_ms(self, at_least_ms: int) -> list[int]:
        """Return how long nobody was answered, each time that it was this long."""
        gaps = [(b - a) // NS_PER_MS for a, b in pairwise(sorted(self._answers_ns))]
        return [gap for gap in gaps if gap >= at_least_ms]

    def write(self, path: Path) -> None:
        """Write the history as lines of JSON, as evidence."""
        with path.open("w") as file:
            for each in self.history:
                file.write(json.dumps(asdict(each)) + "\n")


def now_ns() -> int:
    """Return the time of the one clock of a history."""
    return time.monotonic_ns()
