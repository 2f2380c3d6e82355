"""Watches of a real replica through the plain generated stub."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tests.processes.callers import Caller, Refused, refused
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroup, Member
from viewstamp.api.streams.v1.streams_pb2 import Stream, Topic
from viewstamp.api.users.v1.users_pb2 import PersonalAccessToken, User
from viewstamp.api.watch.v1 import watch_service_pb2 as watch
from viewstamp.api.watch.v1.watch_service_pb2_grpc import WatchServiceStub

WATCH_TIMEOUT_S: Final = 120
CREATED: Final[int] = watch.CHANGE_KIND_CREATED
UPDATED: Final[int] = watch.CHANGE_KIND_UPDATED
DELETED: Final[int] = watch.CHANGE_KIND_DELETED
ENTITIES: Final[dict[str, Any]] = {
    message.DESCRIPTOR.full_name: message
    for message in (User, PersonalAccessToken, Stream, Topic, ConsumerGroup, Member)
}


class Watching:
    """An open watch; messages are taken when a test asks for them."""

    def __init__(self, caller: Caller, **fields: Any) -> None:
        self.messages: list[watch.WatchResponse] = []
        self._call: Any = WatchServiceStub(caller.channel).Watch(
            watch.WatchRequest(**fields), metadata=caller.metadata(), timeout=WATCH_TIMEOUT_S
        )

    def opened(self) -> Watching:
        """Wait for the first message. Raises grpc.RpcError."""
        self.messages.append(next(self._call))
        assert not self.messages[0].changes
        return self

    def until(self, revision: int) -> list[watch.Change]:
        """Wait until the feed is complete up to a revision; return all changes so far."""
        while not self.messages or self.messages[-1].header.revision < revision:
            self.messages.append(next(self._call))
        return self.changes

    def refused(self) -> Refused:
        """Wait for the end of the watch; return why it has ended."""
        with refused() as failure:
            self.messages.extend(self._call)
        return failure.it

    def cancel(self) -> None:
        """Leave."""
        self._call.cancel()

    @property
    def changes(self) -> list[watch.Change]:
        """All changes so far."""
        return [change for message in self.messages for change in message.changes]

    @property
    def complete_revision(self) -> int:
        """How far the feed was said to be complete."""
        return self.messages[-1].header.revision

    @property
    def told(self) -> list[tuple[int, int, str]]:
        """All changes so far, in short."""
        return in_short(self.changes)


def short_type(change: watch.Change) -> str:
    """Return the name of the type of a change's entity."""
    return change.entity_type.rpartition(".")[2]


def in_short(changes: Iterable[watch.Change]) -> list[tuple[int, int, str]]:
    """Return the revision, the kind and the type of changes."""
    return [(each.revision, each.kind, short_type(each)) for each in changes]


def entity_of(change: watch.Change) -> Any:
    """Return the entity of a change."""
    return ENTITIES[change.entity_type].FromString(change.entity)


def folded(changes: Iterable[watch.Change]) -> dict[tuple[str, bytes], Any]:
    """Return the entities that are left when changes from the first revision on are applied."""
    left: dict[tuple[str, bytes], Any] = {}
    for each in changes:
        key = short_type(each), each.key
        assert (key in left) is (each.kind != CREATED), each
        if each.kind == DELETED:
            del left[key]
        else:
            left[key] = entity_of(each)
    return left
