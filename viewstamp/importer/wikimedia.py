"""The event stream catalogue of the Wikimedia Foundation as a plan.

An event service becomes a stream, each of its Kafka topics a topic with one partition, each enabled
ingestion job of a topic a consumer group on it, and each producer a user who may send messages to
the topics of the entries that name it. Entries whose name is a pattern stand for topics that
only the running platform knows: they are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.importer.plan import CatalogueError, GroupKey, ImportPlan, Skipped, TopicKey
from viewstamp.names import check_name

# The stream of topics that no event service owns.
UNASSIGNED: Final = "unassigned"
# Hive ingestion has no job name of its own in the catalogue; Hadoop's jobs do.
HIVE_GROUP: Final = "hive_ingestion"
PATTERN_REASON: Final = "its name is a pattern: the catalogue does not list its topics"

_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def read_plan(path: Path) -> ImportPlan:
    """Return the plan of a catalogue file. Raises OSError, CatalogueError."""
    try:
        catalogue = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CatalogueError(f"{path} is not JSON: {error}") from error
    return plan_of(catalogue)


def plan_of(catalogue: Any) -> ImportPlan:
    """Return the plan of a parsed catalogue. Raises CatalogueError."""
    if not isinstance(catalogue, dict):
        raise CatalogueError('the catalogue must be an object with the list "streams"')
    entries = _field(catalogue, "streams", list, "the catalogue")
    builder = _Builder()
    for index, entry in enumerate(entries):
        builder.add(entry, f"streams[{index}]")
    return builder.plan(str(catalogue.get("source", "")), len(entries))


class _Builder:
    """Collects the entities of all entries; dictionaries serve as sets that keep their order."""

    def __init__(self) -> None:
        self._imported = 0
        self._mentions = 0
        self._streams: dict[str, None] = {}
        self._topics: dict[TopicKey, None] = {}
        self._groups: dict[GroupKey, None] = {}
        self._senders: dict[str, dict[TopicKey, None]] = {}
        self._skipped: list[Skipped] = []
        self._skipped_producers: dict[str, Skipped] = {}

    def add(self, entry: Any, place: str) -> None:
        """Take note of one entry. Raises CatalogueError."""
        if not isinstance(entry, dict):
            raise CatalogueError(f"{place} must be an object")
        name = _field(entry, "stream", str, place)
        if _field(entry, "name_is_regex", bool, place):
            self._skipped.append(Skipped(name, PATTERN_REASON))
            return
        self._imported += 1
        stream = _service_of(entry, place)
        self._streams[stream] = None
        groups = tuple(_groups_of(entry, place))
        producers = [who for who in _texts(entry, "producers", place) if self._is_username(who)]
        for index, topic in enumerate(_texts(entry, "topics", place)):
            key = TopicKey(stream, _name(topic, f"{place}.topics[{index}]"))
            self._add_topic(key, groups, producers)

    def _add_topic(self, key: TopicKey, groups: Sequence[str], producers: Sequence[str]) -> None:
        self._mentions += 1
        self._topics[key] = None
        for group in groups:
            self._groups[GroupKey(*key, group)] = None
        for producer in producers:
            self._senders.setdefault(producer, {})[key] = None

    def _is_username(self, producer: str) -> bool:
        try:
            check_name(
                producer,
                reason=Reason.REASON_INVALID_USERNAME,
                bytes_min=limits.USERNAME_BYTES_MIN,
                bytes_max=limits.USERNAME_BYTES_MAX,
            )
        except Refusal as refusal:
            self._skipped_producers[producer] = Skipped(producer, refusal.message)
            return False
        return True

    def plan(self, source: str, entries: int) -> ImportPlan:
        """Return what was collected."""
        return ImportPlan(
            source=source,
            entries=entries,
            imported_entries=self._imported,
            topic_mentions=self._mentions,
            streams=tuple(self._streams),
            topics=tuple(self._topics),
            groups=tuple(self._groups),
            senders={who: tuple(topics) for who, topics in self._senders.items()},
            skipped_entries=tuple(self._skipped),
            skipped_producers=tuple(self._skipped_producers.values()),
        )


def _service_of(entry: Mapping[str, Any], place: str) -> str:
    if entry.get("event_service") is None:
        return UNASSIGNED
    return _name(_field(entry, "event_service", str, place), f"{place}.event_service")


def _groups_of(entry: Mapping[str, Any], place: str) -> Iterator[str]:
    hadoop = _field(entry, "hadoop_ingestion", dict, place)
    if _field(hadoop, "enabled", bool, f"{place}.hadoop_ingestion"):
        job = _field(hadoop, "job", str, f"{place}.hadoop_ingestion")
        yield _name(job, f"{place}.hadoop_ingestion.job")
    hive = _field(entry, "hive_ingestion", dict, place)
    if _field(hive, "enabled", bool, f"{place}.hive_ingestion"):
        yield HIVE_GROUP


def _texts(entry: Mapping[str, Any], field: str, place: str) -> list[str]:
    values: list[Any] = _field(entry, field, list, place)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            found = json.dumps(value)[:40]
            raise CatalogueError(f"{place}.{field}[{index}] must be text, not {found}")
    return values


def _name(name: str, place: str) -> str:
    """Return a name that stream, topic and group may have. Raises CatalogueError."""
    try:
        check_name(
            name,
            reason=Reason.REASON_INVALID_TOPIC_NAME,
            bytes_min=limits.NAME_BYTES_MIN,
            bytes_max=limits.NAME_BYTES_MAX,
        )
    except Refusal as refusal:
        raise CatalogueError(f"{place}: {refusal.message}") from refusal
    return name


def _field(entry: Mapping[str, Any], field: str, kind: type, place: str) -> Any:
    value = entry.get(field)
    if not isinstance(value, kind):
        found = "is missing" if field not in entry else f"is {json.dumps(value)[:40]}"
        raise CatalogueError(f"{place}: {field!r} {found}; it must be {_KINDS[kind]}")
    return value
