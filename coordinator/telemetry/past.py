"""Reads of the past on the Prometheus page: builds of earlier states, and who asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class PastCounts(Protocol):
    """What is counted of reads of the past (`history.tally`), since the coordinator's start."""

    @property
    def builds(self) -> Mapping[str, int]:
        """Builds by outcome."""

    @property
    def questions(self) -> Mapping[str, int]:
        """Questions by outcome."""

    @property
    def built_s(self) -> float:
        """Seconds that builds took which are over."""

    @property
    def replayed_revisions(self) -> int:
        """Revisions that builds have applied."""

    @property
    def waiting(self) -> int:
        """Questions without an answer."""

    @property
    def is_building(self) -> bool:
        """Whether a build is under way."""


def past_families(counts: PastCounts) -> Iterable[Metric]:
    """Yield what is counted of reads of the past, for the page."""
    for name, text, by_outcome in (
        ("viewstamp_past_builds", "Builds of earlier states.", counts.builds),
        ("viewstamp_past_questions", "Reads of the past, and blame.", counts.questions),
    ):
        family = CounterMetricFamily(name, text, labels=["outcome"])
        for outcome, count in list(by_outcome.items()):
            family.add_metric([outcome], count)
        yield family
    yield CounterMetricFamily(
        "viewstamp_past_build_seconds", "Time that builds took which are over.", counts.built_s
    )
    yield CounterMetricFamily(
        "viewstamp_past_replayed_revisions",
        "Revisions that builds have applied.",
        counts.replayed_revisions,
    )
    yield GaugeMetricFamily(
        "viewstamp_past_building", "1 while a build is under way.", counts.is_building
    )
    yield GaugeMetricFamily(
        "viewstamp_past_questions_waiting", "Reads of the past that wait.", counts.waiting
    )
