"""What one watch wants of the feed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coordinator.gateway.followed_keys import PLACES, FollowedKey, keys_of_watch
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.errors import Refusal

# How much of a caller's text a refusal repeats.
_NAMED_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True)
class WatchFilter:
    """The types of entities that are wanted, and the place that they are in; 0 for any."""

    entity_types: frozenset[str]
    stream_id: int = 0
    topic_id: int = 0
    group_id: int = 0

    def matches(self, change: watch_pb2.Change) -> bool:
        """Return whether a change is wanted."""
        return (
            change.entity_type in self.entity_types
            and self.stream_id in (0, change.stream_id)
            and self.topic_id in (0, change.topic_id)
            and self.group_id in (0, change.group_id)
        )

    def ends_with(self, change: watch_pb2.Change) -> bool:
        """Return whether a change removes the place that is watched, so that nothing follows."""
        if change.kind != watch_pb2.CHANGE_KIND_DELETED or not self.stream_id:
            return False
        removed = (change.stream_id, change.topic_id, change.group_id)
        wanted = (self.stream_id, self.topic_id, self.group_id)
        # A stream has neither topic nor group, a topic no group.
        return change.entity_type in PLACES and removed == _outermost(wanted, removed)

    def keys(self, user_id: int) -> tuple[FollowedKey, ...]:
        """Return the keys of the feed that concern it, for a watch of a user."""
        return keys_of_watch(user_id, self.stream_id, self.topic_id, self.group_id)


def _outermost(wanted: tuple[int, int, int], removed: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the part of what is wanted as deep as what was removed."""
    depth = sum(1 for id_ in removed if id_)
    return (*wanted[:depth], *(0 for _ in wanted[depth:]))


def check_shape(request: watch_pb2.WatchRequest) -> None:
    """Raise Refusal MALFORMED_REQUEST for filters that say nothing together."""
    inner = (("topic", "stream"), ("group", "topic"))
    for name, outer in inner:
        if request.HasField(name) and not request.HasField(outer):  # type: ignore[arg-type]
            raise _malformed(f"it names a {name} and no {outer}: name both")
    for name in ("stream", "topic", "group"):
        if request.HasField(name) and getattr(request, name).WhichOneof("kind") is None:  # type: ignore[arg-type]
            raise _malformed(f"its {name} has neither an id nor a name: give one")


def wanted_types(
    request: watch_pb2.WatchRequest, watched: Mapping[int, Collection[str]]
) -> frozenset[str]:
    """Return the types of entities that a request wants, of those `watched` by stage.

    Raises Refusal MALFORMED_REQUEST for a domain or a type that nobody can watch.
    """
    domains = frozenset(request.domains or watched)
    for domain in sorted(domains):
        if domain not in watched:
            raise _malformed(f"domain {domain} cannot be watched: choose of {_names(watched)}")
    if request.HasField("stream"):
        if request.domains and routing_pb2.STAGE_USERS in domains:
            raise _malformed("users are in no stream: watch them without a stream")
        domains -= {routing_pb2.STAGE_USERS}
    offered = {name for domain in domains for name in watched[domain]}
    for name in request.entity_types:
        if name not in offered:
            known = ", ".join(sorted(offered))
            raise _malformed(
                f"there is no type {name[:_NAMED_CHARACTERS_MAX]!r} in what is watched:"
                f" choose of {known}"
            )
    return frozenset(request.entity_types or offered)


def _names(stages: Collection[int]) -> str:
    return ", ".join(f"{stage} ({routing_pb2.Stage.Name(stage)})" for stage in sorted(stages))  # type: ignore[arg-type]


def _malformed(why: str) -> Refusal:
    return Refusal(Reason.REASON_MALFORMED_REQUEST, f"the watch is malformed: {why}")
