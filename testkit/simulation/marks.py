"""Counts of what a run went through: faults, view changes, repairs, and rare branches by name.

A campaign that never took a branch proves nothing about it, so the summary names what was missed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coordinator import vsr


class Marks:
    """How often each named thing happened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def hit(self, name: str, times: int = 1) -> None:
        """Count that `name` happened."""
        self.counts[name] += times

    def effect(self, effect: Any) -> None:
        """Count an effect of the core, by what tells it from others of its kind."""
        if isinstance(effect, vsr.Send):
            self.counts[sent_mark(type(effect.message))] += 1
        elif isinstance(effect, vsr.Dropped):
            self.counts[f"dropped {effect.rule.value}"] += 1
        elif isinstance(effect, vsr.StatusChanged):
            self.counts[f"status {effect.status.value}"] += 1
        elif isinstance(effect, vsr.Refused | vsr.ReadIndexRefused):
            self.counts[f"refused {effect.reason.value}"] += 1
        else:
            self.counts[f"effect {type(effect).__name__}"] += 1


def sent_mark(message: type) -> str:
    """The mark of a kind of message."""
    return f"sent {message.__name__.removesuffix('Message')}"
