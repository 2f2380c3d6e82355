"""Reads the part of a cluster that a topology is about, so that all of it is of one revision.

The pages of a list are of several revisions if somebody changes the cluster meanwhile. Then all is
read again: what is the same both times was so at every revision in between, because each change of
an entity gives it another `modified_revision`, and no id is used twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client.identifiers import FacadeClient, identifier, topic_name
from viewstamp.errors import Refusal
from viewstamp.limits import PAGE_SIZE_MAX
from viewstamp.topology import wire
from viewstamp.topology.errors import ClusterUnsettled
from viewstamp.topology.found import (
    FoundGroup,
    FoundStream,
    FoundTopic,
    FoundTopology,
    FoundUser,
    ReadScope,
    matches,
)

T = TypeVar("T")
# Calls under way at a time; the client packs them into few messages.
READ_TOGETHER_MAX: Final = 64
# How often everything is read, until it is the same twice.
READINGS_MAX: Final = 8
_ABSENT: Final = frozenset(
    {
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
        Reason.REASON_USER_NOT_FOUND,
    }
)
# How a cluster answers that cannot list the groups of a whole stream yet.
_OF_A_LOWER_LEVEL: Final = frozenset(
    {Reason.REASON_FEATURE_LEVEL_REQUIRED, Reason.REASON_UNIMPLEMENTED}
)


async def read_found(client: FacadeClient, scope: ReadScope) -> FoundTopology:
    """Return what there is, at one revision. Raises Refusal, ClientError, ClusterUnsettled."""
    before = await _read_once(client, scope)
    for _ in range(READINGS_MAX):
        found, is_of_one_revision = before
        if is_of_one_revision:
            return found
        after = await _read_once(client, scope)
        if after[0] == found:
            return found
        before = after
    raise ClusterUnsettled(
        f"the cluster changed during each of {READINGS_MAX} readings: try again when fewer change "
        "what the topology is about"
    )


async def _read_once(client: FacadeClient, scope: ReadScope) -> tuple[FoundTopology, bool]:
    """Return what there is, and whether all of it is of one revision."""
    before = await _revision(client)
    found = await _Reader(client, scope).found()
    after = await _revision(client)
    return replace(found, revision=after), before == after


async def _revision(client: FacadeClient) -> int:
    """Return the revision now, by a call that everybody may make."""
    answer = await client.call(users_api.WhoAmIRequest())
    revision: int = answer.header.revision
    return revision


class _Reader:
    """One reading."""

    def __init__(self, client: FacadeClient, scope: ReadScope) -> None:
        self._client = client
        self._scope = scope
        # Names by id, of what was read: of streams, and of topics.
        self._stream_names: dict[int, str] = {}
        self._topic_names: dict[int, str] = {}

    async def found(self) -> FoundTopology:
        """Read streams, then the topics in them, then their groups; then users."""
        listed = await self._streams()
        self._stream_names = {stream.id: stream.name for stream in listed}
        read = await _each(listed, self._stream)
        streams = dict(zip(self._stream_names.values(), read, strict=True))
        users = await self._users()
        elsewhere = await self._elsewhere(streams, users)
        named = {
            user.username: FoundUser(
                user.modified_revision, wire.user_of(user, self._stream_names, self._topic_names)
            )
            for user in users
        }
        return FoundTopology(streams, named, elsewhere)

    async def _streams(self) -> list[Any]:
        if self._scope.stream_patterns:
            listed = await self._pages(streams_api.ListStreamsRequest(), "streams")
            return [stream for stream in listed if self._is_wanted(stream.name)]
        requests = [
            streams_api.GetStreamRequest(stream=identifier(name)) for name in self._scope.streams
        ]
        return [answer.stream for answer in await self._present(requests)]

    def _is_wanted(self, name: str) -> bool:
        return name in self._scope.streams or matches(name, self._scope.stream_patterns)

    async def _stream(self, stream: Any) -> FoundStream:
        request = streams_api.ListTopicsRequest(stream=identifier(stream.id))
        topics = await self._pages(request, "topics")
        self._topic_names.update((topic.id, topic.name) for topic in topics)
        groups = _by_topic(await self._groups(stream, topics))
        return FoundStream(
            stream.id,
            stream.modified_revision,
            {
                topic.name: FoundTopic(
                    topic.id,
                    topic.modified_revision,
                    wire.topic_of(topic),
                    groups.get(topic.id, {}),
                )
                for topic in topics
            },
        )

    async def _groups(self, stream: Any, topics: Sequence[Any]) -> list[Any]:
        """Return the groups of those topics of a stream that are wanted."""
        wanted = self._scope.streams.get(stream.name)
        if wanted is None and len(topics) > 1:
            request = groups_api.ListAllConsumerGroupsRequest(stream=identifier(stream.id))
            try:
                return await self._pages(request, "groups")
            except Refusal as refusal:
                if refusal.reason not in _OF_A_LOWER_LEVEL:
                    raise
        named = [topic for topic in topics if wanted is None or topic.name in wanted]
        listed = await _each(named, self._groups_of_topic)
        return [group for groups in listed for group in groups]

    async def _groups_of_topic(self, topic: Any) -> list[Any]:
        request = groups_api.ListConsumerGroupsRequest(
            stream=identifier(topic.stream_id), topic=identifier(topic.id)
        )
        return await self._pages(request, "groups")

    async def _users(self) -> list[Any]:
        asked: list[int | str] = [*sorted(self._scope.users)]
        if self._scope.user_patterns:
            listed = await self._pages(users_api.ListUsersRequest(), "users")
            asked = [
                user.id
                for user in listed
                if user.username in self._scope.users
                or matches(user.username, self._scope.user_patterns)
            ]
        requests = [users_api.GetUserRequest(user=identifier(each)) for each in asked]
        return [answer.user for answer in await self._present(requests)]

    async def _elsewhere(
        self, streams: Mapping[str, FoundStream], users: Iterable[Any]
    ) -> frozenset[tuple[str, str]]:
        """Look up what else permissions name: by id if users have it, by name if it is wanted."""
        held = {ids for user in users for ids in wire.granted_ids(user.permissions)}
        wanted = {pair for pair in self._scope.granted if pair[0] not in streams}
        keys: list[int | str] = sorted({stream for stream, _ in held} - {*self._stream_names})
        keys += sorted({stream for stream, _ in wanted})
        for stream in await self._existing_streams(keys):
            self._stream_names[stream.id] = stream.name
        pairs: list[tuple[int | str, int | str]] = sorted(
            ids for ids in held if ids[1] and ids[1] not in self._topic_names
        )
        pairs += sorted(pair for pair in wanted if pair[1])
        topics = await self._existing_topics(pairs)
        self._topic_names.update((topic.id, topic.name) for topic in topics)
        return frozenset(
            {(name, "") for name in self._stream_names.values() if name not in streams}
            | {(self._stream_names.get(topic.stream_id, ""), topic.name) for topic in topics}
        )

    async def _existing_streams(self, keys: Sequence[int | str]) -> list[Any]:
        requests = [streams_api.GetStreamRequest(stream=identifier(key)) for key in keys]
        return [answer.stream for answer in await self._present(requests)]

    async def _existing_topics(self, pairs: Sequence[tuple[int | str, int | str]]) -> list[Any]:
        requests = [streams_api.GetTopicRequest(**topic_name(*pair)) for pair in pairs]
        return [answer.topic for answer in await self._present(requests)]

    async def _present(self, requests: Sequence[Message]) -> list[Any]:
        """Return the answers about what exists."""
        answers = await _each(requests, self._unless_absent)
        return [answer for answer in answers if answer is not None]

    async def _unless_absent(self, request: Message) -> Any:
        try:
            return await self._client.call(request)
        except Refusal as refusal:
            if refusal.reason not in _ABSENT:
                raise
            return None

    async def _pages(self, request: Any, name: str) -> list[Any]:
        """Return the items of all pages; none if what they are in is gone meanwhile."""
        request.page_size = PAGE_SIZE_MAX
        found: list[Any] = []
        while (page := await self._unless_absent(request)) is not None:
            found += getattr(page, name)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token
        # It was there before, so this reading is not of one revision.
        return []


def _by_topic(groups: Iterable[Any]) -> dict[int, dict[str, FoundGroup]]:
    """Return groups by the id of their topic, then by their name."""
    found: dict[int, dict[str, FoundGroup]] = {}
    for group in groups:
        of_topic = found.setdefault(group.topic_id, {})
        of_topic[group.name] = FoundGroup(group.modified_revision, wire.group_of(group))
    return found


async def _each(items: Sequence[Any], asked: Callable[[Any], Awaitable[T]]) -> list[T]:
    """Return the answers for all items, a few at a time."""
    found: list[T] = []
    for start in range(0, len(items), READ_TOGETHER_MAX):
        together = items[start : start + READ_TOGETHER_MAX]
        found += await asyncio.gather(*map(asked, together))
    return found
