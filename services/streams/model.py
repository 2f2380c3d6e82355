"""The rows of streams and topics, and the state that holds them.

Rows are immutable tuples; a change replaces the row. All changing data lives in tables of one undo
log. Caches are not state: emptying them never changes an answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from services.runtime.liveness import Liveness
from services.runtime.watermarks import WatermarksTable
from services.streams.access import Access
from services.streams.brokers import Broker
from services.streams.options import Options, OptionsPool
from services.streams.partitions import PartitionRun
from services.streams.placement import BrokerTable, PlacementTable
from viewstamp.machine.tables import ABSENT, Table, TableIndex, UndoLog

FIRST_ID: Final = 1
# Names of the counters: which id the next stream, topic or broker gets.
NEXT_STREAM_ID: Final = "next_stream_id"
NEXT_TOPIC_ID: Final = "next_topic_id"
NEXT_BROKER_ID: Final = "next_broker_id"

TopicKey = tuple[int, int]  # stream id, topic id


class Stream(NamedTuple):
    """One stream; revisions and log time (microseconds since 1970) as in streams.v1.Stream."""

    id: int
    name: str
    created_at: int
    created_revision: int
    modified_revision: int
    purge_generation: int


class Topic(NamedTuple):
    """One topic. `runs` is empty where every partition was created together with the topic."""

    id: int
    stream_id: int
    name: str
    partitions_count: int
    runs: tuple[PartitionRun, ...]
    options: Options
    created_at: int
    created_revision: int
    modified_revision: int
    purge_generation: int


class Children:
    """The topics of one stream, as the table of topics indexes them. For reading only."""

    __slots__ = ("ids", "by_name")

    def __init__(self) -> None:
        self.ids: list[int] = []  # ascending
        self.by_name: dict[str, Topic] = {}


NO_CHILDREN: Final = Children()


class TopicTable(Table[TopicKey, Topic]):
    """The topics, with indexes by stream and name that follow every change and every revert.

    The indexes belong to the table, so one undo record per change suffices, and a name can never
    disagree with its row.
    """

    __slots__ = ("_streams",)

    def __init__(self, undo: UndoLog) -> None:
        super().__init__(undo)
        self._streams: dict[int, Children] = {}

    def of_stream(self, stream_id: int) -> Children:
        """Return the topics of a stream; none if it has none."""
        return self._streams.get(stream_id, NO_CHILDREN)

    def by_stream(self) -> list[tuple[int, Children]]:
        """Return every stream that has topics, by ascending id, with these."""
        return sorted(self._streams.items())

    def add(self, children: Children, topic: Topic) -> None:
        """Insert a topic with a new and highest id; `children` is what `of_stream` returned.

        Does what `put` does, without looking for a row to replace: the hot path.
        """
        stream_id, topic_id = key = (topic.stream_id, topic.id)
        self._undo.entries.append((self, key, ABSENT))
        if self.changed is not None:
            self.changed[key] = ABSENT  # ids are never reused, so no older value can be there
        self.rows[key] = topic
        if children is NO_CHILDREN:
            children = self._streams[stream_id] = Children()
        children.ids.append(topic_id)
        children.by_name[topic.name] = topic

    def add_all(self, topics: Sequence[Topic], by_name: Mapping[int, Mapping[str, Topic]]) -> None:
        """Insert topics with new ids, ascending and higher than any other: `add`, in bulk.

        `by_name` has the same topics, in the same order, by stream id and name.
        """
        fresh = {(topic[1], topic[0]): topic for topic in topics}  # half the price of the names
        self._undo.entries.extend(zip(repeat(self), fresh, repeat(ABSENT)))
        if self.changed is not None:
            self.changed.update(dict.fromkeys(fresh, ABSENT))  # a dict has the hashes of its keys
        self.rows.update(fresh)
        for stream_id, named in by_name.items():
            if named:
                children = self._streams.get(stream_id)
                if children is None:
                    children = self._streams[stream_id] = Children()
                children.ids += [topic[0] for topic in named.values()]
                children.by_name.update(named)

    def put(self, key: TopicKey, value: Topic) -> None:
        """Insert or replace a topic."""
        old = self.rows.get(key)
        super().put(key, value)
        self._replaced(key, old, value)

    def delete(self, key: TopicKey) -> Topic:
        """Remove a topic and return it. Raises KeyError if there is none."""
        old = super().delete(key)
        self._replaced(key, old, None)
        return old

    def restore(self, key: TopicKey, old: object) -> None:
        """Put back the value before a change; only the undo log calls this."""
        undone = self.rows.get(key)
        super().restore(key, old)
        self._replaced(key, undone, self.rows.get(key))

    def sorted_keys(self) -> list[TopicKey]:
        """Return all keys in ascending order."""
        streams = self.by_stream()
        return [(stream_id, id_) for stream_id, children in streams for id_ in children.ids]

    def find(self, stream_id: int, key: int | str) -> Topic | None:
        """Return the topic of a stream by id or name, or None."""
        if isinstance(key, int):
            return self.rows.get((stream_id, key))
        children = self._streams.get(stream_id)
        return None if children is None else children.by_name.get(key)

    def count(self, stream_id: int) -> int:
        """Return how many topics a stream holds."""
        return len(self.of_stream(stream_id).ids)

    def ids(self, stream_id: int) -> list[int]:
        """Return a copy of the ids of a stream's topics, ascending."""
        children = self._streams.get(stream_id)
        return [] if children is None else children.ids.copy()

    def ids_after(self, stream_id: int, topic_id: int, count: int) -> list[int]:
        """Return at most `count` ids of a stream's topics greater than `topic_id`, ascending."""
        children = self._streams.get(stream_id)
        if children is None:
            return []
        start = bisect_right(children.ids, topic_id)
        return children.ids[start : start + count]

    def _replaced(self, key: TopicKey, old: Topic | None, new: Topic | None) -> None:
        stream_id, topic_id = key
        children = self._streams.get(stream_id)
        if children is None:
            children = self._streams[stream_id] = Children()
        if old is None:
            if not children.ids or children.ids[-1] < topic_id:  # ids grow: nearly always
                children.ids.append(topic_id)
            else:
                insort(children.ids, topic_id)
        elif new is None or new.name != old.name:
            del children.by_name[old.name]
        if new is not None:
            children.by_name[new.name] = new
            return
        del children.ids[bisect_left(children.ids, topic_id)]
        if not children.ids:
            del self._streams[stream_id]


class StreamsState:
    """The state of the streams domain."""

    __slots__ = (
        "streams",
        "stream_ids",
        "topics",
        "watermarks",
        "brokers",
        "broker_ids",
        "placements",
        "access",
        "grantees",
        "counters",
        "options_pool",
        "contexts",
        "liveness",
    )

    def __init__(self, undo: UndoLog) -> None:
        self.streams: Table[int, Stream] = Table(undo)
        self.stream_ids: Table[str, int] = Table(undo)  # by name
        self.topics = TopicTable(undo)
        self.watermarks: WatermarksTable = Table(undo)
        self.brokers = BrokerTable(undo)
        self.broker_ids: Table[str, int] = Table(undo)  # by name
        self.placements = PlacementTable(undo)
        self.access: Table[int, Access] = Table(undo)  # by user id
        # Stream id -> the users with grants scoped to it.
        self.grantees: TableIndex[int, int] = TableIndex(undo)
        self.counters: Table[str, int] = Table(undo)
        self.options_pool = OptionsPool()
        # Topic id -> the topic and its encoded TopicContext; valid while the row is the same one.
        self.contexts: dict[int, tuple[Topic, bytes]] = {}
        # Of brokers; no state either.
        self.liveness: Liveness[int, Broker] = Liveness(0)

    def find_stream(self, key: int | str) -> Stream | None:
        """Return the stream by id or name, or None."""
        if isinstance(key, str):
            stream_id = self.stream_ids.rows.get(key)
            return None if stream_id is None else self.streams.rows[stream_id]
        return self.streams.rows.get(key)

    def peek_id(self, counter: str) -> int:
        """Return the id that the counter gives next."""
        return self.counters.rows.get(counter, FIRST_ID)

    def take_id(self, counter: str) -> int:
        """Return the counter's id and move it on, so that no id is ever given twice."""
        value = self.counters.rows.get(counter)
        if value is None:
            value = FIRST_ID
            self.counters.put(counter, value + 1)
        else:
            self.counters.replace(counter, value, value + 1)
        return value
