"""Strimzi's `KafkaTopic` and `KafkaUser` as a topology, and what could not be carried over.

A Kafka cluster becomes a stream, named by the label `strimzi.io/cluster` or by the caller.
Nobody gets more permissions than in Kafka: what has no equal here is left out, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from viewstamp.document_tree import FILE_BYTES_MAX, ListNode, MapNode, Node, ScalarKind, trees
from viewstamp.importer.plan import CatalogueError, Skipped
from viewstamp.importer.strimzi_topics import topic_of
from viewstamp.importer.strimzi_users import StrimziUser, user_of
from viewstamp.topology import DocumentError, Topology
from viewstamp.topology.model import DeclaredStream, DeclaredTopic, DeclaredUser
from viewstamp.topology.shapes import number_of

API_GROUP: Final = "kafka.strimzi.io/"
CLUSTER_LABEL: Final = "strimzi.io/cluster"
MANAGED_ANNOTATION: Final = "strimzi.io/managed"
# The stream of what has no label of a cluster.
STREAM_DEFAULT: Final = "kafka"
_SWITCHES: Final = MappingProxyType({"true": True, "false": False})


@dataclass(frozen=True, slots=True)
class StrimziImport:
    """What resources declare, and what of them is not in it, with the reason."""

    topology: Topology
    notes: tuple[Skipped, ...]


def read_strimzi(paths: Iterable[Path], stream: str | None = None) -> StrimziImport:
    """Return what files of resources declare. Raises OSError, CatalogueError."""
    found: list[Any] = []
    for path in paths:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        try:
            found += resources_of(content.decode("utf-8"), str(path))
        except (DocumentError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{path}: {error}") from error
    return strimzi_import(found, stream)


def resources_of(text: str, file: str) -> list[Any]:
    """Return the resources of a text as plain values. Raises DocumentError, CatalogueError."""
    resources = []
    for tree in trees(text, file):
        value = _plain(tree)
        listed = value.get("items") if isinstance(value, dict) and "items" in value else [value]
        for each in listed if isinstance(listed, list) else [listed]:
            if not isinstance(each, dict) or not isinstance(each.get("metadata"), dict):
                raise CatalogueError(
                    f"{file}:{tree.line}: this is no resource: it needs `kind`, `metadata`, `spec`"
                )
            resources.append(each)
    return resources


def strimzi_import(resources: Sequence[Any], stream: str | None = None) -> StrimziImport:
    """Return what resources declare. Raises CatalogueError for what has another form."""
    builder = _Builder(stream)
    for resource in resources:
        builder.add(resource)
    return builder.imported()


@dataclass(slots=True)
class _Builder:
    """Collects topics, then users, who may need to know which topics there are."""

    stream: str | None
    topics: dict[str, dict[str, DeclaredTopic]] = field(default_factory=dict)
    users: list[StrimziUser] = field(default_factory=list)
    notes: dict[Skipped, None] = field(default_factory=dict)

    def add(self, resource: Any) -> None:
        """Take note of one resource."""
        kind, metadata = resource.get("kind"), resource["metadata"]
        name = metadata.get("name")
        if not isinstance(name, str):
            raise CatalogueError(f"a {kind} has no metadata.name: give it one")
        if not str(resource.get("apiVersion")).startswith(API_GROUP):
            self._note(f"{kind} {name}", f"its apiVersion does not begin with {API_GROUP}")
        elif kind == "KafkaTopic":
            self._add_topic(name, resource)
        elif kind == "KafkaUser":
            self.users.append(StrimziUser(name, self._stream_of(metadata), _spec(resource)))
        else:
            self._note(f"{kind} {name}", "only KafkaTopic and KafkaUser are imported")

    def imported(self) -> StrimziImport:
        """Return what was collected."""
        users: list[DeclaredUser] = []
        for user in self.users:
            declared = user_of(user, list(self.topics.get(user.stream, ())), self._note)
            if declared is not None and declared.username in {one.username for one in users}:
                raise CatalogueError(f"KafkaUser {user.name} stands twice: give it once")
            users += [declared] if declared is not None else []
        streams = tuple(
            DeclaredStream(name, topics=tuple(topics.values()))
            for name, topics in self.topics.items()
        )
        return StrimziImport(Topology(streams, tuple(users)), tuple(self.notes))

    def _add_topic(self, name: str, resource: Any) -> None:
        metadata = resource["metadata"]
        if str(_map(metadata, "annotations").get(MANAGED_ANNOTATION)).lower() == "false":
            self._note(f"KafkaTopic {name}", f"its annotation {MANAGED_ANNOTATION} is false")
            return
        topic = topic_of(name, _spec(resource), self._note)
        topics = self.topics.setdefault(self._stream_of(metadata), {})
        if topic.name in topics:
            raise CatalogueError(f"the topic {topic.name} stands twice: give it once")
        topics[topic.name] = topic

    def _stream_of(self, metadata: Any) -> str:
        label = _map(metadata, "labels").get(CLUSTER_LABEL)
        return self.stream or (label if isinstance(label, str) else STREAM_DEFAULT)

    def _note(self, what: str, reason: str) -> None:
        self.notes[Skipped(what, reason)] = None


def _spec(resource: Any) -> dict[str, Any]:
    return _map(resource, "spec")


def _map(values: Any, key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _plain(node: Node) -> Any:
    if isinstance(node, ListNode):
        return [_plain(each) for each in node.items]
    if isinstance(node, MapNode):
        return {key.text: _plain(value) for key, value in node.entries}
    if node.kind is ScalarKind.NOTHING:
        return None
    if node.kind is ScalarKind.SWITCH:
        return _SWITCHES.get(node.text, node.text)
    number = number_of(node)
    return node.text if number is None else number
