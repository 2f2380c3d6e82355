"""Producers as users who may send messages to their topics. Grants are added, never removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client, Refusal
from viewstamp.client.identifiers import identifier
from viewstamp.importer.existing import Existing, TopicIds
from viewstamp.importer.plan import ImportPlan, TopicKey
from viewstamp.importer.report import Counts
from viewstamp.topology.passwords import PasswordFile

# Somebody else changed the user between our read and our update: read again.
UPDATE_ATTEMPTS_MAX: Final = 5


async def import_user(
    client: Client,
    plan: ImportPlan,
    username: str,
    existing: Existing,
    passwords: PasswordFile,
    counts: Counts,
    *,
    dry_run: bool,
) -> None:
    """Create the user, or add the grants that are missing; count what was done."""
    topics = plan.senders[username]
    try:
        user = await _find(client, username)
        if user is None:
            if not dry_run:
                password = passwords.passwords_for([username])[username]
                await client.users.create(username, password, permissions=_named(topics))
            counts.created += 1
        elif await _add_grants(client, user, topics, existing, dry_run=dry_run):
            counts.updated += 1
        else:
            counts.existing += 1
    except Refusal as refusal:
        counts.failures.append(f"user {username}: {refusal.name}: {refusal.message}")


async def _find(client: Client, username: str) -> users_pb2.User | None:
    try:
        return await client.users.get(username)
    except Refusal as refusal:
        if refusal.reason == Reason.REASON_USER_NOT_FOUND:
            return None
        raise


async def _add_grants(
    client: Client,
    user: users_pb2.User,
    topics: Iterable[TopicKey],
    existing: Existing,
    *,
    dry_run: bool,
) -> bool:
    """Add the grants the user lacks; return whether there were any. Raises Refusal."""
    wanted = [existing.topics.get(key) for key in topics]
    for attempt in range(UPDATE_ATTEMPTS_MAX):
        if not lacks_any(user.permissions, wanted):
            return False
        if dry_run:
            return True
        present = [ids for ids in wanted if ids is not None]
        try:
            await client.users.update_permissions(
                user.id,
                with_send(user.permissions, present),
                expected_revision=user.modified_revision,
            )
            return True
        except Refusal as refusal:
            last = attempt == UPDATE_ATTEMPTS_MAX - 1
            if last or refusal.reason != Reason.REASON_REVISION_MISMATCH:
                raise
            user = await client.users.get(user.id)
    raise AssertionError("the last attempt returns or raises")


def lacks_any(permissions: users_pb2.Permissions, wanted: Iterable[TopicIds | None]) -> bool:
    """Return whether a grant to send is missing; it is if the topic does not exist yet."""
    granted = {
        TopicIds(stream.stream.id, topic.topic.id)
        for stream in permissions.streams
        for topic in stream.topics
        if topic.send_messages
    }
    return any(ids is None or ids not in granted for ids in wanted)


def with_send(
    permissions: users_pb2.Permissions, wanted: Iterable[TopicIds]
) -> users_pb2.Permissions:
    """Return the permissions with grants to send to the topics added."""
    result = users_pb2.Permissions()
    result.CopyFrom(permissions)
    streams = {stream.stream.id: stream for stream in result.streams}
    for ids in wanted:
        stream = streams.get(ids.stream_id)
        if stream is None:
            stream = result.streams.add(stream=identifier(ids.stream_id))
            streams[ids.stream_id] = stream
        found = next((topic for topic in stream.topics if topic.topic.id == ids.topic_id), None)
        topic = found or stream.topics.add(topic=identifier(ids.topic_id))
        topic.send_messages = True
    return result


def _named(topics: Iterable[TopicKey]) -> users_pb2.Permissions:
    by_stream: dict[str, list[str]] = {}
    for key in topics:
        by_stream.setdefault(key.stream, []).append(key.topic)
    return users_pb2.Permissions(streams=[_in_stream(*item) for item in by_stream.items()])


def _in_stream(stream: str, topics: Iterable[str]) -> users_pb2.StreamPermissions:
    grants = [
        users_pb2.TopicPermissions(topic=identifier(topic), send_messages=True) for topic in topics
    ]
    return users_pb2.StreamPermissions(stream=identifier(stream), topics=grants)
