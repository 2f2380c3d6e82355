"""Counts of what a run went through: faults, view changes, repairs, and rare branches by name.

A campaign that never took a branch proves nothing about it, so the summary names what was missed.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
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
            self.counts[f"sent {type(effect.message).__name__.removesuffix('Message')}"] += 1
        elif isinstance(effect, vsr.Dropped):
            self.counts[f"dropped {effect.rule.value}"] += 1
        elif isinstance(effect, vsr.StatusChanged):
            self.counts[f"status {effect.status.value}"] += 1
        elif isinstance(effect, vsr.Refused | vsr.ReadIndexRefused):
            self.counts[f"refused {effect.reason.value}"] += 1
        else:
            self.counts[f"effect {type(effect).__name__}"] += 1


def all_names() -> list[str]:
    """Every mark that the core's own vocabulary has."""
    names = [f"dropped {rule.value}" for rule in vsr.DropRule]
    names += [f"status {status.value}" for status in vsr.Status]
    return names + [f"refused {reason.value}" for reason in vsr.RefusalReason]


def missed(counts: Counter[str]) -> list[str]:
    """The marks of the core that were never hit."""
    return [name for name in all_names() if not counts[name]]


def named(prefix: str, value: Enum) -> str:
    """The mark of one member of an enumeration."""
    return f"{prefix} {value.value}"
