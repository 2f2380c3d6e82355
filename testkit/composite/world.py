"""What the plain model knows: dictionaries of everything that exists, and who may do what.

Written from the protos and the description of the system, sharing no code with the machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.limits import (
    FEATURE_LEVEL_BOUNDED,
    FEATURE_LEVEL_BROKERS,
    FEATURE_LEVEL_GUARDS,
    FEATURE_LEVEL_MAX,
    FEATURE_LEVEL_MEMBERS,
)

# Where a grant holds: () everywhere, (stream id,), or (stream id, topic id).
Scope = tuple[int, ...]
Grants = dict[Scope, set[str]]

GLOBAL_FLAGS: Final = (
    "manage_servers", "read_servers", "manage_users", "read_users", "manage_streams",
    "read_streams", "manage_topics", "read_topics", "poll_messages", "send_messages",
)  # fmt: skip
STREAM_FLAGS: Final = (
    "manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages",
    "send_messages",
)  # fmt: skip
TOPIC_FLAGS: Final = ("manage_topic", "read_topic", "poll_messages", "send_messages")
# A flag of a narrower level is the wider flag of the same meaning, there alone.
WIDER: Final = {
    "manage_stream": "manage_streams",
    "read_stream": "read_streams",
    "manage_topic": "manage_topics",
    "read_topic": "read_topics",
}
SEEING: Final = frozenset({"manage_streams", "read_streams", "manage_topics", "read_topics"})


# Beyond any revision: marks the stamp of credentials that a personal access token got.
FROM_TOKEN: Final = 1 << 63


def is_old(stamp: int, floor: int, token_floor: int) -> bool:
    """Return whether credentials were ended since."""
    if stamp < FROM_TOKEN:
        return stamp < floor
    return stamp - FROM_TOKEN < max(floor, token_floor)


class CompositeRefused(Exception):  # noqa: N818 - an outcome, not a fault
    """A refusal: why, and what its details must say at least."""

    def __init__(self, reason: str, **details: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = {key: str(value) for key, value in details.items()}

    def matches(self, error: errors_pb2.Error) -> bool:
        """Return whether an error says this, and perhaps more."""
        reason = errors_pb2.Reason.Name(error.reason).removeprefix("REASON_")
        said = {detail.key: detail.value for detail in error.details}
        return reason == self.reason and self.details.items() <= said.items()

    def __repr__(self) -> str:
        return f"Refused({self.reason}, {self.details})"


@dataclass
class User:
    """A user with grants and tokens."""

    id: int
    name: str
    active: bool
    password_hash: str
    grants: Grants
    created_at: int
    created: int
    modified: int
    credential: int
    tokens: dict[str, Token] = field(default_factory=dict)
    token_floor: int = 0


@dataclass
class Token:
    """A personal access token."""

    hash: bytes
    expires_at: int
    created_at: int
    created: int


@dataclass
class Stream:
    """A stream with its topics."""

    id: int
    name: str
    created_at: int
    created: int
    modified: int
    purges: int = 0
    topics: dict[int, Topic] = field(default_factory=dict)


@dataclass
class Topic:
    """A topic with the creating revision of each partition, and its groups."""

    id: int
    name: str
    options: dict[str, int]
    partitions: list[int]
    created_at: int
    created: int
    modified: int
    purges: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    # By partition: the first offset that remains, and the next one to be written.
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    # By the first partition of a row: by when all below its ends was written, ascending.
    marks: dict[int, list[CompositeMark]] = field(default_factory=dict)
    # By partition, of those that brokers have.
    placements: dict[int, CompositePlacement] = field(default_factory=dict)


@dataclass
class CompositeMark:
    """What was reported of partitions by some time."""

    time: int
    ends: dict[int, int]


@dataclass(frozen=True)
class CompositePlacement:
    """Which brokers have a partition, and which of them have all that was acknowledged."""

    replicas: list[int]
    in_sync: list[int]
    revision: int


@dataclass
class CompositeBroker:
    """A broker as it registered last."""

    id: int
    name: str
    user_id: int
    created_at: int
    created: int
    modified: int = 0
    rack: str = ""
    endpoints: list[tuple[str, str, int]] = field(default_factory=list)
    epoch: int = 0
    fenced: bool = False
    draining: bool = False
    timeout_ms: int = 0
    storage: str = ""
    storage_since: int = 0


@dataclass
class Group:
    """A consumer group with its members by session id."""

    id: int
    name: str
    assignor: int
    partitions_count: int
    created_at: int
    created: int
    modified: int
    epoch: int = 1
    assigned_epoch: int = 1
    timeout_ms: int = 0  # of members that join now and then show no life; 0 for the default
    retention_ms: int = 0  # of offsets while there are no members; 0 for ever
    idle_since: int = 0  # without members and commits; 0 if offsets need not end
    expiry_due: int = 0  # when the service looks at the offsets; 0 for never
    members: dict[int, Member] = field(default_factory=dict)
    # By partition: the next offset to read.
    offsets: dict[int, int] = field(default_factory=dict)
    offsets_revision: int = 0  # of their last change


@dataclass
class Member:
    """A session's place in a group."""

    session_id: int
    user_id: int
    instance: str
    rack: str
    epoch: int
    previous_epoch: int
    joined: int
    owned: set[int] = field(default_factory=set)
    revoking: set[int] = field(default_factory=set)
    target: set[int] = field(default_factory=set)
    deadline: int = 0
    # Until when the place is kept for a member that is away; 0 if it is not.
    absent_until: int = 0
    # When it was told of other partitions the last time; 0 below level 4.
    changed: int = 0
    timeout_ms: int = 0  # what its group had when it came; 0 for the default


@dataclass
class CompositeSession:
    """A client session."""

    id: int
    user_id: int
    nonce: bytes
    last_number: int = 0


@dataclass
class CompositeModelState:
    """Everything at one place of the log. A transaction works on a copy."""

    users: dict[int, User] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    brokers: dict[int, CompositeBroker] = field(default_factory=dict)
    sessions: dict[int, CompositeSession] = field(default_factory=dict)
    # User id -> the credential revision below which sessions refuse.
    floors: dict[int, int] = field(default_factory=dict)
    # The same for credentials that a personal access token got, where it is higher.
    token_floors: dict[int, int] = field(default_factory=dict)
    next_user_id: int = 1
    next_stream_id: int = 1
    next_topic_id: int = 1
    next_group_id: int = 1
    next_broker_id: int = 1
    # The level in force.
    level: int = FEATURE_LEVEL_MAX
    # What has become of members so far, for those who must know whether it happens at all.
    turns: set[str] = field(default_factory=set)
    # Members whose removal for silence the primary was told to propose: group, session, join.
    leaving: set[tuple[int, int, int]] = field(default_factory=set)
    # Brokers that the primary was told to fence: id, epoch.
    to_fence: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_bounded(self) -> bool:
        """Whether all credentials end that should; and heartbeats say what they know."""
        return self.level >= FEATURE_LEVEL_BOUNDED

    @property
    def removes_members(self) -> bool:
        """Whether silent and late members are removed, and places are kept."""
        return self.level >= FEATURE_LEVEL_MEMBERS

    @property
    def knows_brokers(self) -> bool:
        """Whether brokers may register, and what they say of themselves in reports counts."""
        return self.level >= FEATURE_LEVEL_BROKERS

    @property
    def has_guards(self) -> bool:
        """Whether changes of tokens, offsets and placements may name the revision they expect."""
        return self.level >= FEATURE_LEVEL_GUARDS

    # --- Who may do what ---

    def caller(self, call: Call) -> User:
        """Return who calls, if they may act at all."""
        user = self.users.get(call.user_id)
        if user is None or not user.active or is_old(call.stamp, user.credential, user.token_floor):
            raise CompositeRefused("UNAUTHENTICATED")
        return user

    def rights(self, user: User, scope: Scope = ()) -> set[str]:
        """Return what a user may do in a scope: the union of all that hold there."""
        if user.id == 0:
            return set(GLOBAL_FLAGS)
        flags: set[str] = set()
        for length in range(len(scope) + 1):
            flags |= {WIDER.get(flag, flag) for flag in user.grants.get(scope[:length], ())}
        return flags

    def demand(self, user: User, *flags: str) -> None:
        """Refuse a user who has none of the flags everywhere."""
        if not self.rights(user) & set(flags):
            raise CompositeRefused("PERMISSION_DENIED")

    def stream(self, user: User, named: Identifier, *flags: str) -> Stream:
        """Return the stream that is named, if the user sees it and has one of the flags there."""
        key = key_of(named)
        stream = self.find_stream(key)
        rights = self.rights(user, (stream.id,)) if stream is not None else set()
        if stream is None or not rights & SEEING:
            raise CompositeRefused("STREAM_NOT_FOUND", stream=key)
        if not rights & set(flags):
            raise CompositeRefused("PERMISSION_DENIED")
        return stream

    def topic(
        self,
        user: User,
        stream_named: Identifier,
        topic_named: Identifier,
        *flags: str,
        seeing: frozenset[str] = SEEING,
    ) -> tuple[Stream, Topic]:
        """Return the topic that is named, if the user sees it and has one of the flags there."""
        stream_key, topic_key = key_of(stream_named), key_of(topic_named)
        stream = self.find_stream(stream_key)
        if stream is None:
            raise CompositeRefused("STREAM_NOT_FOUND", stream=stream_key)
        topic = find(stream.topics, topic_key)
        scope = (stream.id,) if topic is None else (stream.id, topic.id)
        rights = self.rights(user, scope)
        if not rights & seeing:
            raise CompositeRefused("STREAM_NOT_FOUND", stream=stream_key)
        if topic is None:
            raise CompositeRefused("TOPIC_NOT_FOUND", stream=stream_key, topic=topic_key)
        if not rights & set(flags):
            raise CompositeRefused("PERMISSION_DENIED")
        return stream, topic

    # --- What exists ---

    def find_stream(self, key: int | str) -> Stream | None:
        """Return a stream by id or name."""
        found: Stream | None = find(self.streams, key)
        return found

    def find_user(self, named: Identifier) -> User | None:
        """Return a user by id or name."""
        found: User | None = find(self.users, key_of(named))
        return found

    def groups(self) -> list[tuple[Stream, Topic, Group]]:
        """Return all groups with where they are."""
        return [
            (stream, topic, group)
            for stream in self.streams.values()
            for topic in stream.topics.values()
            for group in topic.groups.values()
        ]


@dataclass(frozen=True)
class Call:
    """Who calls, when, in which session."""

    revision: int
    timestamp: int
    user_id: int
    stamp: int
    session_id: int


def key_of(named: Identifier) -> int | str:
    """Return the id or name that is set."""
    kind = named.WhichOneof("kind")
    if kind is None:
        raise CompositeRefused("MALFORMED_REQUEST")
    key: int | str = named.id if kind == "id" else named.name
    return key


def find(entities: Mapping[int, Any], key: int | str) -> Any:
    """Return the entity of an id or a name, or None."""
    if isinstance(key, int):
        return entities.get(key)
    return next((entity for entity in entities.values() if entity.name == key), None)


def check_name(name: str, reason: str, shortest: int, longest: int) -> None:
    """Refuse a name of a wrong length in bytes, or with control characters."""
    if not shortest <= len(name.encode()) <= longest:
        raise CompositeRefused(reason)
    if any(ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F for c in name):
        raise CompositeRefused(reason)


def check_expected(request: Any, entity: Any) -> None:
    """Refuse a compare-and-set on another revision than the entity's last."""
    check_revision(request, entity.modified)


def check_revision(request: Any, modified: int) -> None:
    """Refuse a compare-and-set on another revision than that of the last change."""
    if request.HasField("expected_revision") and request.expected_revision != modified:
        raise CompositeRefused(
            "REVISION_MISMATCH",
            modified_revision=modified,
            expected_revision=request.expected_revision,
        )
