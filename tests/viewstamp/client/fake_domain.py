"""Just enough of the domains for tests of the client and the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from testkit.api_methods import methods_by_request
from tests.viewstamp.client.fake_members import ChangingMembers
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.streams.v1 import streams_pb2, streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import MEMBER_TIMEOUT_US
from viewstamp.routing import Method

PAGE_SIZE = 100
# What was reported of partitions of any topic: where their data begins and ends.
WATERMARKS = {0: (10, 100), 1: (0, 50)}
# By when the first half of each partition was written: 2026-11-28T10:00:00Z.
HALF_WRITTEN_BY = 1_795_860_000_000_000


class Domain:
    """Entities by name. `call` answers any method by its name; unknown ones answer empty."""

    def __init__(self) -> None:
        self.next_id = 1
        self.streams: dict[str, streams_pb2.Stream] = {}
        self.topics: dict[str, streams_pb2.Topic] = {}
        self.groups: dict[str, consumer_groups_pb2.ConsumerGroup] = {}
        active = users_pb2.USER_STATUS_ACTIVE
        self.offsets: dict[int, int] = {}  # of the only group that has some
        self.users = {"root": users_pb2.User(id=0, username="root", status=active)}
        self.tokens: dict[str, users_pb2.PersonalAccessToken] = {}
        self.requests: list[Any] = []
        self.description = ""
        self.members = ChangingMembers()
        self.feature_level = 1

    def call(self, method: Method, encoded: bytes) -> tuple[Message, bytes]:
        """Return response (without header) and secret suffix. Raises Refusal."""
        request = method.request.FromString(encoded)
        self.requests.append(request)
        handler: Callable[[Any], Any] | None = getattr(self, "_" + method.name, None)
        answer = handler(request) if handler is not None else method.response()
        return answer if isinstance(answer, tuple) else (answer, b"")

    def raise_feature_level(self, request: cluster_pb2.RaiseFeatureLevelRequest) -> Message:
        """Raise the level; this one is served outside of streams."""
        assert (request.level, request.expected) == (self.feature_level + 1, self.feature_level)
        if not request.validate_only:
            self.feature_level = request.level
        return cluster_pb2.RaiseFeatureLevelResponse()

    def _take_id(self) -> int:
        taken = self.next_id
        self.next_id += 1
        return taken

    def _CreateStream(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        if request.name in self.streams:
            raise Refusal(
                Reason.REASON_STREAM_EXISTS,
                f"a stream named {request.name!r} exists: choose another name",
                stream=request.name,
            )
        stream = streams_pb2.Stream(id=self._take_id(), name=request.name)
        if not request.validate_only:
            self.streams[request.name] = stream
        return streams_service_pb2.CreateStreamResponse(stream_id=stream.id)

    def _DeleteStream(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        stream = self._stream(request.stream)
        if not request.validate_only:
            del self.streams[stream.name]
        return streams_service_pb2.DeleteStreamResponse()

    def _GetStream(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        return streams_service_pb2.GetStreamResponse(stream=self._stream(request.stream))

    def _ListStreams(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        page, token = _page(list(self.streams.values()), request)
        return streams_service_pb2.ListStreamsResponse(streams=page, next_page_token=token)

    def _stream(self, named: common_pb2.Identifier) -> streams_pb2.Stream:
        for stream in self.streams.values():
            if named in (_by_id(stream.id), common_pb2.Identifier(name=stream.name)):
                return stream
        raise Refusal(Reason.REASON_STREAM_NOT_FOUND, f"no stream {named.name or named.id}")

    def _CreateTopic(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        topic = streams_pb2.Topic(
            id=self._take_id(),
            stream_id=self._stream(request.stream).id,
            name=request.name,
            partitions_count=request.partitions_count,
            options=request.options,
        )
        self.topics[request.name] = topic
        return streams_service_pb2.CreateTopicResponse(topic_id=topic.id)

    def _ListTopics(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        page, token = _page(list(self.topics.values()), request)
        return streams_service_pb2.ListTopicsResponse(topics=page, next_page_token=token)

    def _GetTopic(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        return streams_service_pb2.GetTopicResponse(topic=self.topics[request.topic.name])

    def _CreatePartitions(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        topic = self.topics[request.topic.name]
        topic.partitions_count += request.partitions_count
        return streams_service_pb2.CreatePartitionsResponse(partitions_count=topic.partitions_count)

    def _CreateConsumerGroup(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        group = consumer_groups_pb2.ConsumerGroup(id=self._take_id(), name=request.name)
        group.assignor = request.assignor or consumer_groups_pb2.ASSIGNOR_UNIFORM
        group.member_timeout_ms = request.member_timeout_ms or MEMBER_TIMEOUT_US // 1_000
        group.offsets_retention_ms = request.offsets_retention_ms
        self.groups[request.name] = group
        return groups_service_pb2.CreateConsumerGroupResponse(group_id=group.id)

    def _UpdateConsumerGroup(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        group = self.groups[request.group.name]
        if not request.validate_only:
            group.assignor = request.assignor or group.assignor
            if request.HasField("member_timeout_ms"):
                group.member_timeout_ms = request.member_timeout_ms
            if request.HasField("offsets_retention_ms"):
                group.offsets_retention_ms = request.offsets_retention_ms
        return groups_service_pb2.UpdateConsumerGroupResponse()

    def _ListConsumerGroups(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        page, token = _page(list(self.groups.values()), request)
        return groups_service_pb2.ListConsumerGroupsResponse(groups=page, next_page_token=token)

    def _GetConsumerGroup(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        return groups_service_pb2.GetConsumerGroupResponse(group=self.groups[request.group.name])

    def _ListWatermarks(self, _: Any) -> Any:  # noqa: N802 - named as the RPC
        known = [
            streams_pb2.Watermarks(partition=partition, start_offset=start, end_offset=end)
            for partition, (start, end) in WATERMARKS.items()
        ]
        return streams_service_pb2.ListWatermarksResponse(watermarks=known)

    def _FindOffsets(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        found = [_found(*each, request.time_us) for each in WATERMARKS.items()]
        return groups_service_pb2.FindOffsetsResponse(offsets=found)

    def _FetchOffsets(self, _: Any) -> Any:  # noqa: N802 - named as the RPC
        kept = [_committed(*each) for each in sorted(self.offsets.items())]
        return groups_service_pb2.FetchOffsetsResponse(offsets=kept)

    def _ResetOffsets(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        given = {each.partition: each.offset for each in request.offsets}
        for partition, offset in given.items():
            start, end = WATERMARKS.get(partition, (offset, offset))
            if not (start <= offset <= end or request.allow_out_of_range):
                raise Refusal(Reason.REASON_OFFSET_OUT_OF_RANGE, f"{offset} lies outside")
        for partition in request.partitions or WATERMARKS:
            if request.to == groups_service_pb2.OFFSET_RESET_TIME:
                given[partition] = _found(partition, WATERMARKS[partition], request.time_us).offset
            elif request.to:
                given[partition] = WATERMARKS[partition][request.to - 1]
        if not request.validate_only:
            self.offsets |= given
        return groups_service_pb2.ResetOffsetsResponse()

    def _DeleteOffsets(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        for partition in request.partitions or list(self.offsets):
            if not request.validate_only:
                del self.offsets[partition]
        return groups_service_pb2.DeleteOffsetsResponse()

    def _CreateUser(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        user = users_pb2.User(
            id=self._take_id(),
            username=request.username,
            status=request.status or users_pb2.USER_STATUS_ACTIVE,
            permissions=request.permissions,
        )
        self.users[request.username] = user
        return users_service_pb2.CreateUserResponse(user_id=user.id)

    def _GetUser(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        if request.user.name not in self.users:
            raise Refusal(Reason.REASON_USER_NOT_FOUND, f"no user {request.user.name!r}")
        return users_service_pb2.GetUserResponse(user=self.users[request.user.name])

    def _ListUsers(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        page, token = _page(list(self.users.values()), request)
        return users_service_pb2.ListUsersResponse(users=page, next_page_token=token)

    def _WhoAmI(self, _: Any) -> Any:  # noqa: N802 - named as the RPC
        return users_service_pb2.WhoAmIResponse(user=self.users["root"])

    def _CreatePersonalAccessToken(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        self.tokens[request.name] = users_pb2.PersonalAccessToken(
            name=request.name, expires_at=request.expires_at
        )
        secret = users_service_pb2.CreatePersonalAccessTokenResponse(
            token=f"secret of {request.name}"
        )
        return users_service_pb2.CreatePersonalAccessTokenResponse(), secret.SerializeToString()

    def _ListPersonalAccessTokens(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        page, token = _page(list(self.tokens.values()), request)
        return users_service_pb2.ListPersonalAccessTokensResponse(
            tokens=page, next_page_token=token
        )

    def _EndSession(self, _: Any) -> Any:  # noqa: N802 - named as the RPC
        return sessions_pb2.EndSessionResponse()

    def _Transact(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        by_code = {method.code: method for method in methods_by_request().values()}
        results = [
            self.call(by_code[part.code], part.request)[0].SerializeToString()
            for part in request.parts
        ]
        return submit_pb2.TransactResponse(results=results)

    def _GetStatus(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        digest = "ab" * 32 if request.include_digests else ""
        service = cluster_pb2.ServiceStatus(
            stage=routing_pb2.STAGE_STREAMS, connected=True, settled_revision=7, state_digest=digest
        )
        return cluster_pb2.GetStatusResponse(
            cluster="00ff",
            replicas=self.members.replicas.values(),
            epoch=self.members.epoch,
            services=[service],
            sessions=1,
            feature_level=self.feature_level,
            description=self.description,
            description_revision=7 if self.description else 0,
        )

    def _SetClusterDescription(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        if not request.validate_only:
            self.description = request.description
        return cluster_pb2.SetClusterDescriptionResponse()


def _by_id(entity_id: int) -> common_pb2.Identifier:
    return common_pb2.Identifier(id=entity_id)


def _committed(partition: int, offset: int) -> consumer_groups_pb2.CommittedOffset:
    kept = consumer_groups_pb2.CommittedOffset(partition=partition, offset=offset)
    if partition in WATERMARKS:
        kept.start_offset, kept.end_offset = WATERMARKS[partition]
        kept.lag = max(0, kept.end_offset - offset)
    return kept


def _found(partition: int, known: tuple[int, int], time_us: int) -> consumer_groups_pb2.FoundOffset:
    """Return where to read on: in the middle, if half of it was written before the time."""
    start, end = known
    is_later = time_us > HALF_WRITTEN_BY
    return consumer_groups_pb2.FoundOffset(
        partition=partition,
        offset=(start + end) // 2 if is_later else start,
        written_by=HALF_WRITTEN_BY if is_later else 0,
        start_offset=start,
        end_offset=end,
    )


def _page(entities: list[Any], request: Any) -> tuple[list[Any], str]:
    start = int(request.page_token or 0)
    end = start + (request.page_size or PAGE_SIZE)
    return entities[start:end], str(end) if end < len(entities) else ""
