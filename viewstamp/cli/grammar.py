"""Arguments that people write: entities, permissions, durations, sizes, offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import typer

from viewstamp import limits, quantities

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from viewstamp.api.users.v1 import users_pb2

NAME_PREFIX: Final = "name:"

PERMISSIONS_HELP: Final = """
PERMISSIONS are words joined by commas.

--global PERMISSIONS: manage_servers, read_servers, manage_users, read_users, manage_streams,
read_streams, manage_topics, read_topics, poll_messages, send_messages.

--stream STREAM:PERMISSIONS: manage_stream, read_stream, manage_topics, read_topics, poll_messages,
send_messages.

--topic STREAM/TOPIC:PERMISSIONS: manage_topic, read_topic, poll_messages, send_messages.

`all` stands for all of a level. Each option may be repeated. Streams and topics are ids or names;
where a name holds a slash, use the id.

Example: --global manage_streams,read_users --stream orders:read_stream
--topic orders/payments:send_messages,poll_messages
"""

_US_PER_S: Final = 1_000_000
_OFFSET: Final = re.compile(r"(\d+)=(\d+)")
# Fields of the permission messages that are not permissions.
_NO_PERMISSIONS: Final = frozenset({"stream", "topic", "topics"})


def entity(text: str) -> int | str:
    """Return an identifier: digits are an id; other text, or text after `name:`, is a name."""
    if text.startswith(NAME_PREFIX):
        return text.removeprefix(NAME_PREFIX)
    return int(text) if text.isascii() and text.isdecimal() else text


def permissions(
    global_words: Sequence[str], streams: Sequence[str], topics: Sequence[str]
) -> users_pb2.Permissions | None:
    """Return the permissions of the three options; None without options. Raises BadParameter."""
    if not (global_words or streams or topics):
        return None
    # Imported late: most arguments need none of it.
    from viewstamp.api.users.v1 import users_pb2
    from viewstamp.client.identifiers import identifier

    granted = users_pb2.Permissions()
    if global_words:
        getattr(granted, "global").CopyFrom(users_pb2.GlobalPermissions())
    for words in global_words:
        _grant(getattr(granted, "global"), words, "--global")
    by_stream: dict[int | str, users_pb2.StreamPermissions] = {}
    for text in streams:
        name, words = _split(text, "--stream", "STREAM:PERMISSIONS")
        _grant(_of_stream(granted, by_stream, name), words, "--stream")
    for text in topics:
        name, words = _split(text, "--topic", "STREAM/TOPIC:PERMISSIONS")
        stream_name, separator, topic_name = name.partition("/")
        if not separator or not stream_name or not topic_name or "/" in topic_name:
            raise typer.BadParameter(
                f"{text!r} names no topic: write STREAM/TOPIC:PERMISSIONS, with ids where a name "
                "holds a slash",
                param_hint="--topic",
            )
        topic = _of_stream(granted, by_stream, stream_name).topics.add(
            topic=identifier(entity(topic_name))
        )
        _grant(topic, words, "--topic")
    return granted


def duration_us(text: str) -> int:
    """Return a duration such as 90s, 15m, 12h, 7d, 2w in microseconds; `never` is 0."""
    if text == "never":
        return 0
    found = quantities.duration_us(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration: write 90s, 15m, 12h, 7d, 2w or never")
    return found


def moment(text: str) -> datetime:
    """Return a time such as 2026-11-28T10:00:00Z. Raises BadParameter without a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise typer.BadParameter(
            f"{text!r} is no time: write 2026-11-28T10:00:00Z, or another time zone in place of Z"
        )
    return found


def ago(text: str) -> datetime:
    """Return the time that is a duration such as 90s, 2h, 7d ago. Raises BadParameter."""
    found = quantities.duration_us(text)
    now = datetime.now(UTC)
    if found is None or found >= now.timestamp() * _US_PER_S:
        raise typer.BadParameter(f"{text!r} is no duration since 1970: write 90s, 15m, 12h, 7d, 2w")
    return now - timedelta(microseconds=found)


def size_bytes(text: str) -> int:
    """Return a size such as 512, 64KiB, 10GiB in bytes; `unlimited` is 0."""
    if text == "unlimited":
        return 0
    found = quantities.size_bytes(f"{text}B" if text.isdecimal() else text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size: write 512, 64KiB, 10GiB or unlimited")
    return found


def offsets_by_partition(texts: Sequence[str]) -> dict[int, int]:
    """Return the offsets of options such as 3=1000, by partition. Raises BadParameter."""
    offsets: dict[int, int] = {}
    for text in texts:
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise _bad_offset(f"{text!r} is no offset: write PARTITION=OFFSET, for example 3=1000")
        partition, offset = int(match[1]), int(match[2])
        if partition >= limits.PARTITIONS_PER_TOPIC_MAX:
            highest = limits.PARTITIONS_PER_TOPIC_MAX - 1
            raise _bad_offset(f"{partition} is no partition: they are numbered 0 to {highest}")
        if offset > limits.OFFSET_MAX:
            raise _bad_offset(f"{offset} is no offset: they go from 0 to {limits.OFFSET_MAX}")
        if partition in offsets:
            raise _bad_offset(f"partition {partition} has two offsets: give it one")
        offsets[partition] = offset
    return offsets


def _bad_offset(complaint: str) -> typer.BadParameter:
    return typer.BadParameter(complaint, param_hint="--offset")


def _of_stream(
    granted: users_pb2.Permissions,
    by_stream: dict[int | str, users_pb2.StreamPermissions],
    name: str,
) -> users_pb2.StreamPermissions:
    from viewstamp.client.identifiers import identifier

    stream = entity(name)
    if stream not in by_stream:
        by_stream[stream] = granted.streams.add(stream=identifier(stream))
    return by_stream[stream]


def _split(text: str, option: str, shape: str) -> tuple[str, str]:
    # Split from the right, because a name may hold a colon and permissions never do.
    name, separator, words = text.rpartition(":")
    if not separator or not name or not words:
        raise typer.BadParameter(f"{text!r} lacks a part: write {shape}", param_hint=option)
    return name, words


def _grant(target: Any, words: str, option: str) -> None:
    known = _permission_names(target)
    for word in _words(words):
        if word == "all":
            for name in known:
                setattr(target, name, True)
        elif word in known:
            setattr(target, word, True)
        else:
            raise typer.BadParameter(
                f"{word!r} is no permission here: choose from {', '.join(known)} or all",
                param_hint=option,
            )


def _words(text: str) -> Iterable[str]:
    return (word.strip() for word in text.split(","))


def _permission_names(message: Message) -> list[str]:
    names = (field.name for field in message.DESCRIPTOR.fields)
    return [name for name in names if name not in _NO_PERMISSIONS]
