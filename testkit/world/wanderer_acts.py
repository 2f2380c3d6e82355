"""What users do in a world: every method, in every way of calling, well and badly."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from testkit.world.wanderer_brokers import ask_for_brokers, pass_by
from testkit.world.wanderer_offsets import (
    change_offsets,
    commit_for_member,
    fetch_offsets,
    make_group,
    report_data,
)
from testkit.world.wanderer_past import blame, read_earlier
from testkit.world.wanderers import PASSWORD, Act, Wanderer
from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import LINEARIZABLE, STALE, RawSession, at_least
from viewstamp.client.identifiers import identifier
from viewstamp.client.methods import method_of
from viewstamp.client.transport import STALE_METADATA, Endpoint, bearer, unary
from viewstamp.framing import frame_all
from viewstamp.routing import MethodKind

_UNARY_S: Final = (0.0, 0.002, 0.05, 2.0, 2.0, 2.0)
_BURST: Final = (10, 60)
_RUBBISH_BYTES: Final = 8_000
# More than a command may have; what is less would be logged, and fill the small segments.
_TOO_LARGE_BYTES: Final = limits.COMMAND_BYTES_MAX + 1
_SESSIONS_TOO_MANY: Final = limits.SESSIONS_PER_USER_MAX + 3
_FAR_REVISION: Final = 1 << 40
_SIGNS_TOO_MANY: Final = limits.SIGNS_TOGETHER_PER_USER_MAX + 2
_SIGNS_S: Final = 2.0
_CONSISTENCIES: Final = (
    "stale",
    "linearizable",
    "at-least=3",
    "at-least=x",
    "at=3",
    "no",
)
_PARTITIONS_OWNED_MAX: Final = 4


def endpoint(w: Wanderer) -> Endpoint:
    """Return any replica."""
    return Endpoint(w.random.choice(w.addresses))


async def leader(w: Wanderer) -> Endpoint:
    """Return the replica that leads as far as another one knows; now and then any."""
    status = await w.client.status(consistency=STALE)
    leads = cluster_pb2.REPLICA_ROLE_PRIMARY
    found = [each.address for each in status.replicas if each.role == leads and each.address]
    return Endpoint(found[0]) if found and not w.requests.chance(4) else endpoint(w)


async def token(w: Wanderer) -> str:
    """Return an access token of the wanderer, or rarely no token, or a wrong one."""
    if w.requests.chance(15):
        return w.random.choice(("", "nonsense", "a.b.c", f"{w.token}x"))
    if not w.token or w.requests.chance(20):
        request = users_pb2.LoginRequest(username=w.username, password=w.password)
        async with endpoint(w).open() as channel:
            w.token = (await unary(channel, request)).access_token
    return w.token


async def call(w: Wanderer) -> None:
    """Call any method in the session, at any consistency."""
    levels = (LINEARIZABLE, LINEARIZABLE, STALE, at_least(w.random.choice((1, 30, _FAR_REVISION))))
    request, level = w.requests.any(), w.random.choice(levels)
    if method_of(request).alone:
        await call_alone(w)
    else:
        w.requests.learn(await w.client.call(request, consistency=level))


async def call_alone(w: Wanderer) -> None:
    """Call any method without a session at any replica, with any deadline."""
    request, access_token = w.requests.any(), await token(w)
    async with endpoint(w).open() as channel:
        answer = await unary(
            channel,
            request,
            access_token=access_token,
            timeout_s=w.random.choice(_UNARY_S),
            stale=w.requests.chance(3),
        )
    w.requests.learn(answer)


async def change_streams(w: Wanderer) -> None:
    """Make what other acts need: streams, topics and groups."""
    await make_group(w, *(w.random.choice("abc") for _ in range(3)))


async def batch(w: Wanderer) -> None:
    """Send several commands as one request."""
    await w.client.batch(_commands(w, w.random.randint(1, 8)))


async def transact(w: Wanderer) -> None:
    """Send several commands as one transaction, or only try it."""
    commands = _commands(w, w.random.randint(1, 4))
    await w.client.transact(commands, validate_only=w.requests.chance(6))


def _commands(w: Wanderer, count: int) -> list[Message]:
    asked = (w.requests.any(kind=MethodKind.COMMAND) for _ in range(count))
    return [each for each in asked if not method_of(each).alone]


async def burst(w: Wanderer) -> None:
    """Make many calls at once; some are cancelled by their caller."""
    count = w.random.randint(*_BURST)
    kinds = (MethodKind.COMMAND, MethodKind.QUERY)
    chosen = [w.requests.any(kind=w.random.choice(kinds)) for _ in range(count)]
    calls = [
        asyncio.ensure_future(w.tried(w.client.call(each), None))
        for each in chosen
        if not method_of(each).alone
    ]
    await asyncio.sleep(w.random.choice((0.0, 0.001, 0.02)))
    for each in calls:
        if w.requests.chance(4):
            each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def be_member(w: Wanderer) -> None:
    """Join a group, hold what it gives, store offsets, and mostly leave."""
    a, b, c = (w.random.choice("ab") for _ in range(3))
    group = (a, b, c)
    await make_group(w, *group)
    instance_id = w.random.choice(("", "", "i"))
    await w.client.groups.join(*group, instance_id=instance_id)
    for _ in range(w.random.randint(1, 4)):
        told = await w.client.groups.sync(*group)
        owned = list(told.owned_partitions)[:_PARTITIONS_OWNED_MAX]
        epoch, known = told.member_epoch - w.requests.chance(8), told.assignment
        beat = w.client.groups.heartbeat(
            *group, member_epoch=epoch, owned_partitions=owned, known_assignment=known
        )
        await w.tried(beat, None)
        living = w.client.groups.keep_alive(*group, member_epoch=epoch, known_assignment=known)
        await w.tried(living, None)
        offsets = dict.fromkeys(owned, w.random.randint(0, 100))
        storing = w.client.groups.commit_offsets(
            *group, offsets, member_epoch=epoch, allow_out_of_range=True
        )
        await w.tried(storing, None)
        if w.requests.chance(3):
            where, access_token = endpoint(w), await token(w)
            await w.tried(commit_for_member(w, where, access_token, group, offsets, epoch), None)
        await fetch_offsets(w, group)
    if w.requests.chance(2):
        await w.client.groups.leave(*group, keep_place=w.requests.chance(2))


async def show_life(w: Wanderer) -> None:
    """Show life many times at once, also as no member can: too large, too many, or not framed."""
    a, b, c = (identifier(w.random.choice("ab")) for _ in range(3))
    sign = groups_pb2.KeepAliveConsumerGroupRequest(stream=a, topic=b, group=c, member_epoch=1)
    large = groups_pb2.KeepAliveConsumerGroupRequest()
    large.CopyFrom(sign)
    large.stream.name = "x" * (limits.SIGN_BYTES_MAX + 1)
    miscounted, many, torn = _span(sign), _span(sign), _span(sign)
    miscounted.count += 1
    many.count, many.items = _SIGNS_TOO_MANY, many.items * _SIGNS_TOO_MANY
    torn.items = torn.items[:-1]
    spans = [*(_span(sign) for _ in range(4)), _span(large), miscounted, many, torn]
    w.random.shuffle(spans)
    async with RawSession(await leader(w), await token(w)) as session:
        for number, span in enumerate(spans, 1):
            read = submit_pb2.ReadRequest(
                read_id=number, consistency=LINEARIZABLE.to_proto(), spans=[span]
            )
            await session.send(submit_pb2.SubmitRequest(read=read))
        for _ in spans:
            async with asyncio.timeout(_SIGNS_S):
                await session.receive()


async def list_all(w: Wanderer) -> None:
    """Walk over a list in small pages."""
    a, b = w.random.choice("abc"), w.random.choice("abc")
    size, level = w.random.choice((0, 1, 2, 10_000)), w.random.choice((LINEARIZABLE, STALE))
    lists = (
        w.client.streams.list(page_size=size, consistency=level),
        w.client.topics.list(a, page_size=size, consistency=level),
        w.client.groups.list(a, b, page_size=size, consistency=level),
        w.client.users.list(page_size=size, consistency=level),
        w.client.tokens.list(page_size=size, consistency=level),
        w.client.sessions.list(page_size=size),
        w.client.snapshots.list(page_size=size, consistency=level),
    )
    async for _ in w.random.choice(lists):
        pass


async def use_token(w: Wanderer) -> None:
    """Make a personal access token, log in with it, and delete it."""
    name = f"t{w.random.randrange(4)}"
    made = await w.tried(w.client.tokens.create(name), None)
    text = w.random.choice(("nonsense", made.token if made else "vspat_none", ""))
    async with endpoint(w).open() as channel:
        await w.tried(unary(channel, users_pb2.LoginWithTokenRequest(token=text)), None)
    await w.client.tokens.delete(name)


async def log_in_badly(w: Wanderer) -> None:
    """Log in with a wrong name or password, now and then several times at once."""
    name = w.random.choice((w.username if w.requests.chance(2) else "nobody", "ann"))
    request = users_pb2.LoginRequest(username=name, password="wrong")
    async with endpoint(w).open() as channel:
        logins = (unary(channel, request) for _ in range(w.random.choice((1, 1, 4))))
        await asyncio.gather(*(w.tried(each, None) for each in logins))


async def send_rubbish(w: Wanderer) -> None:
    """Call with bytes that are no message, at methods that exist or do not."""
    method = w.random.choice(w.requests.methods)
    paths = (
        method.path,
        f"{method.path}x",
        "/grpc.health.v1.Health/Check",
        "/x",
        "/a/" + "b" * 300,
    )
    sent = (b"\xff", b"", b"\x0a\x05a", w.random.randbytes(_RUBBISH_BYTES))
    metadata = w.random.choice((bearer(await token(w)), (), STALE_METADATA))
    async with endpoint(w).open() as channel:
        rude: Any = channel.unary_unary(w.random.choice(paths))
        await rude(w.random.choice(sent), metadata=metadata, timeout=2.0)


async def repeat(w: Wanderer) -> None:
    """Send a request twice, also over two streams: the second answer has the bytes of the first."""
    where, access_token = await leader(w), await token(w)
    name = f"once-{w.name}-{w.random.getrandbits(32)}"
    span = _span(streams_pb2.CreateStreamRequest(name=name))
    async with RawSession(where, access_token) as session:
        first = await session.submit_request(1, 0, [span])
        again = await session.submit_request(1, 0, [span])
    async with RawSession(where, access_token, session_id=session.session_id) as reopened:
        later = await reopened.submit_request(1, 0, [span])
        # Not acknowledged, and no refusal of the moment: what was decided is told again.
        replies = [each.message.command for each in (first, again, later)]
        if all(not reply.HasField("error") for reply in replies):
            told = {reply.SerializeToString(deterministic=True) for reply in replies}
            if len(told) > 1:
                w.fail(f"{w.name} got different answers to one request: {replies}")
        undone = _span(streams_pb2.DeleteStreamRequest(stream=identifier(name)))
        await reopened.submit_request(2, 1, [undone])


async def misuse_stream(w: Wanderer) -> None:
    """Open a stream, and send what no client library sends."""
    session_id = w.random.choice((0, 0, 0, 1, 1 << 50))
    where, access_token = await leader(w), await token(w)
    async with RawSession(
        where,
        access_token,
        session_id=session_id,
        takes_packed_answers=w.requests.chance(2),
        takes_notices=w.requests.chance(2),
    ) as session:
        for _ in range(w.random.randint(1, 6)):
            await session.send(_odd_message(w))
        while True:
            async with asyncio.timeout(w.random.choice((0.05, 0.5))):
                await session.receive()


def _odd_message(w: Wanderer) -> submit_pb2.SubmitRequest:
    requests = [w.requests.any() for _ in range(w.random.randint(0, 3))]
    spans = [_span(each) for each in requests]
    if spans and w.requests.chance(3):
        spans[0].count += 1
    if spans and w.requests.chance(6):
        spans[0].items += b"\x0a\x05"
    number, acked = w.random.choice((0, 1, 1, 2, 3, 9)), w.random.choice((0, 0, 1, 7))
    command = submit_pb2.CommandRequest(number=number, acked=acked, spans=spans)
    level = w.random.choice((LINEARIZABLE, STALE, at_least(3))).to_proto()
    read = submit_pb2.ReadRequest(read_id=number, consistency=level, spans=spans)
    return w.random.choice(
        (
            submit_pb2.SubmitRequest(),
            submit_pb2.SubmitRequest(open=submit_pb2.OpenStream()),
            submit_pb2.SubmitRequest(command=command),
            submit_pb2.SubmitRequest(command=command),
            submit_pb2.SubmitRequest(commands=submit_pb2.CommandRequests(requests=[command] * 2)),
            submit_pb2.SubmitRequest(read=read),
            submit_pb2.SubmitRequest(read=read),
        )
    )


def _span(request: Message) -> submit_pb2.Span:
    code, item = method_of(request).code, request.SerializeToString()
    return submit_pb2.Span(code=code, count=1, items=frame_all([item]))


async def number_alone(w: Wanderer) -> None:
    """Call under numbers of a session without a stream, twice; some numbers are none."""
    access_token = await token(w)
    method = w.random.choice(w.requests.methods)
    payload = w.requests.of(method).SerializeToString()
    session_id = str(w.client.session_id) if w.requests.chance(2) else "1"
    number = w.random.choice(("1", "2", "x", "9" * 30))
    metadata = (
        *bearer(access_token),
        ("viewstamp-session", session_id),
        *((("viewstamp-request", number),) if w.requests.chance(2) else ()),
        *((("viewstamp-acked", "0"),) if w.requests.chance(3) else ()),
        ("viewstamp-consistency", w.random.choice(_CONSISTENCIES)),
    )
    async with (await leader(w)).open() as channel:
        rude: Any = channel.unary_unary(method.path)
        for _ in range(2):
            await w.tried(rude(payload, metadata=metadata, timeout=2.0), None)


async def command_alone_in_session(w: Wanderer) -> None:
    """Send commands of a session that has no stream, each twice: they are answered alike.

    Then one of a number that must wait for an earlier one, and the end of the session.
    """
    access_token, where = await token(w), await leader(w)
    nonce = w.random.randbytes(limits.SESSION_NONCE_BYTES)
    async with where.open() as channel:
        request = sessions_pb2.RegisterSessionRequest(nonce=nonce)
        session = await unary(channel, request, access_token=access_token)
        for number in (1, 2, w.random.choice((2, 3, 5))):
            command = w.requests.any(kind=MethodKind.COMMAND)
            told = [
                await _numbered(w, channel, access_token, session.session_id, number, command)
                for _ in range(2)
            ]
            if None not in told and told[0] != told[1]:
                w.fail(f"{w.name} got different answers to one unary request: {told}")
        end = sessions_pb2.EndSessionRequest()
        await _numbered(w, channel, access_token, session.session_id, 9, end)


async def _numbered(
    w: Wanderer, channel: Any, access_token: str, session_id: int, number: int, command: Message
) -> bytes | None:
    """Return the bytes of an answer to a command under a number of a session; None if refused."""
    metadata = (
        *bearer(access_token),
        ("viewstamp-session", str(session_id)),
        ("viewstamp-request", str(number)),
        ("viewstamp-acked", str(w.random.choice((0, number - 1)))),
    )
    stub: Any = channel.unary_unary(method_of(command).path)
    call = stub(command.SerializeToString(), metadata=metadata, timeout=2.0)
    answer: bytes | None = await w.tried(call, None)
    return answer


async def register_often(w: Wanderer) -> None:
    """Register more sessions than a user may have; some nonces are wrong, or come again."""
    where, access_token = await leader(w), await token(w)
    sizes = [limits.SESSION_NONCE_BYTES] * _SESSIONS_TOO_MANY + [3, 0]
    nonces = [w.random.randbytes(size) for size in sizes]
    async with where.open() as channel:
        for nonce in (*nonces, nonces[0]):
            request = sessions_pb2.RegisterSessionRequest(nonce=nonce)
            await w.tried(unary(channel, request, access_token=access_token), None)


async def open_twice(w: Wanderer) -> None:
    """Open a session by two streams: the elder one may change nothing any more."""
    where, access_token = await leader(w), await token(w)
    span = _span(w.requests.any(kind=MethodKind.COMMAND))
    async with RawSession(where, access_token) as elder:
        await w.tried(elder.submit_request(1, 0, [span]), None)
        async with RawSession(where, access_token, session_id=elder.session_id) as younger:
            await w.tried(younger.submit_request(2, 0, [span]), None)
            await w.tried(elder.submit_request(3, 0, [span]), None)
            await w.tried(younger.submit_request(1, 1, [span]), None)
            await younger.submit_request(3, 1, [span])


async def send_too_much(w: Wanderer) -> None:
    """Send a command that is too large, and a request of too many."""
    large = streams_pb2.CreateStreamRequest(name="x" * _TOO_LARGE_BYTES)
    await w.tried(w.client.call(large), None)
    async with endpoint(w).open() as channel:
        await w.tried(unary(channel, large, access_token=await token(w)), None)
    async with RawSession(await leader(w), await token(w)) as session:
        await w.tried(session.submit_request(1, 0, [_span(large)]), None)
    many = _span(streams_pb2.GetStreamRequest(stream=identifier("a")))
    many.items, many.count = many.items * 9_000, 9_000
    read = submit_pb2.ReadRequest(read_id=1, consistency=STALE.to_proto(), spans=[many])
    async with RawSession(endpoint(w), await token(w)) as session:
        await session.send(submit_pb2.SubmitRequest(read=read))
        await session.receive()


async def change_password(w: Wanderer) -> None:
    """Change one's own password, rightly or wrongly, and keep what one has or not."""
    await w.client.users.change_password(
        w.random.choice((PASSWORD, "short", "another one")),
        current_password=w.random.choice((PASSWORD, PASSWORD, "wrong")),
        keep_tokens=w.requests.chance(2),
        keep_sessions=w.requests.chance(2),
    )


async def vanish(w: Wanderer) -> None:
    """Begin a call, and hang up before the answer."""
    doing = asyncio.ensure_future(call_alone(w))
    await asyncio.sleep(w.random.choice((0.0, 0.001, 0.01)))
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)


ACTS: Final[tuple[tuple[int, Act], ...]] = (
    (12, call),
    (8, call_alone),
    (6, change_streams),
    (2, batch),
    (4, transact),
    (2, burst),
    (5, be_member),
    (2, show_life),
    (4, report_data),
    (4, change_offsets),
    (2, pass_by),
    (2, ask_for_brokers),
    (3, list_all),
    (2, blame),
    (1, read_earlier),
    (1, use_token),
    (1, log_in_badly),
    (3, send_rubbish),
    (3, repeat),
    (4, misuse_stream),
    (3, number_alone),
    (2, command_alone_in_session),
    (1, register_often),
    (2, open_twice),
    (1, send_too_much),
    (1, change_password),
    (1, vanish),
)
