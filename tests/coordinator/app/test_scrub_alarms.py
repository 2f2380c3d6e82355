"""The scrubber's alarms among those of a replica, and when it gives way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.app.scrubbing import CommandsSeen, CopyAlarms, ReplicaScrubAlarms, RunningScrubber
from coordinator.base.alarms import Alarms
from coordinator.mux.stage import SERVICE_STAGES
from coordinator.scrub.ports import ScrubAlarm
from coordinator.snapshot.adoption import Adoption
from coordinator.snapshot.pacing import Traffic
from testkit.generation_builders import Sections, entities, memory, open_files
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.worker_thread import DiskHangsError

KINDS = {
    ScrubAlarm.COPY_BAD: cluster_pb2.ALARM_KIND_SNAPSHOT_COPY_BAD,
    ScrubAlarm.JOURNAL_DAMAGED: cluster_pb2.ALARM_KIND_JOURNAL_DAMAGED,
    ScrubAlarm.SUPERBLOCK_DAMAGED: cluster_pb2.ALARM_KIND_SUPERBLOCK_DAMAGED,
    ScrubAlarm.STALLED: cluster_pb2.ALARM_KIND_SCRUB_STALLED,
}


def made() -> tuple[Alarms, CopyAlarms, ReplicaScrubAlarms]:
    """Return the alarms of a replica, and two ways to them."""
    alarms = Alarms(lambda: 7)
    copies = CopyAlarms(alarms)
    return alarms, copies, ReplicaScrubAlarms(alarms, copies)


@pytest.mark.parametrize("kind", list(ScrubAlarm))
def test_each_alarm_is_told_and_ends(kind: ScrubAlarm) -> None:
    """Each kind has one among the replica's; telling again changes the text."""
    alarms, _, scrub = made()
    scrub.tell(kind, "one", "who")
    scrub.tell(kind, "two", "who")
    (alarm,) = alarms.all()
    assert (alarm.kind, alarm.message) == (KINDS[kind], "two")
    scrub.clear(kind, "who")
    assert not alarms.all()


def test_alarms_of_files_that_are_gone_end() -> None:
    """Those that a start or a download has raised do, too; other alarms stay."""
    alarms, copies, scrub = made()
    for name in ("layers/a", "layers/b"):
        copies.tell(name, name)
    scrub.tell(ScrubAlarm.JOURNAL_DAMAGED, "records")
    scrub.keep_files({"layers/b"})
    assert sorted(alarm.message for alarm in alarms.all()) == ["layers/b", "records"]


def test_commands_are_seen_once() -> None:
    """Commands since the last question make a replica busy, and so do those under way."""
    applied, waiting = [1], [0]
    seen = CommandsSeen(Traffic(lambda: applied[0], lambda: waiting[0]))
    assert not seen.ask()
    applied[0] = 2
    assert [seen.ask(), seen.ask()] == [True, False]
    waiting[0] = 1
    assert seen.ask()


def test_a_stop_waits_for_no_disk_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """The process ends although a read never returns, and says so."""

    def close() -> None:
        raise DiskHangsError("not for 3000 ms")

    scrubber: Any = SimpleNamespace(run=None, tally=None)
    thread: Any = SimpleNamespace(close=close)
    RunningScrubber(scrubber, thread).close()
    assert "does not wait for the disk" in caplog.text


async def test_services_begin_from_the_layers_of_peers() -> None:
    """Once a manifest was replaced by one in other layers, services and the next cuts use that; a
    generation from which nobody starts changes nothing."""
    files = open_files(memory())
    sections = Sections(files)
    manifest = sections.write(1, entities(1, 8))
    exchanged: list[Any] = []
    service = SimpleNamespace(exchange_base=exchanged.append)
    ports: Any = SimpleNamespace(services=dict.fromkeys(SERVICE_STAGES, service))
    adoption = Adoption(files, ports)
    await adoption.exchanged(1)
    assert not exchanged
    adoption.start_from(manifest)
    await adoption.exchanged(2)
    assert not exchanged
    await adoption.exchanged(1)
    assert {base.generation for base in exchanged} == {1}
    assert adoption.adopted == manifest
