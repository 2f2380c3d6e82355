"""What visitors ask of the past in a world, alone and in crowds, and who they hear changed what.

What they are shown is judged: no revision shows what came later, and changes are in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from testkit.world.wanderers import GLOBAL_GRANTS, PASSWORD, Wanderer
from viewstamp.api.history.v1 import history_service_pb2 as history_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client import STALE
from viewstamp.client.identifiers import identifier
from viewstamp.client.transport import Endpoint, unary

_CALL_S: Final = 4.0
# How many ask at once, how often, and after how long some of them hang up.
_CROWD: Final = (2, 5)
_ROUNDS: Final = (2, 3)
_HANG_UP_S: Final = (0.0, 0.02, 0.05, 0.1, 0.3)
_PAGES_MAX: Final = 3
# The fields that name an entity, and the part that it has.
_KINDS: Final = (
    (("user",), history_pb2.BLAMED_PART_TOKENS),
    (("broker",), history_pb2.BLAMED_PART_UNSPECIFIED),
    (("stream",), history_pb2.BLAMED_PART_UNSPECIFIED),
    (("stream", "topic"), history_pb2.BLAMED_PART_PLACEMENTS),
    (("stream", "topic", "group"), history_pb2.BLAMED_PART_MEMBERS),
)
_PART_OF_NO_BUILD: Final = 9
_IDS: Final = (1, 2, 3, 1 << 20)
_NOBODYS_ID: Final = 1 << 30


async def look_back(w: Wanderer, revision: int) -> None:
    """Read earlier states, forth and back, and ask who changed whatever is called "a"."""
    for earlier in (revision // 2, revision, revision // 3):
        await look_at(w, max(1, earlier))
    async for page in w.client.blame(stream="a", page_size=3):
        judge_page(w, page, is_lone=True)


async def look_at(w: Wanderer, revision: int) -> None:
    """List the streams of a revision."""
    judge_streams(w, revision, [each async for each in w.client.at(revision).streams.list()])


def judge_streams(w: Wanderer, revision: int, streams: Sequence[Any]) -> None:
    """Fail if a state shows what came later."""
    if any(stream.modified_revision > revision for stream in streams):
        w.fail(f"revision {revision} shows what came later")


def judge_page(
    w: Wanderer, page: history_pb2.BlameEntityResponse, *, is_lone: bool = False
) -> None:
    """Fail if changes of an entity are not in their order, or later than the answer.

    `is_lone` says that a revision changes it once. One revision may change several parts of others.
    """
    revisions = [change.revision for change in page.changes]
    due = sorted(set(revisions) if is_lone else revisions)
    if revisions != due or revisions[-1:] > [page.header.revision]:
        w.fail(f"changes of one entity are at revisions {revisions}")


# --- One after another ---


async def blame(w: Wanderer) -> None:
    """Ask who changed anything, also what is gone, and what belongs to it; some ask wrongly."""
    pages = 0
    request = blamed(w)
    async with _any_endpoint(w).open() as channel:
        token = await _token(w, channel, w.username, w.password)
        while pages < _PAGES_MAX:
            page = await unary(channel, request, access_token=token, timeout_s=_CALL_S)
            judge_page(w, page)
            pages += 1
            if not page.next_revision:
                return
            request.from_revision, request.ids[:] = page.next_revision, page.ids


def blamed(w: Wanderer) -> history_pb2.BlameEntityRequest:
    """Return a request about anything that a run may have had."""
    fields, own_part = w.random.choice(_KINDS)
    part: Any = history_pb2.BLAMED_PART_UNSPECIFIED if w.requests.chance(2) else own_part
    if w.requests.chance(8):
        part = w.random.choice((*history_pb2.BlamedPart.values(), _PART_OF_NO_BUILD))
    request = history_pb2.BlameEntityRequest(
        part=part,
        page_size=w.random.choice((0, 1, 3)),
        from_revision=w.random.choice((0, 0, 0, 2, 40, 1 << 40)),
        partition=0 if w.requests.chance(5) else None,
        ids=[_NOBODYS_ID] if w.requests.chance(6) else (),
    )
    for name in fields:
        getattr(request, name).CopyFrom(_named(w, name))
    return request


def _named(w: Wanderer, field: str) -> Any:
    if w.requests.chance(3):
        return identifier(w.random.choice(_IDS))
    users = (w.username, "ann", "root", "gone")
    return identifier(w.random.choice(users if field == "user" else ("a", "b", "c", "gone")))


async def read_earlier(w: Wanderer) -> None:
    """Read a state of a moment ago, or of long ago."""
    header = (await w.client.status(consistency=STALE)).header
    await look_at(w, max(1, header.revision - w.random.choice((0, 1, 5, 50, 1 << 20))))


async def follow_the_log(w: Wanderer) -> None:
    """Read a state, have a snapshot take the place of the log behind it, and go on from there."""
    revision = max(1, (await w.client.status(consistency=STALE)).header.revision // 2)
    await w.tried(look_at(w, revision), None)
    for number in range(w.random.choice((1, 4, 12))):
        name = f"passing-{w.name}-{number}"
        await w.tried(w.client.streams.create(name), None)
        await w.tried(w.client.streams.delete(name), None)
    made = await w.client.snapshots.create()
    await w.tried(w.client.snapshots.decided(made.generation), None)
    await w.tried(look_at(w, revision + w.random.choice((1, 2, 5))), None)
    await w.tried(blame(w), None)


# --- Crowds ---


async def crowd(w: Wanderer) -> None:
    """Have two users ask one replica for early states and changes at once.

    Some hang up, and ask again for the same or for something else.
    """
    async with _any_endpoint(w).open() as channel, _reader(w, channel) as reader:
        root = await _token(w, channel, w.username, w.password)
        newest = (await w.client.status(consistency=STALE)).header.revision
        early = max(1, newest - w.random.choice((3, 10, 30, newest)))
        for _ in range(w.random.randint(*_ROUNDS)):
            asking = [
                asyncio.ensure_future(w.tried(_ask(w, channel, *who), None))
                for _ in range(w.random.randint(*_CROWD))
                for who in ((root, early), (reader, newest))
            ]
            await asyncio.sleep(w.random.choice(_HANG_UP_S))
            for each in asking:
                if w.requests.chance(2):
                    each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def _ask(w: Wanderer, channel: Any, token: str, revision: int) -> None:
    if w.requests.chance(3):
        page = await unary(channel, blamed(w), access_token=token, timeout_s=_CALL_S)
        judge_page(w, page)
        return
    then = max(1, revision - w.random.choice((0, 0, 0, 1)))
    answer = await unary(
        channel,
        streams_pb2.ListStreamsRequest(),
        access_token=token,
        timeout_s=w.random.choice((0.02, _CALL_S, _CALL_S)),
        at_revision=then,
    )
    judge_streams(w, then, answer.streams)


@asynccontextmanager
async def _reader(w: Wanderer, channel: Any) -> AsyncIterator[str]:
    """Make a user who may read everything, or one stream alone; yield its access token."""
    name = f"{w.name}-reader-{w.random.getrandbits(32):x}"
    found = [stream.id async for stream in w.client.streams.list(page_size=1)]
    await w.client.users.create(name, PASSWORD, permissions=_permissions(w, found))
    try:
        yield await _token(w, channel, name, PASSWORD)
    finally:
        await w.tried(w.client.users.delete(name), None)


def _permissions(w: Wanderer, stream_ids: Sequence[int]) -> users_pb2.Permissions:
    permissions = users_pb2.Permissions()
    everywhere = dict.fromkeys(GLOBAL_GRANTS, True)
    for stream_id in stream_ids if w.requests.chance(2) else ():
        permissions.streams.add(stream=identifier(stream_id), read_stream=True)
        everywhere = {"read_users": True}
    getattr(permissions, "global").MergeFrom(users_pb2.GlobalPermissions(**everywhere))
    return permissions


def _any_endpoint(w: Wanderer) -> Endpoint:
    return Endpoint(w.random.choice(w.addresses))


async def _token(w: Wanderer, channel: Any, username: str, password: str) -> str:
    """Return the access token of a user; a visitor's own one is kept."""
    if username == w.username and w.token:
        return w.token
    request = users_api.LoginRequest(username=username, password=password)
    token: str = (await unary(channel, request)).access_token
    if username == w.username:
        w.token = token
    return token
