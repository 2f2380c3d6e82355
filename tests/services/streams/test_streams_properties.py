"""Properties: random commands against a plain model, taken back, and over a snapshot."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from services.runtime import offset_rows
from services.streams import partitions
from services.streams.model import StreamsState
from services.streams.partitions import PartitionRun
from services.streams.section import SECTION, encode_counters
from tests.services.streams.streams_workbench import Workbench, by
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.errors import Refusal
from viewstamp.machine.tables import UndoLog

NAMES: Final = st.sampled_from(["a", "b", "c"])
KEYS: Final = st.one_of(NAMES, st.integers(1, 6))
COUNTS: Final = st.integers(1, 4)
OFFSETS: Final = st.dictionaries(st.integers(0, 3), st.integers(0, 5), min_size=1, max_size=2)
STEPS: Final = 30
EXAMPLES: Final = 60


@dataclass
class ModelTopic:
    """A topic, with the creating revision of each single partition."""

    name: str
    partitions: list[int]
    modified: int
    expiry: int = 0
    purges: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


@dataclass
class ModelStream:
    """A stream and its topics by id."""

    name: str
    modified: int
    purges: int = 0
    topics: dict[int, ModelTopic] = field(default_factory=dict)


def named(entities: dict[int, Any], key: int | str) -> int | None:
    """Return the id of the entity with this id or name, or None."""
    return next((id_ for id_ in entities if key in (id_, entities[id_].name)), None)


class AgainstModel(RuleBasedStateMachine):
    """Root's commands and a user's grants, in the machine and in dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Rehearsal()
        self.streams: dict[int, ModelStream] = {}
        self.grants: dict[int, set[tuple[int, int]]] = {}  # user -> (stream, topic or 0)
        self.ids_given: list[tuple[str, int]] = []

    @initialize()
    def begin_with_some(self) -> None:
        """Begin with two streams, one of which has three topics, so that most rules find
        something."""
        for stream in ("a", "b"):
            self.create_stream(stream)
        for topic in ("a", "b", "c"):
            self.create_topic("a", topic, 2)

    def refused(self, name: str, request: Any, reason: str) -> None:
        """Demand that the command is refused so, and changes nothing."""
        before = self.bench.digest()
        try:
            self.bench.command(name, request)
        except Refusal as refusal:
            assert refusal.name == reason
            assert self.bench.digest() == before
            return
        raise AssertionError(f"{name} was not refused with {reason}")

    def found(self, name: str, request: Any, stream: int | str) -> ModelStream | None:
        """Return the named stream, or None after checking the refusal."""
        stream_id = named(self.streams, stream)
        if stream_id is None:
            self.refused(name, request, "STREAM_NOT_FOUND")
            return None
        return self.streams[stream_id]

    def found_topic(
        self, name: str, request: Any, stream: int | str, topic: int | str
    ) -> ModelTopic | None:
        """Return the named topic, or None after checking the refusal."""
        parent = self.found(name, request, stream)
        if parent is None:
            return None
        topic_id = named(parent.topics, topic)
        if topic_id is None:
            self.refused(name, request, "TOPIC_NOT_FOUND")
            return None
        return parent.topics[topic_id]

    @rule(name=NAMES)
    def create_stream(self, name: str) -> None:
        """Create a stream, unless the name is taken."""
        request = api.CreateStreamRequest(name=name)
        if named(self.streams, name) is not None:
            self.refused("CreateStream", request, "STREAM_EXISTS")
            return
        stream_id = self.bench.command("CreateStream", request).stream_id
        self.ids_given.append(("stream", stream_id))
        self.streams[stream_id] = ModelStream(name, self.bench.revision)

    @rule(stream=KEYS, name=NAMES)
    def rename_stream(self, stream: int | str, name: str) -> None:
        """Rename a stream, unless the name is another's."""
        request = api.UpdateStreamRequest(stream=by(stream), name=name)
        model = self.found("UpdateStream", request, stream)
        if model is None or model.name == name:
            return
        if named(self.streams, name) is not None:
            self.refused("UpdateStream", request, "STREAM_EXISTS")
            return
        self.bench.command("UpdateStream", request)
        model.name, model.modified = name, self.bench.revision

    @rule(stream=KEYS)
    def purge_stream(self, stream: int | str) -> None:
        """Purge a stream."""
        request = api.PurgeStreamRequest(stream=by(stream))
        model = self.found("PurgeStream", request, stream)
        if model is not None:
            self.bench.command("PurgeStream", request)
            model.purges, model.modified = model.purges + 1, self.bench.revision

    @rule(stream=KEYS)
    def delete_stream(self, stream: int | str) -> None:
        """Delete a stream with its grants; the effect names its topics."""
        request = api.DeleteStreamRequest(stream=by(stream))
        model = self.found("DeleteStream", request, stream)
        if model is None:
            return
        self.bench.command("DeleteStream", request)
        stream_id = next(id_ for id_ in self.streams if self.streams[id_] is model)
        ((_, payload),) = self.bench.effects
        assert payload.stream_deleted.stream_id == stream_id
        assert list(payload.stream_deleted.topic_ids) == sorted(model.topics)
        del self.streams[stream_id]
        for user, granted in self.grants.items():
            self.grants[user] = {grant for grant in granted if grant[0] != stream_id}

    @rule(stream=KEYS, name=NAMES, count=st.integers(0, 3))
    def create_topic(self, stream: int | str, name: str, count: int) -> None:
        """Create a topic, unless the name is taken."""
        request = api.CreateTopicRequest(stream=by(stream), name=name, partitions_count=count)
        parent = self.found("CreateTopic", request, stream)
        if parent is None:
            return
        if named(parent.topics, name) is not None:
            self.refused("CreateTopic", request, "TOPIC_EXISTS")
            return
        topic_id = self.bench.command("CreateTopic", request).topic_id
        self.ids_given.append(("topic", topic_id))
        revision = self.bench.revision
        parent.topics[topic_id] = ModelTopic(name, [revision] * count, revision)

    @rule(stream=KEYS, topic=KEYS, name=NAMES, expiry=st.integers(0, 1))
    def update_topic(self, stream: int | str, topic: int | str, name: str, expiry: int) -> None:
        """Rename a topic and set an option, unless the name is another's."""
        options = streams_pb2.TopicOptions(message_expiry_us=expiry)
        request = api.UpdateTopicRequest(
            stream=by(stream), topic=by(topic), name=name, options=options
        )
        model = self.found_topic("UpdateTopic", request, stream, topic)
        parent = self.found("UpdateTopic", request, stream)
        if model is None or parent is None:
            return
        if model.name != name and named(parent.topics, name) is not None:
            self.refused("UpdateTopic", request, "TOPIC_EXISTS")
            return
        self.bench.command("UpdateTopic", request)
        if (model.name, model.expiry) != (name, expiry):
            model.name, model.expiry, model.modified = name, expiry, self.bench.revision

    @rule(stream=KEYS, topic=KEYS)
    def purge_topic(self, stream: int | str, topic: int | str) -> None:
        """Purge a topic."""
        request = api.PurgeTopicRequest(stream=by(stream), topic=by(topic))
        model = self.found_topic("PurgeTopic", request, stream, topic)
        if model is not None:
            self.bench.command("PurgeTopic", request)
            model.purges, model.modified = model.purges + 1, self.bench.revision

    @rule(stream=KEYS, topic=KEYS)
    def delete_topic(self, stream: int | str, topic: int | str) -> None:
        """Delete a topic with its grants."""
        request = api.DeleteTopicRequest(stream=by(stream), topic=by(topic))
        if self.found_topic("DeleteTopic", request, stream, topic) is None:
            return
        self.bench.command("DeleteTopic", request)
        stream_id = named(self.streams, stream)
        assert stream_id is not None
        topic_id = named(self.streams[stream_id].topics, topic)
        assert topic_id is not None
        del self.streams[stream_id].topics[topic_id]
        for granted in self.grants.values():
            granted.discard((stream_id, topic_id))

    @rule(stream=KEYS, topic=KEYS, count=COUNTS)
    def create_partitions(self, stream: int | str, topic: int | str, count: int) -> None:
        """Add partitions."""
        request = api.CreatePartitionsRequest(
            stream=by(stream), topic=by(topic), partitions_count=count
        )
        model = self.found_topic("CreatePartitions", request, stream, topic)
        if model is not None:
            self.bench.command("CreatePartitions", request)
            model.partitions += [self.bench.revision] * count
            model.modified = self.bench.revision

    @rule(stream=KEYS, topic=KEYS, count=COUNTS)
    def delete_partitions(self, stream: int | str, topic: int | str, count: int) -> None:
        """Remove partitions, unless there are fewer."""
        request = api.DeletePartitionsRequest(
            stream=by(stream), topic=by(topic), partitions_count=count
        )
        model = self.found_topic("DeletePartitions", request, stream, topic)
        if model is None:
            return
        if count > len(model.partitions):
            self.refused("DeletePartitions", request, "INVALID_PARTITIONS_COUNT")
            return
        self.bench.command("DeletePartitions", request)
        del model.partitions[-count:]
        model.modified = self.bench.revision
        for offsets in (model.starts, model.ends):
            for partition in [each for each in offsets if each >= len(model.partitions)]:
                del offsets[partition]

    @rule(stream=KEYS, topic=KEYS, offsets=OFFSETS)
    def report_ends(self, stream: int | str, topic: int | str, offsets: dict[int, int]) -> None:
        """Report how far partitions were written."""
        request = api.ReportPartitionEndsRequest(
            stream=by(stream), topic=by(topic), end_offsets=reported(offsets)
        )
        model = self.found_topic("ReportPartitionEnds", request, stream, topic)
        if model is not None and self.reported("ReportPartitionEnds", request, model, offsets):
            raise_all(model.ends, offsets)

    @rule(stream=KEYS, topic=KEYS, offsets=OFFSETS)
    def truncate(self, stream: int | str, topic: int | str, offsets: dict[int, int]) -> None:
        """Report how far data of partitions was dropped."""
        request = api.TruncatePartitionsRequest(
            stream=by(stream), topic=by(topic), start_offsets=reported(offsets)
        )
        model = self.found_topic("TruncatePartitions", request, stream, topic)
        if model is not None and self.reported("TruncatePartitions", request, model, offsets):
            raise_all(model.starts, offsets, lowest=1)
            raise_all(model.ends, offsets, lowest=1)

    def reported(self, name: str, request: Any, model: ModelTopic, offsets: dict[int, int]) -> bool:
        """Return whether a report counts, which it does unless it names what is not there."""
        if max(offsets) >= len(model.partitions):
            self.refused(name, request, "PARTITION_NOT_FOUND")
            return False
        self.bench.command(name, request)
        return True

    @rule(user=st.integers(1, 3), data=st.data())
    def grant(self, user: int, data: st.DataObject) -> None:
        """Give a user grants in streams and topics that exist, in place of earlier ones."""
        streams = self.streams.items()
        existing = [(id_, topic) for id_, stream in streams for topic in (0, *stream.topics)]
        chosen = data.draw(st.sets(st.sampled_from(existing))) if existing else set()
        self.grants[user] = set(chosen)
        self.bench.grant(user, permissions_of(self.grants[user]))

    @rule(user=st.integers(1, 3))
    def forget_user(self, user: int) -> None:
        """Delete a user."""
        self.grants.pop(user, None)
        self.bench.effect(user_deleted={"user_id": user})

    @invariant()
    def state_equals_model(self) -> None:
        """Check that every row, index and grant equals the model's."""
        state = self.bench.state
        assert {id_: observed_stream(state, id_) for id_ in state.streams.rows} == self.streams
        assert state.stream_ids.rows == {row.name: id_ for id_, row in state.streams.rows.items()}
        assert len(state.topics) == sum(len(stream.topics) for stream in self.streams.values())
        granted = {user: permissions_of(grants) for user, grants in self.grants.items()}
        assert {
            user: users_pb2.Permissions.FromString(access.permissions)
            for user, access in state.access.rows.items()
            if user
        } == granted

    @invariant()
    def ids_are_never_reused(self) -> None:
        """No id was given twice, and ids grow."""
        for kind in ("stream", "topic"):
            ids = [id_ for given_kind, id_ in self.ids_given if given_kind == kind]
            assert ids == list(range(1, len(ids) + 1))

    @invariant()
    def section_loads_to_the_same_state(self) -> None:
        """A state loaded from the section has the same tables and the same section."""
        state = self.bench.state
        entities = list(SECTION.entities(state))
        assert entities == sorted(entities)
        restored = StreamsState(UndoLog())
        SECTION.load(restored, entities)
        assert tables(restored) == tables(state)
        assert list(SECTION.entities(restored)) == entities


def reported(offsets: dict[int, int]) -> list[PartitionOffset]:
    """Return offsets as a report has them."""
    return [PartitionOffset(partition=each, offset=offset) for each, offset in offsets.items()]


def raise_all(known: dict[int, int], offsets: dict[int, int], lowest: int = 0) -> None:
    """Move known offsets to higher ones, if they are not below the lowest that counts."""
    for partition, offset in offsets.items():
        if offset >= lowest:
            known[partition] = max(offset, known.get(partition, 0))


def permissions_of(grants: set[tuple[int, int]]) -> users_pb2.Permissions:
    """Return read grants for (stream, topic) pairs, topic 0 standing for the stream itself."""
    permissions = users_pb2.Permissions()
    for stream_id, topic_id in sorted(grants):
        if not permissions.streams or permissions.streams[-1].stream.id != stream_id:
            permissions.streams.add(stream=by(stream_id))
        if topic_id:
            permissions.streams[-1].topics.add(topic=by(topic_id), read_topic=True)
        else:
            permissions.streams[-1].read_stream = True
    return permissions


def observed_stream(state: StreamsState, stream_id: int) -> ModelStream:
    """Return a stream of the machine in the model's terms."""
    row = state.streams.rows[stream_id]
    topics = {}
    for topic_id in state.topics.ids(stream_id):
        topic = state.topics.rows[stream_id, topic_id]
        assert state.topics.find(stream_id, topic.name) is topic
        runs = partitions.expanded(topic.runs, topic.partitions_count, topic.created_revision)
        singles = [run.created_revision for run in runs for _ in range(run.length)]
        topics[topic_id] = ModelTopic(
            topic.name,
            singles,
            topic.modified_revision,
            topic.options.message_expiry_us,
            topic.purge_generation,
            *observed_watermarks(state, topic_id),
        )
    assert state.topics.count(stream_id) == len(topics)
    return ModelStream(row.name, row.modified_revision, row.purge_generation, topics)


def observed_watermarks(state: StreamsState, topic_id: int) -> list[dict[int, int]]:
    """Return the starts of a small topic that are not 0, and the reported ends, by partition."""
    row = state.watermarks.rows.get((topic_id, 0))
    if row is None:
        return [{}, {}]
    starts, ends = offset_rows.unpack(row.starts), offset_rows.unpack(row.ends)
    return [
        {partition: start for partition, start in enumerate(starts) if start},
        {partition: plus_one - 1 for partition, plus_one in enumerate(ends) if plus_one},
    ]


def tables(state: StreamsState) -> dict[str, Any]:
    """Return the rows of all tables, and the order in which they are walked."""
    rows: dict[str, Any] = {
        name: getattr(state, name).rows
        for name in (
            "streams", "stream_ids", "topics", "watermarks", "access", "grantees", "brokers",
            "broker_ids", "placements",
        )
    }  # fmt: skip
    placed = state.placements.placed_brokers()
    rows["replicas"] = {each: state.placements.replicas_count(each) for each in placed}
    topics = state.topics
    rows["counters"] = encode_counters(state.counters.rows)
    rows["ids"] = {stream_id: topics.ids(stream_id) for stream_id in sorted(state.streams.rows)}
    rows["topic_keys"] = topics.sorted_keys()
    rows["names"] = {key: topics.find(key[0], topics.rows[key].name) for key in topics.rows}
    return rows


class Rehearsal(Workbench):
    """A bench that applies every command twice: first in a savepoint that is taken back."""

    def command(self, name: str, request: Message, *rest: Any) -> Any:
        """Apply a command, once it was seen that taking it back leaves no trace."""
        before = copy.deepcopy(tables(self.state))
        self.apply(pb.Item(savepoint=pb.SavepointItem()))
        outcome: Any = None
        try:
            outcome = super().command(name, request, *rest)
        except Refusal as refusal:
            outcome = refusal.to_error()
        self.revision -= 1
        self.apply(pb.Item(revert=pb.RevertItem()))
        assert tables(self.state) == before
        try:
            answer = super().command(name, request, *rest)
        except Refusal as refusal:
            assert outcome == refusal.to_error()
            raise
        assert outcome == answer
        return answer


def test_commands_equal_the_model() -> None:
    """Random commands change rows, indexes, grants and sections exactly as a plain model does."""
    policy = settings(max_examples=EXAMPLES, stateful_step_count=STEPS)
    run_state_machine_as_test(AgainstModel, settings=policy)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), max_size=8), st.data())
def test_runs_equal_single_partitions(
    additions: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Runs that grow and shrink say the same as a list of single partitions."""
    runs: partitions.Runs = ()
    singles: list[int] = []
    revision = 0
    for count, step in additions:
        revision += step - 1  # parts of one transaction have the same revision
        runs = partitions.extended(runs, count, revision)
        singles += [revision] * count
        gone = data.draw(st.integers(0, len(singles)))
        runs = partitions.shortened(runs, gone)
        singles = singles[: len(singles) - gone]
        assert [run.created_revision for run in runs for _ in range(run.length)] == singles
        assert len({run.created_revision for run in runs}) == len(runs)


def test_partitions_created_in_one_transaction_are_one_run() -> None:
    """Parts of a transaction share a revision: partitions that they create together are one run."""
    bench = Workbench()
    bench.create_stream("orders")
    bench.create_topic("orders", "paid", 2)
    bench.revision -= 1
    request = api.CreatePartitionsRequest(stream=by("orders"), topic=by("paid"), partitions_count=3)
    bench.command("CreatePartitions", request)
    (topic,) = bench.state.topics.rows.values()
    assert (topic.partitions_count, topic.runs) == (5, ())
    assert partitions.expanded(topic.runs, 5, bench.revision) == (PartitionRun(5, bench.revision),)


def test_later_additions_of_one_transaction_are_one_run() -> None:
    """Two additions at one revision, later than the topic, are one run beside the first."""
    bench = Workbench()
    bench.create_stream("orders")
    bench.create_topic("orders", "paid", 2)
    created = bench.revision
    request = api.CreatePartitionsRequest(stream=by("orders"), topic=by("paid"), partitions_count=3)
    bench.command("CreatePartitions", request)
    bench.revision -= 1
    bench.command("CreatePartitions", request)
    (topic,) = bench.state.topics.rows.values()
    assert topic.runs == (PartitionRun(2, created), PartitionRun(6, created + 1))
