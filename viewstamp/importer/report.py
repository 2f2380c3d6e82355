"""The results of an import, in numbers that must add up. Values, no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from viewstamp.importer.plan import ImportPlan


@dataclass(slots=True)
class Counts:
    """Counts for one kind of thing: how many the plan has, and the outcomes.

    In a dry run `created` and `updated` count what would be.
    """

    planned: int = 0
    created: int = 0
    updated: int = 0
    existing: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def adds_up(self) -> bool:
        """Whether every planned thing was dealt with once."""
        return self.planned == self.created + self.updated + self.existing + len(self.failures)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of an import, by kind of thing."""

    plan: ImportPlan
    dry_run: bool
    kinds: dict[str, Counts]

    @property
    def succeeded(self) -> bool:
        """Whether nothing failed, and everything planned and listed is accounted for."""
        entries = self.plan.imported_entries + len(self.plan.skipped_entries)
        return entries == self.plan.entries and all(
            counts.adds_up and not counts.failures for counts in self.kinds.values()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report for machines."""
        return {
            "dry_run": self.dry_run,
            "succeeded": self.succeeded,
            "entries": self.plan.entries,
            "imported_entries": self.plan.imported_entries,
            "topic_mentions": self.plan.topic_mentions,
            "grants": self.plan.grants,
            "skipped": [
                asdict(skipped)
                for skipped in (*self.plan.skipped_entries, *self.plan.skipped_producers)
            ],
            "kinds": {
                kind: {**asdict(counts), "failed": len(counts.failures)}
                for kind, counts in self.kinds.items()
            },
        }
