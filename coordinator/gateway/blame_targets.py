"""Which entity a BlameEntity means, and what its caller must be allowed to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf.message import Message

from coordinator.gateway.past_access import PresentQuestion
from coordinator.history.messages import SoughtEntity
from coordinator.mux.stage import Stage
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_api
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.history.v1 import history_service_pb2 as history_api
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.errors import Refusal
from viewstamp.past_limits import BLAME_IDS_MAX

_API: Final = "/viewstamp.api."
_USERS: Final = f"{_API}users.v1.UsersService/"
_STREAMS: Final = f"{_API}streams.v1.StreamsService/"
_GROUPS: Final = f"{_API}consumer_groups.v1.ConsumerGroupsService/"
_BROKERS: Final = f"{_API}brokers.v1.BrokersService/"
# Of an entity that is not there, or not shown.
_NOT_FOUND: Final = frozenset(
    {
        Reason.REASON_USER_NOT_FOUND,
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
        Reason.REASON_GROUP_NOT_FOUND,
        Reason.REASON_BROKER_NOT_FOUND,
    }
)


def _question(path: str, request: Message) -> PresentQuestion:
    return PresentQuestion(path, request.SerializeToString())


# They tell who did what, so whoever asks must be allowed to list users.
LIST_USERS: Final = _question(_USERS + "ListUsers", users_api.ListUsersRequest(page_size=1))
_LIST_STREAMS: Final = _question(
    _STREAMS + "ListStreams", streams_api.ListStreamsRequest(page_size=1)
)


@dataclass(frozen=True, slots=True)
class _Part:
    """What belongs to an entity: its message, and the words for it."""

    part: history_api.BlamedPart.ValueType
    message: type[Message]
    words: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of entities; the last of its fields names one, and those before it what it is in.

    Whoever may read one may read what belongs to it, its `part`.
    """

    fields: tuple[str, ...]
    stage: Stage
    message: type[Message]
    path: str
    request: Callable[..., Message]
    found: Callable[[bytes], Any]
    listing: PresentQuestion
    part: _Part | None = None


_TOKENS: Final = _Part(
    history_api.BLAMED_PART_TOKENS, users_pb2.PersonalAccessToken, "tokens are of a user"
)
_PLACEMENTS: Final = _Part(
    history_api.BLAMED_PART_PLACEMENTS, brokers_pb2.Placements, "placements are of a topic"
)
_MEMBERS: Final = _Part(
    history_api.BLAMED_PART_MEMBERS, consumer_groups_pb2.Member, "members are of a group"
)
_PARTS: Final = {each.part: each for each in (_TOKENS, _PLACEMENTS, _MEMBERS)}
_KINDS: Final = (
    _Kind(
        ("user",),
        Stage.USERS,
        users_pb2.User,
        _USERS + "GetUser",
        users_api.GetUserRequest,
        lambda answer: users_api.GetUserResponse.FromString(answer).user,
        LIST_USERS,
        _TOKENS,
    ),
    _Kind(
        ("broker",),
        Stage.STREAMS,
        brokers_pb2.Broker,
        _BROKERS + "GetBroker",
        brokers_api.GetBrokerRequest,
        lambda answer: brokers_api.GetBrokerResponse.FromString(answer).broker,
        _LIST_STREAMS,
    ),
    _Kind(
        ("stream",),
        Stage.STREAMS,
        streams_pb2.Stream,
        _STREAMS + "GetStream",
        streams_api.GetStreamRequest,
        lambda answer: streams_api.GetStreamResponse.FromString(answer).stream,
        _LIST_STREAMS,
    ),
    _Kind(
        ("stream", "topic"),
        Stage.STREAMS,
        streams_pb2.Topic,
        _STREAMS + "GetTopic",
        streams_api.GetTopicRequest,
        lambda answer: streams_api.GetTopicResponse.FromString(answer).topic,
        _LIST_STREAMS,
        _PLACEMENTS,
    ),
    _Kind(
        ("stream", "topic", "group"),
        Stage.CONSUMER_GROUPS,
        consumer_groups_pb2.ConsumerGroup,
        _GROUPS + "GetConsumerGroup",
        lambda **names: groups_api.GetConsumerGroupRequest(**names, page_size=1),
        lambda answer: groups_api.GetConsumerGroupResponse.FromString(answer).group,
        _LIST_STREAMS,
        _MEMBERS,
    ),
)
_NAMED: Final = ("user", "broker", "stream", "topic", "group")


class BlamedTarget:
    """What one request asks about: `questions` go to the present, whose answers say what is
    sought."""

    def __init__(self, request: history_api.BlameEntityRequest) -> None:
        """Take the names of a request. Raises Refusal MALFORMED_REQUEST."""
        self._names: dict[str, Identifier] = {
            name: getattr(request, name) for name in _NAMED if request.HasField(name)
        }
        self._kind = _kind_of(self._names)
        *_, self._own = self._kind.fields
        self._part_type = _part_type(self._kind, request)
        self._partition = request.partition if request.HasField("partition") else None
        self._ids = frozenset(request.ids)
        _check_ids(self._ids)

    @property
    def questions(self) -> Sequence[PresentQuestion]:
        """Return what to ask: the entity, its list, the list of users, and what it is in."""
        asked = [self._get(self._kind), self._kind.listing, LIST_USERS]
        parent = self._parent()
        return asked if parent is None else [*asked, self._get(parent)]

    def sought(self, answers: Sequence[bytes | Refusal]) -> SoughtEntity:
        """Return what to look for. Raises the Refusal of what the caller may not read."""
        own, listing, users, *parents = answers
        if isinstance(users, Refusal):
            raise users
        sought = self._found(own, parents, may_list=not isinstance(listing, Refusal))
        # Names lead to others of the kind, and so do ids.
        if isinstance(listing, Refusal) and not self._ids <= sought.ids:
            raise listing
        has_room = len(self._ids) < BLAME_IDS_MAX
        return replace(sought, ids=sought.ids | self._ids if has_room else self._ids)

    def _found(
        self, own: bytes | Refusal, parents: Sequence[bytes | Refusal], *, may_list: bool
    ) -> SoughtEntity:
        if isinstance(own, Refusal):
            if own.reason not in _NOT_FOUND or not may_list:
                raise own
            return self._gone(parents)
        entity = self._kind.found(own)
        places = {f"{name}_id": getattr(entity, f"{name}_id") for name in self._kind.fields[:-1]}
        # Others that had its name are shown to whoever may list them. What belongs to them is not.
        name = self._names[self._own].name if may_list and not self._part_type else ""
        return self._entity({entity.id}, name, places)

    def _gone(self, parents: Sequence[bytes | Refusal]) -> SoughtEntity:
        """Return an entity that is not there any more, by its id or name."""
        places = {f"{name}_id": self._names[name].id for name in self._kind.fields[:-1]}
        parent = self._parent()
        if parent is not None and not all(places.values()):
            (found,) = parents
            if isinstance(found, Refusal):
                raise found
            entity = parent.found(found)
            *outer, innermost = parent.fields
            places = {f"{name}_id": getattr(entity, f"{name}_id") for name in outer}
            places[f"{innermost}_id"] = entity.id
        named = self._names[self._own]
        ids = set() if named.WhichOneof("kind") == "name" else {named.id}
        return self._entity(ids, named.name, places)

    def _entity(self, ids: set[int], name: str, places: dict[str, int]) -> SoughtEntity:
        kind = self._kind
        full_name = kind.message.DESCRIPTOR.full_name
        return SoughtEntity(
            int(kind.stage),
            full_name,
            frozenset(ids),
            name,
            part_type=self._part_type,
            partition=self._partition,
            **places,
        )

    def _parent(self) -> _Kind | None:
        outer = self._kind.fields[:-1]
        return next((kind for kind in _KINDS if kind.fields == outer), None)

    def _get(self, kind: _Kind) -> PresentQuestion:
        names = {name: self._names[name] for name in kind.fields}
        return _question(kind.path, kind.request(**names))


def _kind_of(names: dict[str, Identifier]) -> _Kind:
    kind = next((kind for kind in _KINDS if set(kind.fields) == names.keys()), None)
    if kind is None:
        raise _malformed(
            "name one user, one broker, one stream, a topic with its stream, or a group with both"
        )
    for name, identifier in names.items():
        if identifier.WhichOneof("kind") is None:
            raise _malformed(f"its {name} has neither an id nor a name: give one")
    return kind


def _part_type(kind: _Kind, request: history_api.BlameEntityRequest) -> str:
    """Return the full name of the message of a part; empty without one. Raises Refusal."""
    is_of_placements = request.part == history_api.BLAMED_PART_PLACEMENTS
    if request.HasField("partition") and not is_of_placements:
        raise _malformed("it has a partition: ask for the part BLAMED_PART_PLACEMENTS with it")
    if request.part == history_api.BLAMED_PART_UNSPECIFIED:
        return ""
    known = _PARTS.get(request.part)
    if known is None:
        raise _malformed(f"this build knows no part {request.part}: upgrade the cluster first")
    if kind.part is not known:
        raise _malformed(f"{known.words}, and it names a {kind.fields[-1]}")
    return known.message.DESCRIPTOR.full_name


def _check_ids(ids: frozenset[int]) -> None:
    if len(ids) > BLAME_IDS_MAX:
        raise _malformed(
            f"it has {len(ids)} ids, and {BLAME_IDS_MAX} are allowed: send those of an answer"
        )


def _malformed(why: str) -> Refusal:
    return Refusal(Reason.REASON_MALFORMED_REQUEST, f"the request is malformed: {why}")
