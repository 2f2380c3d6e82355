"""The most expensive request of each method, on states as large as is built in seconds.

A command that has `validate_only` sets it: it costs what the command costs and changes nothing, so
that a whole request of them is as expensive as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import Message

from benchmarks.limit_drivers import CLOCK_US, Driver
from services.consumer_groups.domain import DOMAIN as GROUPS
from services.streams.domain import DOMAIN as STREAMS
from services.users.domain import build_domain
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import Identifier, PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.limits import NAME_BYTES_MAX, PAGE_SIZE_MAX, TOKENS_PER_USER_MAX
from viewstamp.passwords import hash_password

FULL: Final = "full"  # a stream of as many topics as it may hold
ROOMY: Final = "roomy"
TORN: Final = "torn"  # a topic whose partitions came in many runs
TORN_RUNS: Final = 4_000
WIDE: Final = "wide"  # a topic of as many partitions as it may have, and a group of it
LISTED: Final = 2_000
GRANTED_STREAMS: Final = 8_000  # in one command, whose bytes do not allow many more
GRANTEES: Final = 2_000
GROUP_PARTITIONS: Final = 100_000
MEMBERS: Final = 500
PASSWORD: Final = "a password"
# One partition of each row of offsets; partitions that are in as many rows as possible; and as many
# as a page shows.
ONE_OF_EACH_ROW: Final = range(
    0, limits.PARTITIONS_PER_TOPIC_MAX, limits.PARTITIONS_PER_OFFSETS_ROW
)
FAR_APART: Final = range(
    0,
    limits.PARTITIONS_PER_TOPIC_MAX,
    limits.PARTITIONS_PER_TOPIC_MAX // limits.OFFSETS_PER_REQUEST_MAX + 1,
)
ON_A_PAGE: Final = range(limits.OFFSETS_PAGE_MAX)


@dataclass(frozen=True, slots=True)
class Case:
    """One request of a method, the `number`th of its span, and how it is sent."""

    driver: Driver
    request: Callable[[int], Message]
    how: Mapping[str, Any] = field(default_factory=dict)

    def requests(self, count: int) -> list[Message]:
        """Return a span of requests, with `validate_only` set where a request has it."""
        made = [self.request(number) for number in range(count)]
        for request in made:
            if "validate_only" in request.DESCRIPTOR.fields_by_name:
                setattr(request, "validate_only", True)  # noqa: B010
        return made


def all_cases() -> dict[str, Case]:
    """Return the case of each method that a machine of a domain serves, by the method's name."""
    return {**_streams(), **_users(), **_groups()}


def by(name: str) -> Identifier:
    """Return the identifier that holds a name."""
    return Identifier(name=name)


def long_name(number: int) -> str:
    """Return a name of the greatest length."""
    return f"{number:08}".ljust(NAME_BYTES_MAX, "x")


# --- Streams -------------------------------------------------------------------------------------


def _streams() -> dict[str, Case]:
    driver = Driver(STREAMS, streams_pb2.DESCRIPTOR)
    driver.effect(grants_changed=effects_pb2.GrantsChanged(user_id=0))
    for name in (FULL, ROOMY):
        driver.do(streams_pb2.CreateStreamRequest(name=name))
    for number in range(LISTED):
        driver.do(streams_pb2.CreateStreamRequest(name=long_name(number)))
    for number in range(limits.TOPICS_PER_STREAM_MAX):
        driver.do(_topic(FULL, long_name(number)))
    driver.do(_topic(ROOMY, TORN))
    for _ in range(TORN_RUNS):
        driver.do(_of_topic(streams_pb2.CreatePartitionsRequest, partitions_count=1))
    _grant(driver)
    of_stream = {
        name: fixed(driver, getattr(streams_pb2, f"{name}Request")(stream=by(FULL)))
        for name in ("DeleteStream", "PurgeStream", "GetStream")
    }
    of_topic = {
        name: fixed(driver, _of_topic(getattr(streams_pb2, f"{name}Request")))
        for name in ("PurgeTopic", "GetTopic")
    }
    changes = {
        f"{verb}Partitions": fixed(
            driver,
            _of_topic(
                getattr(streams_pb2, f"{verb}PartitionsRequest"),
                partitions_count=limits.PARTITIONS_PER_REQUEST_MAX,
            ),
        )
        for verb in ("Create", "Delete")
    }
    return {
        **of_stream,
        **of_topic,
        **changes,
        **_watermarks(driver),
        "CreateStream": Case(
            driver, lambda number: streams_pb2.CreateStreamRequest(name=long_name(LISTED + number))
        ),
        "UpdateStream": Case(
            driver,
            lambda number: streams_pb2.UpdateStreamRequest(
                stream=by(FULL), name=long_name(LISTED + number)
            ),
        ),
        "CreateTopic": Case(driver, lambda number: _topic(ROOMY, long_name(number))),
        "UpdateTopic": Case(
            driver,
            lambda number: _of_topic(streams_pb2.UpdateTopicRequest, name=long_name(number)),
        ),
        "ListStreams": fixed(driver, streams_pb2.ListStreamsRequest(page_size=PAGE_SIZE_MAX)),
        "ListTopics": fixed(
            driver, streams_pb2.ListTopicsRequest(stream=by(FULL), page_size=PAGE_SIZE_MAX)
        ),
    }


def _watermarks(driver: Driver) -> dict[str, Case]:
    """Return the cases of a topic of which everything is known."""
    topic: dict[str, Any] = {"stream": by(ROOMY), "topic": by(WIDE)}
    driver.do(_topic(ROOMY, WIDE))
    more = streams_pb2.CreatePartitionsRequest(
        **topic, partitions_count=limits.PARTITIONS_PER_REQUEST_MAX
    )
    for _ in range(1, limits.PARTITIONS_PER_TOPIC_MAX // limits.PARTITIONS_PER_REQUEST_MAX):
        driver.do(more)
    for partitions in (ONE_OF_EACH_ROW, ON_A_PAGE):
        told = _offsets(partitions, 1)
        driver.do(streams_pb2.ReportPartitionEndsRequest(**topic, end_offsets=told))
    higher = _offsets(FAR_APART, 2)
    return {
        "DeleteTopic": fixed(driver, streams_pb2.DeleteTopicRequest(**topic)),
        "ReportPartitionEnds": fixed(
            driver, streams_pb2.ReportPartitionEndsRequest(**topic, end_offsets=higher)
        ),
        "TruncatePartitions": fixed(
            driver, streams_pb2.TruncatePartitionsRequest(**topic, start_offsets=higher)
        ),
        "ListWatermarks": fixed(driver, streams_pb2.ListWatermarksRequest(**topic)),
    }


def _offsets(partitions: Iterable[int], offset: int) -> list[PartitionOffset]:
    return [PartitionOffset(partition=partition, offset=offset) for partition in partitions]


def _topic(stream: str, name: str) -> streams_pb2.CreateTopicRequest:
    return streams_pb2.CreateTopicRequest(
        stream=by(stream), name=name, partitions_count=limits.PARTITIONS_PER_REQUEST_MAX
    )


def _of_topic(request: Callable[..., Message], **fields: Any) -> Message:
    return request(stream=by(ROOMY), topic=by(TORN), **fields)


def _grant(driver: Driver) -> None:
    """Give many users permissions on the full stream, which a deletion of the stream deletes."""
    grant = users_pb2.StreamPermissions(stream=Identifier(id=1), read_stream=True)
    permissions = users_pb2.Permissions(streams=[grant])
    for user in range(1, GRANTEES + 1):
        driver.effect(
            grants_changed=effects_pb2.GrantsChanged(user_id=user, permissions=permissions)
        )


# --- Users ---------------------------------------------------------------------------------------


def _users() -> dict[str, Case]:
    domain = build_domain(bytes(limits.CLUSTER_KEY_BYTES), lambda: CLOCK_US)
    domain.opened(bytes(limits.CLUSTER_ID_BYTES))
    driver = Driver(domain, users_service_pb2.DESCRIPTOR)
    hashed = hash_password(PASSWORD)
    found = users_service_pb2.FoundRequest(root_password_hash=hashed)
    driver.do(found, user=limits.SYSTEM_USER_ID)
    context, permissions = _grants()
    for number in range(LISTED):
        driver.do(_user(username(number), hashed), context=effects_pb2.GrantsContext())
    driver.do(_user("granted", hashed, permissions), context=context)
    for number in range(TOKENS_PER_USER_MAX - 1):
        driver.do(_token(number))
    of_granted = {
        name: fixed(driver, getattr(users_service_pb2, f"{name}Request")(user=by("granted")))
        for name in ("DeleteUser", "GetUser", "EndUserSessions")
    }
    password = users_service_pb2.ChangePasswordRequest(user=by("granted"), new_password_hash=hashed)
    replaced = users_service_pb2.UpdatePermissionsRequest(
        user=by("granted"), permissions=permissions
    )
    expired = users_service_pb2.ExpirePersonalAccessTokenRequest(
        user_id=0, name="token-1", created_revision=1
    )
    return {
        **of_granted,
        "Found": fixed(driver, found, user=limits.SYSTEM_USER_ID),
        "CreateUser": Case(
            driver,
            lambda number: _user(username(LISTED + number), hashed, permissions),
            {"context": context},
        ),
        "UpdateUser": Case(
            driver,
            lambda number: users_service_pb2.UpdateUserRequest(
                user=by("granted"), username=username(LISTED + number)
            ),
        ),
        "ChangePassword": fixed(driver, password),
        "UpdatePermissions": fixed(driver, replaced, context=context),
        "CreatePersonalAccessToken": Case(driver, lambda number: _token(LISTED + number)),
        "DeletePersonalAccessToken": fixed(
            driver, users_service_pb2.DeletePersonalAccessTokenRequest(name="token-1")
        ),
        "DeleteUserToken": fixed(
            driver,
            users_service_pb2.DeleteUserTokenRequest(user=by("root"), name="token-1"),
        ),
        "ExpirePersonalAccessToken": fixed(driver, expired, user=limits.SYSTEM_USER_ID),
        "Logout": fixed(driver, users_service_pb2.LogoutRequest()),
        "Login": fixed(driver, users_service_pb2.LoginRequest(username="root", password=PASSWORD)),
        "LoginWithToken": fixed(driver, users_service_pb2.LoginWithTokenRequest(token="x" * 60)),
        "ListUsers": fixed(driver, users_service_pb2.ListUsersRequest(page_size=PAGE_SIZE_MAX)),
        "ListPersonalAccessTokens": fixed(
            driver, users_service_pb2.ListPersonalAccessTokensRequest(page_size=PAGE_SIZE_MAX)
        ),
        "WhoAmI": fixed(driver, users_service_pb2.WhoAmIRequest()),
    }


def username(number: int) -> str:
    """Return a username of the greatest length."""
    return f"{number:08}".ljust(limits.USERNAME_BYTES_MAX, "x")


def _user(
    name: str, hashed: str, permissions: users_pb2.Permissions | None = None
) -> users_service_pb2.CreateUserRequest:
    return users_service_pb2.CreateUserRequest(
        username=name, password_hash=hashed, permissions=permissions
    )


def _token(number: int) -> users_service_pb2.CreatePersonalAccessTokenRequest:
    return users_service_pb2.CreatePersonalAccessTokenRequest(
        name=f"token-{number}", token_hash=number.to_bytes(32, "big")
    )


def _grants() -> tuple[effects_pb2.GrantsContext, users_pb2.Permissions]:
    context, permissions = effects_pb2.GrantsContext(), users_pb2.Permissions()
    for number in range(1, GRANTED_STREAMS + 1):
        permissions.streams.add(stream=Identifier(id=number), read_stream=True)
        context.streams.add(stream_id=number)
    return context, permissions


# --- Consumer groups -----------------------------------------------------------------------------


def _groups() -> dict[str, Case]:
    driver = Driver(GROUPS, groups_pb2.DESCRIPTOR)
    topic = effects_pb2.TopicContext(
        stream_id=1, topic_id=1, partitions_count=GROUP_PARTITIONS, created_revision=1
    )
    for name in ("alone", "crowd"):
        driver.do(groups_pb2.CreateConsumerGroupRequest(name=name), context=topic)
    for number in range(LISTED):
        driver.do(groups_pb2.CreateConsumerGroupRequest(name=long_name(number)), context=topic)
    _join(driver, topic, "alone", 1)
    for session in range(2, 2 + MEMBERS):
        _join(driver, topic, "crowd", session)
    _assign(driver)
    epoch = driver.machine.state.members.rows[1, 1].member_epoch
    assigned = groups_pb2.AssignRequest(group_id=2, group_epoch=1)
    heartbeat = groups_pb2.HeartbeatConsumerGroupRequest(group=by("alone"), member_epoch=epoch)
    alive = groups_pb2.KeepAliveConsumerGroupRequest(group=by("alone"), member_epoch=epoch)
    expired = groups_pb2.ExpireMemberRequest(
        group_id=2,
        session_id=2,
        joined_revision=driver.machine.state.members.rows[2, 2].joined_revision,
    )
    revoked = groups_pb2.CompleteRevocationRequest(group_id=2, session_id=2, revocation_deadline=1)
    with_topic: dict[str, Any] = {"context": topic, "session": 1}
    own = {
        name: fixed(driver, getattr(groups_pb2, f"{name}Request")(group=by("alone")), **with_topic)
        for name in ("LeaveConsumerGroup", "SyncConsumerGroup")
    }
    crowd = {
        name: fixed(driver, getattr(groups_pb2, f"{name}Request")(group=by("crowd")), **with_topic)
        for name in ("GetConsumerGroup", "UpdateConsumerGroup")
    }
    joined = groups_pb2.JoinConsumerGroupRequest(
        group=by("crowd"), instance_id=long_name(1), rack=long_name(2)
    )
    return {
        **own,
        **crowd,
        **_group_offsets(driver),
        "CreateConsumerGroup": Case(
            driver,
            lambda number: groups_pb2.CreateConsumerGroupRequest(name=long_name(LISTED + number)),
            with_topic,
        ),
        "JoinConsumerGroup": fixed(driver, joined, **with_topic),
        "HeartbeatConsumerGroup": fixed(driver, heartbeat, **with_topic),
        "KeepAliveConsumerGroup": fixed(driver, alive, **with_topic),
        "ListAllConsumerGroups": fixed(
            driver,
            groups_pb2.ListAllConsumerGroupsRequest(page_size=PAGE_SIZE_MAX),
            context=effects_pb2.TopicContext(),
        ),
        "ListConsumerGroups": fixed(
            driver, groups_pb2.ListConsumerGroupsRequest(page_size=PAGE_SIZE_MAX), **with_topic
        ),
        "Assign": fixed(driver, assigned, user=limits.SYSTEM_USER_ID),
        "CompleteRevocation": fixed(driver, revoked, user=limits.SYSTEM_USER_ID),
        "ExpireMember": fixed(driver, expired, user=limits.SYSTEM_USER_ID),
    }


def _group_offsets(driver: Driver) -> dict[str, Case]:
    """Return the cases of a group of a wide topic, with an offset and a mark in each row."""
    topic = effects_pb2.TopicContext(
        stream_id=1,
        topic_id=2,
        partitions_count=limits.PARTITIONS_PER_TOPIC_MAX,
        created_revision=1,
    )
    shortest_ms = limits.OFFSETS_RETENTION_MIN_US // 1_000
    created = groups_pb2.CreateConsumerGroupRequest(name=WIDE, offsets_retention_ms=shortest_ms)
    driver.do(created, context=topic)
    group = by(WIDE)
    for partitions in (ONE_OF_EACH_ROW, ON_A_PAGE):
        committed = groups_pb2.CommitOffsetsRequest(group=group, offsets=_offsets(partitions, 1))
        driver.do(committed, context=topic)
        reported = effects_pb2.OffsetsReported(
            stream_id=1, topic_id=2, offsets=_offsets(partitions, 1), written_by=1
        )
        driver.effect(offsets_reported=reported)
    since: dict[str, Any] = {"to": groups_pb2.OFFSET_RESET_TIME, "time_us": 2}
    requests = (
        groups_pb2.CommitOffsetsRequest(group=group, offsets=_offsets(FAR_APART, 2)),
        groups_pb2.ResetOffsetsRequest(group=group, **since),
        groups_pb2.DeleteOffsetsRequest(group=group),
        groups_pb2.FetchOffsetsRequest(group=group),
        groups_pb2.FindOffsetsRequest(time_us=since["time_us"]),
        groups_pb2.DeleteConsumerGroupRequest(group=group),
    )
    groups = driver.machine.state.groups
    unused = next(group for group in groups.rows.values() if group.name == WIDE)
    unused = unused._replace(idle_since=1, expiry_due=1)  # long ago
    groups.put(unused.id, unused)
    expired = groups_pb2.ExpireOffsetsRequest(group_id=unused.id, expiry_due=unused.expiry_due)
    return {
        **{
            type(request).__name__.removesuffix("Request"): fixed(driver, request, context=topic)
            for request in requests
        },
        "ExpireOffsets": fixed(driver, expired, user=limits.SYSTEM_USER_ID),
    }


def _join(driver: Driver, topic: Message, group: str, session: int) -> None:
    request = groups_pb2.JoinConsumerGroupRequest(group=by(group))
    driver.do(request, context=topic, session=session)


def _assign(driver: Driver) -> None:
    """Carry out the newest assignment that was proposed for each group."""
    code = driver.methods["Assign"].code
    newest: dict[int, groups_pb2.AssignRequest] = {}
    for proposal in driver.proposals:
        if proposal.code == code:
            request = groups_pb2.AssignRequest.FromString(proposal.request)
            newest[request.group_id] = request
    for request in newest.values():
        driver.do(request, user=limits.SYSTEM_USER_ID)


def fixed(driver: Driver, request: Message, **how: Any) -> Case:
    """Return the case of a request that is repeated unchanged."""

    def same(_: int) -> Message:
        copy = type(request)()
        copy.CopyFrom(request)
        return copy

    return Case(driver, same, how)
