"""The alarm of an item log that can no longer restart its service."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.app.services import LinkPorts, ServiceLinks
from coordinator.base.alarms import Alarms
from coordinator.mux.stage import SERVICE_STAGES, Stage
from coordinator.stages.base import InstalledSection
from viewstamp import limits
from viewstamp.api.cluster.v1.cluster_service_pb2 import ALARM_KIND_ITEM_LOG_DROPPED
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

SECTION = InstalledSection(1, 2, 0, 1, bytes(32), 0, 0, lambda: iter(()))
CUT = pb.Batch(sequence=2, items=[pb.Item(cut=pb.CutItem(generation=1))])


async def test_an_item_log_that_is_dropped_raises_an_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The alarm is raised though the service answers nothing, and cleared once a cut mends the
    log."""
    monkeypatch.setattr(limits, "ITEM_LOG_BYTES_MAX", CUT.ByteSize() + 20)
    nothing: Any = SimpleNamespace()
    alarms = Alarms(lambda: 7)
    ports = LinkPorts(nothing, nothing, nothing, alarms, nothing, lambda *_: None, nothing)
    targets = {stage.name.lower(): "unix:/nowhere" for stage in SERVICE_STAGES}
    client = ServiceLinks(ports, targets, {}).clients[Stage.STREAMS]

    client.send(pb.Batch(sequence=1, items=[pb.Item()] * 100))

    (alarm,) = alarms.all()
    assert (alarm.kind, "item log of streams" in alarm.message) == (
        ALARM_KIND_ITEM_LOG_DROPPED,
        True,
    )
    client.send(CUT)
    assert alarms.all() == [alarm]  # the section of the cut is not durable yet
    client.move_base(SECTION)
    assert alarms.all() == []


def test_layers_of_a_base_are_exchanged() -> None:
    """The same section in other layers takes its place, where it is in the log of items; the
    section of another generation does not."""
    nothing: Any = SimpleNamespace()
    ports = LinkPorts(
        nothing, nothing, nothing, Alarms(lambda: 7), nothing, lambda *_: None, nothing
    )
    targets = {stage.name.lower(): "unix:/nowhere" for stage in SERVICE_STAGES}
    client = ServiceLinks(ports, targets, {}).clients[Stage.STREAMS]
    client.exchange_base(SECTION)  # there is none yet
    client.send(pb.Batch(sequence=1, items=[pb.Item()]))
    client.send(CUT)
    client.move_base(SECTION)
    base = client.base
    assert base is not None
    other = replace(SECTION, layers=SECTION.layers + 1)
    client.exchange_base(replace(other, generation=SECTION.generation + 1))
    assert client.base == base
    client.exchange_base(other)
    assert client.base == replace(base, layers=SECTION.layers + 1)
