"""Topologies for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from viewstamp.api.users.v1 import users_pb2
from viewstamp.topology.layout import UINT64_MAX
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Grant,
    PruneScope,
    Topology,
    nested,
)

MIB = 1 << 20


def flags(message: Any) -> list[str]:
    """Return the permissions that a message has."""
    return [each.name for each in message.DESCRIPTOR.fields if each.message_type is None]


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a value, or None for what is not declared."""
    return st.none() | values


def distinct(items: st.SearchStrategy[Any], key: str, most: int = 3) -> Any:
    """Draw a tuple of items that differ in their names."""
    return st.lists(items, max_size=most, unique_by=lambda each: getattr(each, key)).map(tuple)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
)
GROUPS = st.builds(
    DeclaredGroup,
    NAMES,
    maybe(st.sampled_from(("uniform", "range"))),
    maybe(st.integers(6_000, 3_600_000)),
    maybe(st.just(0) | st.integers(60_000, 315_360_000_000)),
)


def topics(names: st.SearchStrategy[str], partitions_max: int) -> st.SearchStrategy[DeclaredTopic]:
    """Draw topics that the cluster would take."""
    return st.builds(
        DeclaredTopic,
        names,
        maybe(st.integers(0, partitions_max)),
        maybe(st.integers(0, UINT64_MAX)),
        maybe(st.just(0) | st.integers(1024 * MIB, UINT64_MAX)),
        maybe(st.sampled_from(("none", "gzip", "lz4", "zstd"))),
        maybe(st.integers(1, 255)),
        maybe(st.integers(2_048, 2_097_152).map(lambda count: count * 512)),
        maybe(st.booleans()),
        distinct(GROUPS, "name"),
    )


def users(
    names: st.SearchStrategy[str], paths: st.SearchStrategy[tuple[str, str]]
) -> st.SearchStrategy[DeclaredUser]:
    """Draw users with permissions everywhere and on some of the paths."""
    everywhere = st.sampled_from(flags(users_pb2.GlobalPermissions))
    on_stream = st.sampled_from(flags(users_pb2.StreamPermissions))
    on_topic = st.sampled_from(flags(users_pb2.TopicPermissions))
    grants = st.builds(Grant, st.just(""), st.just(""), everywhere) | paths.flatmap(
        lambda path: st.builds(Grant, *map(st.just, path), on_topic if path[1] else on_stream)
    )
    return st.builds(
        DeclaredUser,
        names,
        maybe(st.sampled_from(("active", "inactive"))),
        maybe(st.sets(grants, max_size=6).map(nested)),
    )


def topologies() -> st.SearchStrategy[Topology]:
    """Draw topologies with names of all kinds."""
    streams = st.builds(
        DeclaredStream,
        NAMES,
        maybe(st.booleans()),
        distinct(topics(NAMES, 1_000_000), "name"),
    )
    usernames = st.text("abc-_.é", min_size=3, max_size=20)
    scope = st.builds(PruneScope, st.just(("a*",)), st.just(("*b",)))
    return st.builds(
        Topology,
        distinct(streams, "name"),
        distinct(users(usernames, st.tuples(NAMES, NAMES)), "username"),
        maybe(scope),
    )
