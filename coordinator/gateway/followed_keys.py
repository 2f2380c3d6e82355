"""What changes concern, and what those who watch follow: the keys by which they find each other.

A change has a key for each place that it is in, so that who watches a topic is woken by that topic
alone, and not by its whole stream. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2

# A kind, and the ids of a stream, a topic and a group, or of a user; 0 for none.
FollowedKey: TypeAlias = tuple[str, int, int, int]
EVERYTHING: Final[FollowedKey] = ("everything", 0, 0, 0)
_IN: Final = "in"
_REMOVED: Final = "removed"
_ACCESS: Final = "access"
# The types of the places that can be watched. What else is in a group has the ids of the group.
PLACES: Final = tuple(
    message.DESCRIPTOR.full_name
    for message in (streams_pb2.Stream, streams_pb2.Topic, consumer_groups_pb2.ConsumerGroup)
)


def place_key(stream_id: int, topic_id: int = 0, group_id: int = 0) -> FollowedKey:
    """Return the key of a stream, topic or group, and of all that is in it."""
    return _IN, stream_id, topic_id, group_id


def removal_key(stream_id: int, topic_id: int = 0) -> FollowedKey:
    """Return the key of the end of a stream or topic, which is the end of what is in it."""
    return _REMOVED, stream_id, topic_id, 0


def access_key(user_id: int) -> FollowedKey:
    """Return the key of what a user may do."""
    return _ACCESS, user_id, 0, 0


def keys_of_change(change: watch_pb2.Change) -> tuple[FollowedKey, ...]:
    """Return all keys of a change but EVERYTHING."""
    if not change.entity_type:
        return (access_key(change.user_id),)
    stream_id, topic_id, group_id = change.stream_id, change.topic_id, change.group_id
    if not stream_id:
        return ()
    keys = [place_key(stream_id)]
    if topic_id:
        keys.append(place_key(stream_id, topic_id))
    if group_id:
        keys.append(place_key(stream_id, topic_id, group_id))
    elif change.kind == watch_pb2.CHANGE_KIND_DELETED and change.entity_type in PLACES:
        keys.append(removal_key(stream_id, topic_id))
    return tuple(keys)


def keys_of_watch(
    user_id: int, stream_id: int, topic_id: int, group_id: int
) -> tuple[FollowedKey, ...]:
    """Return what a user's watch of a place follows. No change has two of these keys."""
    if not stream_id:
        return (EVERYTHING,)
    keys = [place_key(stream_id, topic_id, group_id), access_key(user_id)]
    if topic_id:
        keys.append(removal_key(stream_id))
    if group_id:
        keys.append(removal_key(stream_id, topic_id))
    return tuple(keys)


def read_key(key: FollowedKey) -> FollowedKey:
    """Return the key of what has to be read for somebody who follows a key.

    The services tell streams apart, and no more.
    """
    return place_key(key[1]) if key[0] in (_IN, _REMOVED) else key


def is_always_read(key: FollowedKey) -> bool:
    """Whether a key is read whoever follows."""
    return key[0] == _ACCESS


def streams_in(read_keys: Iterable[FollowedKey]) -> list[int]:
    """Return the streams among what has to be read."""
    return [key[1] for key in read_keys if key[0] == _IN]
