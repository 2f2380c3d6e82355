"""Compares a topology with what was found: the plan of what has to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from viewstamp import limits
from viewstamp.quantities import size_text
from viewstamp.topology import layout
from viewstamp.topology.changes import (
    ChangeVerb,
    Declared,
    DeclaredKind,
    FieldChange,
    Found,
    Plan,
    PlannedChange,
    PlanRules,
)
from viewstamp.topology.field_changes import declared_of, field_changes, grant_changes
from viewstamp.topology.found import FoundStream, FoundTopic, FoundTopology, matches
from viewstamp.topology.model import (
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Topology,
)

# Names in a text about what is lost; of further ones only the number.
NAMES_SHOWN_MAX: Final = 10
# The order of changes. What one of them does to another entity may not come before a change of that
# entity, which expects what was found: other partitions change the groups of a topic, and a deleted
# stream or topic takes permissions of users along.
_ORDER: Final = (
    (ChangeVerb.CREATE, DeclaredKind.STREAM),
    (ChangeVerb.CREATE, DeclaredKind.TOPIC),
    (ChangeVerb.UPDATE, DeclaredKind.GROUP),
    (ChangeVerb.DELETE, DeclaredKind.GROUP),
    (ChangeVerb.UPDATE, DeclaredKind.TOPIC),
    (ChangeVerb.CREATE, DeclaredKind.GROUP),
    (ChangeVerb.CREATE, DeclaredKind.USER),
    (ChangeVerb.UPDATE, DeclaredKind.USER),
    (ChangeVerb.DELETE, DeclaredKind.USER),
    (ChangeVerb.DELETE, DeclaredKind.TOPIC),
    (ChangeVerb.DELETE, DeclaredKind.STREAM),
)
_RECORDS: Final = MappingProxyType(
    {
        DeclaredKind.STREAM: layout.STREAM,
        DeclaredKind.TOPIC: layout.TOPIC,
        DeclaredKind.GROUP: layout.GROUP,
        DeclaredKind.USER: layout.USER,
    }
)
DEFAULT_RULES: Final = PlanRules()
LOSSES_OF_USER: Final = ("the user's personal access tokens, sessions and memberships",)
LOSSES_OF_GROUP: Final = ("the group's offsets and members",)


def compare(topology: Topology, found: FoundTopology, rules: PlanRules = DEFAULT_RULES) -> Plan:
    """Return the plan that makes the cluster as declared; empty if it is so already."""
    comparison = _Comparison(topology, found, rules)
    for stream in topology.streams:
        comparison.compare_stream(stream)
    for user in topology.users:
        comparison.compare_user(user)
    if rules.prune:
        comparison.prune()
    for user in topology.users:
        comparison.check_grants(user)
    changes = sorted(comparison.changes, key=lambda each: _ORDER.index((each.verb, each.kind)))
    return Plan(found.revision, tuple(changes), tuple(comparison.problems))


@dataclass(slots=True)
class _Comparison:
    """Collects changes and problems."""

    topology: Topology
    found: FoundTopology
    rules: PlanRules
    changes: list[PlannedChange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def compare_stream(self, stream: DeclaredStream) -> None:
        """Compare a stream, the topics in it, and their groups."""
        found = self.found.streams.get(stream.name)
        self._compare(DeclaredKind.STREAM, (stream.name,), stream, found)
        topics = {} if found is None else found.topics
        for topic in stream.topics:
            self._compare_topic(stream, topic, topics.get(topic.name))
        if stream.prune and self.rules.prune:
            listed = {topic.name for topic in stream.topics}
            for name, each in topics.items():
                if name not in listed:
                    losses = _losses_of_topic(each)
                    self._delete(DeclaredKind.TOPIC, (stream.name, name), each, losses)

    def compare_user(self, user: DeclaredUser) -> None:
        """Compare a user."""
        found = self.found.users.get(user.username)
        old = None if found is None else found.user.permissions
        changed = tuple(grant_changes(old, user.permissions))
        self._compare(DeclaredKind.USER, (user.username,), user, found, changed)

    def prune(self) -> None:
        """Delete streams and users that the topology owns by a pattern and does not list."""
        scope = self.topology.prune
        if scope is None:
            return
        streams = {stream.name for stream in self.topology.streams}
        for name, stream in self.found.streams.items():
            if name not in streams and matches(name, scope.streams):
                self._delete(DeclaredKind.STREAM, (name,), stream, _losses_of_stream(stream))
        users = {user.username for user in self.topology.users} | {limits.ROOT_USERNAME}
        for name, user in self.found.users.items():
            if name not in users and matches(name, scope.users):
                self._delete(DeclaredKind.USER, (name,), user, LOSSES_OF_USER)

    def check_grants(self, user: DeclaredUser) -> None:
        """Complain of permissions on what neither exists nor is declared, or is to be deleted."""
        declared = {
            path
            for stream in self.topology.streams
            for path in [(stream.name, ""), *((stream.name, topic.name) for topic in stream.topics)]
        }
        deleted = {each.path for each in self.changes if each.verb is ChangeVerb.DELETE}
        grants = () if user.permissions is None else user.permissions.flat()
        for stream, topic in sorted({(one.stream, one.topic) for one in grants if one.stream}):
            place = f"user {user.username} has permissions on {stream}{topic and '/'}{topic}"
            if (stream,) in deleted or (stream, topic) in deleted:
                self.problems.append(f"{place}, which is to be deleted: take them away, or list it")
            elif (stream, topic) not in declared and not self.found.has(stream, topic):
                self.problems.append(
                    f"{place}, which neither exists nor is declared: declare it, or correct the "
                    "name"
                )

    def _compare_topic(
        self, stream: DeclaredStream, topic: DeclaredTopic, found: FoundTopic | None
    ) -> None:
        path = (stream.name, topic.name)
        self._check_sizes(path, topic, found)
        losses = () if found is None else tuple(self._partition_losses(path, topic, found))
        self._compare(DeclaredKind.TOPIC, path, topic, found, losses=losses)
        groups = {} if found is None else found.groups
        for group in topic.groups:
            group_path = (*path, group.name)
            self._compare(DeclaredKind.GROUP, group_path, group, groups.get(group.name))
        if self.rules.prune and (stream.prune or topic.prune):
            listed = {group.name for group in topic.groups}
            for name, each in groups.items():
                if name not in listed:
                    self._delete(DeclaredKind.GROUP, (*path, name), each, LOSSES_OF_GROUP)

    def _compare(
        self,
        kind: DeclaredKind,
        path: tuple[str, ...],
        declared: Declared,
        found: Found | None,
        more: Sequence[FieldChange] = (),
        losses: tuple[str, ...] = (),
    ) -> None:
        fields = (*field_changes(_RECORDS[kind], declared_of(found), declared), *more)
        verb = ChangeVerb.CREATE if found is None else ChangeVerb.UPDATE
        if fields or found is None:
            change = PlannedChange(verb, kind, path, fields, losses, declared, found)
            self.changes.append(change)

    def _delete(
        self, kind: DeclaredKind, path: tuple[str, ...], found: Found, losses: tuple[str, ...]
    ) -> None:
        change = PlannedChange(ChangeVerb.DELETE, kind, path, (), losses, None, found)
        self.changes.append(change)

    def _check_sizes(
        self, path: tuple[str, ...], topic: DeclaredTopic, found: FoundTopic | None
    ) -> None:
        """Complain of sizes that the cluster would refuse, with what would be right."""
        place = f"topic {'/'.join(path)}"
        fixed = None if found is None else found.topic.segment_size_bytes
        segment = fixed or topic.segment_size_bytes or limits.SEGMENT_SIZE_BYTES_MAX
        if topic.segment_size_bytes not in (None, segment):
            self.problems.append(
                f"{place}: segment_size is fixed at creation. The topic has {size_text(segment)}: "
                "declare that or nothing, or delete the topic first"
            )
        size = topic.max_topic_size_bytes
        if size and size < segment:
            self.problems.append(
                f"{place}: max_topic_size {size_text(size)} is less than its segment_size "
                f"{size_text(segment)}: declare at least that"
                + (", or a smaller segment_size" if found is None else "")
            )

    def _partition_losses(
        self, path: tuple[str, ...], topic: DeclaredTopic, found: FoundTopic
    ) -> Iterator[str]:
        """Yield what goes with partitions; complain unless that is allowed."""
        old, new = found.topic.partitions or 0, topic.partitions
        if new is None or new >= old:
            return
        if not self.rules.allow_partition_deletion:
            self.problems.append(
                f"topic {'/'.join(path)}: it has {_partitions(old)} and {new} are declared. "
                f"Declare {old} or more, or allow the deletion of partitions "
                "(--allow-partition-deletion)"
            )
        which = f"partition {new}" if new == old - 1 else f"partitions {new} to {old - 1}"
        yield f"the messages in {which}"
        if found.groups:
            yield f"the offsets in them of {_counted('group', list(found.groups), '')}"


def _losses_of_stream(stream: FoundStream) -> tuple[str, ...]:
    topics = [_counted("topic", list(stream.topics), "")] if stream.topics else []
    groups = [f"{topic}/{group}" for topic, each in stream.topics.items() for group in each.groups]
    return (*topics, *_losses_of_groups(groups), "every permission on the stream")


def _losses_of_topic(topic: FoundTopic) -> tuple[str, ...]:
    messages = f"the messages in {_partitions(topic.topic.partitions or 0)}"
    return (messages, *_losses_of_groups(list(topic.groups)), "every permission on the topic")


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _losses_of_groups(groups: Sequence[str]) -> tuple[str, ...]:
    return (_counted("group", groups, " with all offsets"),) if groups else ()


def _counted(noun: str, names: Sequence[str], more: str) -> str:
    """Return how many there are, and their names, as far as they fit into a line."""
    rest = len(names) - NAMES_SHOWN_MAX
    shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}{more}: {shown}"
