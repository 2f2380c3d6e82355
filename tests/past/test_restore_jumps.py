"""Numbers of a restored cluster, beyond all that the lost one can have given."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.mux.stage import Stage
from past.founding.jumps import COUNTERS, JUMP, JumpedCut, jumped
from viewstamp import limits
from viewstamp.api.brokers.v1.brokers_pb2 import BrokerEntity
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroupEntity
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import SnapshotEntity
from viewstamp.api.streams.v1.streams_pb2 import StreamEntity, StreamsCountersEntity, TopicEntity
from viewstamp.format.kinds import KINDS
from viewstamp.machine.freezing import Entity

LEVEL = limits.FEATURE_LEVEL_MAX
FIRST = JUMP + 1


def cut_at(level: int = LEVEL, generation: int = 1) -> JumpedCut:
    """Return a cut of the new cluster."""
    return JumpedCut(generation, JUMP + 9, level)


def counters(stage: Stage, entities: list[Entity], level: int = LEVEL) -> Any:
    """Return the one counters entity of a section behind the jump."""
    kind, message = COUNTERS[stage].kind, COUNTERS[stage].message
    (found,) = [each for each in jumped(stage, entities, cut_at(level)) if each[0] == kind]
    return message.FromString(found[2])


@pytest.mark.parametrize("stage", list(COUNTERS))
def test_counters_of_the_table_are_those_of_the_format(stage: Stage) -> None:
    """The table names kind, message and all fields that the format of a section has."""
    info = KINDS[int(stage), COUNTERS[stage].kind]
    assert info.message is COUNTERS[stage].message
    assert info.key_fields == ()
    names = [field.name for field in info.message.DESCRIPTOR.fields]
    assert list(COUNTERS[stage].fields) == names


def test_every_section_with_counters_is_in_the_table() -> None:
    """No section of a service gives ids by counters that a restore forgets."""
    found = {stage for (stage, _), info in KINDS.items() if info.name.endswith("_counters")}
    assert found == {*map(int, COUNTERS), int(Stage.CATALOG)}


@pytest.mark.parametrize(
    ("level", "broker"), [(LEVEL, FIRST), (limits.FEATURE_LEVEL_BROKERS - 1, 0)]
)
def test_a_section_without_counters_gets_them(level: int, broker: int) -> None:
    """A section that has given no id begins beyond those that the lost cluster may have given."""
    wanted = StreamsCountersEntity(next_stream_id=FIRST, next_topic_id=FIRST, next_broker_id=broker)
    watermarks = (5, b"row", b"canonical")
    assert counters(Stage.STREAMS, [], level) == wanted
    assert [each[0] for each in jumped(Stage.STREAMS, [watermarks], cut_at(level))] == [4, 5]


def test_counters_go_on_further() -> None:
    """Counters go on by the jump, and everything else keeps its bytes and its order."""
    canonical = StreamsCountersEntity(next_stream_id=7, next_topic_id=3).SerializeToString()
    access = (3, b"user", b"as it is")
    found = list(jumped(Stage.STREAMS, [access, (4, b"", canonical)], cut_at()))
    assert found[0] == access
    assert StreamsCountersEntity.FromString(found[1][2]) == StreamsCountersEntity(
        next_stream_id=7 + JUMP, next_topic_id=3 + JUMP, next_broker_id=FIRST
    )


def test_tokens_end() -> None:
    """A token that was deleted in what is lost is not valid again: no token is kept."""
    token = (2, b"token", b"canonical")
    found = list(jumped(Stage.USERS, [(1, b"user", b"canonical"), token], cut_at()))
    assert [kind for kind, _, _ in found] == [1, 3]


def test_the_new_snapshot_alone_is_known() -> None:
    """The catalog of the new cluster has the new generation, and no other."""
    entities = []
    for generation in (1, 2):
        entity = SnapshotEntity()
        entity.snapshot.generation, entity.snapshot.cut_revision = generation, 40 + generation
        entities.append((1, bytes([generation]), entity.SerializeToString()))
    level = (3, b"", b"level")
    (kept, others) = jumped(Stage.CATALOG, [*entities, level], cut_at(generation=2))
    assert (kept, others) == (entities[1], level)


def test_numbers_of_entities_go_on_further() -> None:
    """Epochs of groups go on further, and a broker has to register anew."""
    cut = JumpedCut(1, JUMP + 9, LEVEL)
    broker = BrokerEntity(id=1, broker_epoch=7, modified_revision=7).SerializeToString()
    (_, of_broker) = jumped(Stage.STREAMS, [(6, b"", broker)], cut)
    assert BrokerEntity.FromString(of_broker[2]) == BrokerEntity(
        id=1, broker_epoch=7, fenced=True, modified_revision=JUMP + 9
    )
    group = ConsumerGroupEntity(group_epoch=3, assignment_epoch=2).SerializeToString()
    (of_group, _) = jumped(Stage.CONSUMER_GROUPS, [(1, b"", group)], cut)
    assert ConsumerGroupEntity.FromString(of_group[2]) == ConsumerGroupEntity(
        group_epoch=3 + JUMP, assignment_epoch=2 + JUMP
    )


def test_no_restore_orders_a_purge() -> None:
    """Streams and topics keep their number of purges: a higher one has a data plane drop data."""
    stream = (1, b"", StreamEntity(name="s").SerializeToString())
    topic = (2, b"", TopicEntity(name="t", purge_generation=1).SerializeToString())
    (of_stream, of_topic, _) = jumped(Stage.STREAMS, [stream, topic], cut_at())
    assert (of_stream, of_topic) == (stream, topic)
