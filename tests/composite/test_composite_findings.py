"""What the composite properties have found, each as the smallest history that shows it."""

from __future__ import annotations

from random import Random

from coordinator.mux.types import Read, ReadSpan, Stage
from testkit.composite.harness import CompositeReplica, entry
from testkit.composite.model import CODES, Model
from testkit.composite.workload import CompositeWorkload
from viewstamp.api.log.v1 import log_pb2
from viewstamp.framing import EMPTY_FRAME


def test_a_read_behind_a_prepare_without_commands_names_its_op() -> None:
    """A read does not join a read that waits for an earlier prepare, even one without commands."""
    replica = CompositeReplica(Random(0))
    listing = ReadSpan(CODES["ListStreams"], 1, EMPTY_FRAME)
    # The bootstrap is not answered yet, so the first read waits, and the second could join it.
    replica.commit(entry(1, [CompositeWorkload(Random(0), Model()).bootstrap()]))
    replica.read(Read(1, (listing,), 0, 1))
    replica.commit(entry(2, [log_pb2.LoggedRequest(session_id=1, acked=1)]))
    replica.read(Read(2, (listing,), 0, 1))
    replica.settle()
    assert [replica.reads[token].op for token in (1, 2)] == [1, 2]


def test_reads_behind_one_another_die_with_a_service_all_at_once() -> None:
    """No read goes on to its next stage while the reads before it are answered with errors."""
    replica = CompositeReplica(Random(0))
    replica.commit(entry(1, [CompositeWorkload(Random(0), Model()).bootstrap()]))
    replica.settle()
    listing = ReadSpan(CODES["ListConsumerGroups"], 1, EMPTY_FRAME)
    # Streams is about to resolve both reads, which would then go on to consumer groups.
    for token in (1, 2, 3):
        replica.read(Read(token, (listing,), 0, 1))
    replica.restart(Stage.STREAMS)
    replica.settle()
    assert all(replica.reads[token].error is not None for token in (1, 2, 3))
    assert not replica.services[Stage.CONSUMER_GROUPS].machine.alarms
