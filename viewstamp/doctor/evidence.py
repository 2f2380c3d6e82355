"""What was found out about a cluster: JSON values, and texts that may hold secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = Any


class MetricSample(NamedTuple):
    """One number of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class DoctorEvidence:
    """Everything that was collected. Keys name the source: an address, a directory, a file.

    `failures` has for each source that gave nothing why. `snapshots` is None if nobody was asked.
    `certificate_ends_s` has when the certificate that a replica shows clients ends, since 1970.
    `archives` has of each place what its newest manifest says, or why it cannot be read.
    """

    now_s: float
    versions: dict[str, Json] = field(default_factory=dict)
    statuses: dict[str, Json] = field(default_factory=dict)
    snapshots: list[Json] | None = None
    certificate_ends_s: dict[str, float] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[MetricSample]] = field(default_factory=dict)
    directories: dict[str, Json] = field(default_factory=dict)
    configurations: dict[str, Json] = field(default_factory=dict)
    archives: dict[str, Json] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    """Values of secrets that were seen; they never leave this process."""

    def samples(self, name: str) -> list[tuple[str, MetricSample]]:
        """Return page and sample of each number of a metric."""
        return [
            (page, sample)
            for page, samples in self.metrics.items()
            for sample in samples
            if sample.name == name
        ]
