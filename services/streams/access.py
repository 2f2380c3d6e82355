"""Permissions: the projection of users by which streams decides, and the gates.

**Rights.** Grants at the three levels are the same set of bits: `manage_stream` of one stream is
MANAGE_STREAMS there, `read_topic` of one topic is READ_TOPICS there. What a user may do with a
topic is the union of the bits granted everywhere, in its stream, and in the topic itself; a gate
is a mask of which one bit suffices.

**Seeing.** Any reading or managing bit of streams or topics makes its entity seen, whatever lies
above it: a grant of one topic shows that topic and lets its stream be named on the way to it, and
nothing else. Sending and polling show nothing, except to CheckAccess of oneself.

A request is refused in this order, and the first that holds is the answer:

================================================================== ==================
caller, and what the request names                                 answer
================================================================== ==================
unknown, inactive, or stamped below its minimal credential         UNAUTHENTICATED
an identifier with neither id nor name                             MALFORMED_REQUEST
the stream does not exist                                          STREAM_NOT_FOUND
a stream is meant, and no seeing bit everywhere or in it           STREAM_NOT_FOUND
a topic is meant, it does not exist, and no seeing bit everywhere  STREAM_NOT_FOUND
or in its stream
a topic is meant, and no seeing bit at any level                   STREAM_NOT_FOUND
the topic does not exist, its stream is seen                       TOPIC_NOT_FOUND
the entity is seen, yet the gate's mask is not met                 PERMISSION_DENIED
================================================================== ==================

So a caller who may not see an entity gets, to the byte, the answer for one that does not exist. And
no caller is told that an entity does not exist which the same grants show elsewhere: a user who may
list the topics of a stream but not read the stream itself gets PERMISSION_DENIED from GetStream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from viewstamp.api.users.v1 import users_pb2
from viewstamp.limits import ROOT_USER_ID, TOKEN_STAMP

MANAGE_SERVERS: Final = 1 << 0
READ_SERVERS: Final = 1 << 1
MANAGE_USERS: Final = 1 << 2
READ_USERS: Final = 1 << 3
MANAGE_STREAMS: Final = 1 << 4
READ_STREAMS: Final = 1 << 5
MANAGE_TOPICS: Final = 1 << 6
READ_TOPICS: Final = 1 << 7
POLL_MESSAGES: Final = 1 << 8
SEND_MESSAGES: Final = 1 << 9
ALL_RIGHTS: Final = (1 << 10) - 1
SEES: Final = MANAGE_STREAMS | READ_STREAMS | MANAGE_TOPICS | READ_TOPICS

# Field name of a permissions message -> the right it grants at that message's level.
GLOBAL_RIGHTS: Final = {
    "manage_servers": MANAGE_SERVERS,
    "read_servers": READ_SERVERS,
    "manage_users": MANAGE_USERS,
    "read_users": READ_USERS,
    "manage_streams": MANAGE_STREAMS,
    "read_streams": READ_STREAMS,
    "manage_topics": MANAGE_TOPICS,
    "read_topics": READ_TOPICS,
    "poll_messages": POLL_MESSAGES,
    "send_messages": SEND_MESSAGES,
}
STREAM_RIGHTS: Final = {
    "manage_stream": MANAGE_STREAMS,
    "read_stream": READ_STREAMS,
    "manage_topics": MANAGE_TOPICS,
    "read_topics": READ_TOPICS,
    "poll_messages": POLL_MESSAGES,
    "send_messages": SEND_MESSAGES,
}
TOPIC_RIGHTS: Final = {
    "manage_topic": MANAGE_TOPICS,
    "read_topic": READ_TOPICS,
    "poll_messages": POLL_MESSAGES,
    "send_messages": SEND_MESSAGES,
}


class Gate(NamedTuple):
    """The demand of a request: one bit of `mask` on an entity that one bit of `sees` shows."""

    permission: str  # named in the refusal
    mask: int
    sees: int = SEES


CREATE_STREAM: Final = Gate("manage_streams", MANAGE_STREAMS)
CHANGE_STREAM: Final = Gate("manage_stream", MANAGE_STREAMS)
CREATE_TOPIC: Final = Gate("manage_topics", MANAGE_STREAMS | MANAGE_TOPICS)
CHANGE_TOPIC: Final = Gate("manage_topic", MANAGE_STREAMS | MANAGE_TOPICS)
READ_STREAM: Final = Gate("read_stream", MANAGE_STREAMS | READ_STREAMS)
LIST_STREAMS: Final = Gate("read_streams", MANAGE_STREAMS | READ_STREAMS)
LIST_TOPICS: Final = Gate("read_topics", SEES)
READ_TOPIC: Final = Gate("read_topic", SEES)
POLL_TOPIC: Final = Gate("poll_messages", POLL_MESSAGES)
SEND_TOPIC: Final = Gate("send_messages", SEND_MESSAGES)
READ_SERVER: Final = Gate("read_servers", MANAGE_SERVERS | READ_SERVERS)
MANAGE_SERVER: Final = Gate("manage_servers", MANAGE_SERVERS)
CHECK_OTHERS: Final = Gate("read_users", MANAGE_USERS | READ_USERS)
CHECK_OWN: Final = Gate(
    "read_topic", SEES | POLL_MESSAGES | SEND_MESSAGES, SEES | POLL_MESSAGES | SEND_MESSAGES
)


class StreamAccess(NamedTuple):
    """Rights in one stream, and by topic id the rights in single topics."""

    rights: int
    topics: Mapping[int, int]


class Access(NamedTuple):
    """What streams knows of one user. Streams and topics are ascending, by id."""

    user_id: int
    minimum_credential_revision: int
    active: bool
    granted: int  # everywhere, as users says it
    everywhere: int  # as it is: root may do everything without a grant
    streams: Mapping[int, StreamAccess]
    minimum_token_revision: int = 0

    def is_current(self, stamp: int) -> bool:
        """Whether credentials with this stamp are still in force."""
        minimum = self.minimum_credential_revision
        if stamp & TOKEN_STAMP:
            minimum = max(minimum, self.minimum_token_revision)
        return stamp & ~TOKEN_STAMP >= minimum

    @property
    def permissions(self) -> bytes:
        """The canonical encoding of the grants, equal to that of users."""
        message = users_pb2.Permissions()
        if self.granted:
            _set_rights(getattr(message, "global"), self.granted, GLOBAL_RIGHTS)
        for stream_id, scoped in self.streams.items():
            entry = message.streams.add()
            entry.stream.id = stream_id
            _set_rights(entry, scoped.rights, STREAM_RIGHTS)
            for topic_id, rights in scoped.topics.items():
                topic = entry.topics.add()
                topic.topic.id = topic_id
                _set_rights(topic, rights, TOPIC_RIGHTS)
        return message.SerializeToString(deterministic=True)

    def in_stream(self, stream_id: int) -> int:
        """Return the rights everywhere and in the stream."""
        scoped = self.streams.get(stream_id)
        return self.everywhere if scoped is None else self.everywhere | scoped.rights

    def in_topic(self, stream_id: int, topic_id: int) -> int:
        """Return the rights everywhere, in the stream and in the topic."""
        scoped = self.streams.get(stream_id)
        if scoped is None:
            return self.everywhere
        return self.everywhere | scoped.rights | scoped.topics.get(topic_id, 0)

    def with_permissions(self, permissions: users_pb2.Permissions) -> Access:
        """Return the user with other grants: ids only, streams and topics ascending."""
        granted = _rights(getattr(permissions, "global"), GLOBAL_RIGHTS)
        everywhere = ALL_RIGHTS if self.user_id == ROOT_USER_ID else granted
        streams = {entry.stream.id: _stream_access(entry) for entry in permissions.streams}
        return self._replace(granted=granted, everywhere=everywhere, streams=streams)

    def without_stream(self, stream_id: int) -> Access:
        """Return the user without the grants in a deleted stream."""
        if stream_id not in self.streams:
            return self
        streams = dict(self.streams)
        del streams[stream_id]
        return self._replace(streams=streams)

    def without_topic(self, stream_id: int, topic_id: int) -> Access:
        """Return the user without the grants in a deleted topic.

        A stream without any remaining grant is dropped too: users keeps none such either, and the
        two must stay equal to the byte.
        """
        scoped = self.streams.get(stream_id)
        if scoped is None or topic_id not in scoped.topics:
            return self
        topics = dict(scoped.topics)
        del topics[topic_id]
        if not topics and not scoped.rights:
            return self.without_stream(stream_id)
        streams = dict(self.streams)
        streams[stream_id] = scoped._replace(topics=topics)
        return self._replace(streams=streams)


def new_access(user_id: int, minimum_credential_revision: int) -> Access:
    """Return an active user without grants; root needs none."""
    everywhere = ALL_RIGHTS if user_id == ROOT_USER_ID else 0
    return Access(user_id, minimum_credential_revision, True, 0, everywhere, {})


def _stream_access(entry: users_pb2.StreamPermissions) -> StreamAccess:
    topics = {topic.topic.id: _rights(topic, TOPIC_RIGHTS) for topic in entry.topics}
    return StreamAccess(_rights(entry, STREAM_RIGHTS), topics)


def _rights(message: Message, names: Mapping[str, int]) -> int:
    return sum(right for name, right in names.items() if getattr(message, name))


def _set_rights(message: Any, rights: int, names: Mapping[str, int]) -> None:
    for name, right in names.items():
        if rights & right:
            setattr(message, name, True)
