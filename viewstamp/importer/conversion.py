"""The plan of an import as a topology, for those who go on with a document. Pure."""

from __future__ import annotations

from viewstamp.importer.plan import ImportPlan
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Grant,
    Topology,
    nested,
)


def topology_of(plan: ImportPlan) -> Topology:
    """Return a topology that declares everything a plan wants to exist."""
    groups: dict[tuple[str, str], list[DeclaredGroup]] = {}
    for group in plan.groups:
        groups.setdefault((group.stream, group.topic), []).append(DeclaredGroup(group.group))
    topics: dict[str, list[DeclaredTopic]] = {stream: [] for stream in plan.streams}
    for key in plan.topics:
        declared = DeclaredTopic(key.topic, groups=tuple(groups.get(key, ())))
        topics[key.stream].append(declared)
    users = (
        DeclaredUser(name, permissions=nested(Grant(*key, "send_messages") for key in keys))
        for name, keys in plan.senders.items()
    )
    streams = (DeclaredStream(name, topics=tuple(each)) for name, each in topics.items())
    return Topology(tuple(streams), tuple(users))
