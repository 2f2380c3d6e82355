"""A replica that becomes the only voter, or ceases to be: its parts hear of it by being told so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from coordinator.app import scrubbing
from coordinator.app.fitness_parts import FitnessParts, make_fitness
from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.scrub.ports import ScrubPorts
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

STEPS = [
    (((0,), ()), True),
    (((0,), (1,)), True),
    (((0, 1), ()), False),
    (((1,), (0,)), False),
    (((0,), ()), True),
]


def test_a_full_disk_speaks_against_one_of_several() -> None:
    """The alarm is raised while another voter could lead, and ends with the last of them."""
    roster, alarms = Roster.founding(0, 1), Alarms(lambda: 1)
    nothing = MagicMock()
    nothing.services.states.return_value = {}
    nothing.time.look.return_value = ""
    nothing.driver.progress = SimpleNamespace(committed_op=3, applied_op=3)
    space: Any = SimpleNamespace(full=True)
    fitness = make_fitness(
        FitnessParts(
            *(nothing.driver, nothing.services, space, nothing.writer, None, nothing.time),
            *(roster, alarms, nothing.stalled),
        )
    )
    for members, is_alone in STEPS:
        roster.enter(*members)
        fitness.look()
        kinds = [alarm.kind for alarm in alarms.all()]
        assert kinds == ([] if is_alone else [cluster_pb2.ALARM_KIND_UNFIT])
        assert bool(fitness.reason) is not is_alone


def test_the_scrubber_asks_whether_it_is_of_a_lone_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was put together once, and goes by the voters of the moment."""
    kept: list[ScrubPorts] = []

    def take(ports: ScrubPorts, interval_ms: int) -> MagicMock:
        kept.append(ports)
        return MagicMock(interval_ms=interval_ms)

    monkeypatch.setattr(scrubbing, "Scrubber", take)
    around = MagicMock(roster=Roster.founding(0, 1), peers=None)
    around.config.scrub_interval_ms = 1
    scrubbing.make_scrubber(around, MagicMock(), MagicMock(), MagicMock(), lambda _: b"")
    for members, is_alone in STEPS:
        around.roster.enter(*members)
        assert kept[0].is_lone() is is_alone
