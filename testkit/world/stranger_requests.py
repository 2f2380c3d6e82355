"""What programs that are not ours send, and the reason with which each has to be refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc.aio
from google.protobuf.message import Message

from testkit.api_methods import methods_by_request
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_api
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_api
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_api
from viewstamp.client import STALE, RawSession
from viewstamp.client.link import SUBMIT_PATH
from viewstamp.client.methods import method_of
from viewstamp.client.transport import Endpoint, bearer, unary
from viewstamp.client.watch_calls import WATCH_PATH
from viewstamp.errors import Refusal
from viewstamp.framing import frame, frame_all
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.clients import Access

_TIMEOUT_S: Final = 4.0
_RUBBISH: Final = b"\xff"
# A frame that promises more than there is.
_NO_FRAME: Final = b"\x05a"
_OTHER_USER: Final = "another stranger"
_OTHER_PASSWORD: Final = "correct horse"
_UNKNOWN_CODE: Final = 60_000
_UNKNOWN_DOMAIN: Final = 99
_OTHER_CLUSTER: Final = b"\x77" * limits.CLUSTER_ID_BYTES
_SNAPSHOTS: Final = "/viewstamp.api.snapshots.v1.SnapshotsService/"
_LISTING: Final = streams_api.ListStreamsRequest()
_LIST_PATH: Final = method_of(_LISTING).path
# Rubbish makes a primary step down, too: the method reads no request.
_READS_NO_REQUEST: Final = frozenset({"StepDown", "Submit"})
_TOO_LARGE_REASON: Final = Reason.REASON_COMMAND_TOO_LARGE
_MALFORMED: Final = Reason.REASON_MALFORMED_REQUEST

Sending = Callable[["StrangerAccess"], Awaitable["Reason.ValueType | None"]]


class StrangeRequest(NamedTuple):
    """A request: what it is, the reasons that are due (None for an answer), and who sends it."""

    what: str
    due: tuple[Reason.ValueType | None, ...]
    send: Sending


class StrangerAccess:
    """How a program reaches the cluster: as root, at one replica until that does not lead."""

    def __init__(self, name: str, random: Random, access: Access) -> None:
        self.name = name
        self._random = random
        self._access = access
        self._address = random.choice(access.addresses)
        self._token = ""
        self._session_id = 0

    def was_refused(self, refusal: Refusal) -> None:
        """Forget what a refusal says is over, and ask another replica if this one does not lead."""
        if refusal.reason == Reason.REASON_UNAUTHENTICATED:
            self._token = ""
        if refusal.reason == Reason.REASON_SESSION_EVICTED:
            self._session_id = 0
        if refusal.reason == Reason.REASON_NOT_PRIMARY:
            self.go_elsewhere()

    def go_elsewhere(self) -> None:
        """Ask any replica from now on."""
        self._address = self._random.choice(self._access.addresses)

    @property
    def where(self) -> Endpoint:
        """The replica that it asks."""
        return Endpoint(self._address)

    async def metadata(self) -> Any:
        """Return the metadata of a caller who has logged in. Raises Refusal, AioRpcError."""
        return bearer(await self.token())

    async def token(self) -> str:
        """Return an access token of root. Raises Refusal, AioRpcError."""
        if not self._token:
            request = users_api.LoginRequest(username=ROOT_USERNAME, password=self._access.password)
            async with self.where.open() as channel:
                answer = await unary(channel, request, timeout_s=_TIMEOUT_S)
            self._token = answer.access_token
        return self._token

    async def session(self) -> RawSession:
        """Return its session, not open yet. Raises Refusal, AioRpcError."""
        return RawSession(self.where, await self.token(), session_id=self._session_id)

    def keep(self, session: RawSession) -> None:
        """Use a session again."""
        self._session_id = session.session_id


# --- Ways to send ---


async def _call(
    path: str, payload: bytes, extra: Sequence[tuple[str, str]], s: StrangerAccess
) -> None:
    """Make a call of one answer."""
    metadata = (*await s.metadata(), *extra)
    async with s.where.open() as channel:
        rude: Any = channel.unary_unary(path)
        await rude(payload, metadata=metadata, timeout=_TIMEOUT_S)


async def _call_alone(metadata: Sequence[tuple[str, str]], s: StrangerAccess) -> None:
    """Make a call with nothing but this metadata."""
    async with s.where.open() as channel:
        rude: Any = channel.unary_unary(_LIST_PATH)
        await rude(b"", metadata=metadata, timeout=_TIMEOUT_S)


async def _call_of_many(path: str, payload: bytes, s: StrangerAccess) -> None:
    """Make a call of many answers, and read the first one."""
    metadata = await s.metadata()
    async with s.where.open() as channel:
        rude: Any = channel.unary_stream(path)
        call = rude(payload, metadata=metadata, timeout=_TIMEOUT_S)
        await call.read()


async def _watch(request: watch_api.WatchRequest, s: StrangerAccess) -> None:
    await _call_of_many(WATCH_PATH, request.SerializeToString(), s)


async def _stream(messages: Sequence[bytes], s: StrangerAccess) -> Reason.ValueType | None:
    """Open a Submit stream without a session, send messages, and return what answers the last."""
    metadata = await s.metadata()
    async with s.where.open() as channel:
        rude: Any = channel.stream_stream(SUBMIT_PATH)
        call = rude(metadata=metadata, timeout=_TIMEOUT_S)
        for message in messages:
            await call.write(message)
        while (encoded := await call.read()) is not grpc.aio.EOF:
            answer = submit_api.SubmitResponse.FromString(encoded)
            if not answer.HasField("opened"):
                return _reason_in(answer)
        raise EOFError("the cluster ended the stream")


async def _submit(
    spans: Sequence[submit_api.Span], s: StrangerAccess, *, number: int | None = None
) -> Reason.ValueType | None:
    """Send spans as the next request of a session, and return why they were refused."""
    async with await s.session() as session:
        s.keep(session)
        number = session.last_request_number + 1 if number is None else number
        command = submit_api.CommandRequest(number=number, spans=spans)
        await session.send(submit_api.SubmitRequest(command=command))
        return _reason_in((await session.receive()).message)


async def _use_session_of_another(s: StrangerAccess) -> None:
    """Call under a number of root's session, as a user who has just been made."""
    async with await s.session() as session:
        s.keep(session)
    request = users_api.LoginRequest(username=_OTHER_USER, password=_OTHER_PASSWORD)
    made = users_api.CreateUserRequest(username=_OTHER_USER, password=_OTHER_PASSWORD)
    async with s.where.open() as channel:
        try:
            await unary(channel, made, access_token=await s.token(), timeout_s=_TIMEOUT_S)
        except Refusal as refusal:
            if refusal.reason != Reason.REASON_USER_EXISTS:
                raise
        token = (await unary(channel, request, timeout_s=_TIMEOUT_S)).access_token
        rude: Any = channel.unary_unary(method_of(_DELETION).path)
        session_id, number = str(session.session_id), str(session.last_request_number + 1)
        numbers = (("viewstamp-session", session_id), ("viewstamp-request", number))
        await rude(b"", metadata=(*bearer(token), *numbers), timeout=_TIMEOUT_S)


def _reason_in(answer: submit_api.SubmitResponse) -> Reason.ValueType | None:
    reply = answer.command if answer.HasField("command") else answer.read
    if reply.HasField("error"):
        return Refusal.from_error(reply.error).reason
    errors = [error for span in reply.spans for error in span.errors]
    return Refusal.from_error(errors[0].error).reason if errors else None


# --- What is sent ---


def _span(request: Message, count: int = 1) -> submit_api.Span:
    items = frame_all([request.SerializeToString()] * count)
    return submit_api.Span(code=method_of(request).code, count=count, items=items)


def _with(span: submit_api.Span, **changed: Any) -> submit_api.Span:
    result = submit_api.Span()
    result.CopyFrom(span)
    for name, value in changed.items():
        setattr(result, name, value)
    return result


def _parts(*requests: Message, code: int = 0) -> submit_api.TransactRequest:
    return submit_api.TransactRequest(
        parts=[
            submit_api.TransactionPart(
                code=code or method_of(each).code, request=each.SerializeToString()
            )
            for each in requests
        ]
    )


def _read(spans: Sequence[submit_api.Span]) -> bytes:
    read = submit_api.ReadRequest(read_id=1, consistency=STALE.to_proto(), spans=spans)
    return submit_api.SubmitRequest(read=read).SerializeToString()


_STREAM: Final = Identifier(name="of a stranger")
_DELETION: Final = streams_api.DeleteStreamRequest(stream=_STREAM)
_LOGIN: Final = users_api.LoginRequest(username="nobody", password="nothing at all")
_USER: Final = users_api.CreateUserRequest(username="stranger", password="short")
_END: Final = sessions_api.EndSessionRequest()
_OPEN: Final = submit_api.SubmitRequest(open=submit_api.OpenStream()).SerializeToString()
_COMMAND: Final = submit_api.SubmitRequest(
    command=submit_api.CommandRequest(number=1, spans=[_span(_DELETION)])
).SerializeToString()
_TRANSACT: Final = _span(_parts(_DELETION))
_TOO_MANY_USERS: Final = limits.NORMALIZED_COMMANDS_MAX + 1
_TOO_MANY_PARTS: Final = limits.TRANSACTION_PARTS_MAX + 1
_TOO_MANY_COMMANDS: Final = limits.REQUEST_COMMANDS_MAX + 1
_TOO_MANY_TRANSACTIONS: Final = limits.REQUEST_COMMANDS_MAX // limits.TRANSACTION_PARTS_MAX + 1
_TOO_LARGE: Final = b"\xff" * (limits.COMMAND_BYTES_MAX + 1)
_SESSIONS_OF: Final = sessions_api.ListUserSessionsRequest()


def _rubbish_everywhere() -> list[StrangeRequest]:
    """Return a call with rubbish of every method of one answer."""
    return [
        StrangeRequest(
            f"rubbish to {method.name}",
            (_MALFORMED,),
            partial(_call, method.path, _RUBBISH, ()),
        )
        for method in sorted(methods_by_request().values(), key=lambda each: each.path)
        if method.name not in _READS_NO_REQUEST
    ]


_WATCHES: Final = (
    ("a topic without a stream", watch_api.WatchRequest(topic=_STREAM)),
    ("a group without a topic", watch_api.WatchRequest(stream=_STREAM, group=_STREAM)),
    ("a stream without a name", watch_api.WatchRequest(stream=Identifier())),
    ("an unknown type", watch_api.WatchRequest(entity_types=["Nothing"])),
    (
        "users of a stream",
        watch_api.WatchRequest(stream=_STREAM, domains=[routing_pb2.STAGE_USERS]),
    ),
)
_UNKNOWN_STAGE: Any = _UNKNOWN_DOMAIN
_SPANS: Final[Sequence[tuple[str, Reason.ValueType | None, Sequence[submit_api.Span]]]] = (
    ("a span of no command", _MALFORMED, [_with(_span(_DELETION), count=0)]),
    ("a span that claims too much", _MALFORMED, [_with(_span(_DELETION), count=2)]),
    ("a span without frames", _MALFORMED, [_with(_span(_DELETION), items=_NO_FRAME)]),
    ("rubbish as a command", _MALFORMED, [_with(_span(_DELETION), items=frame(_RUBBISH))]),
    ("rubbish to end a session", _MALFORMED, [_with(_span(_END), items=frame(_RUBBISH))]),
    ("ends of a session without frames", _MALFORMED, [_with(_span(_END), items=_NO_FRAME)]),
    ("more ends of a session than there are", _MALFORMED, [_with(_span(_END), count=2)]),
    ("users without frames", _MALFORMED, [_with(_span(_USER), items=_NO_FRAME)]),
    ("too large a command", _TOO_LARGE_REASON, [_with(_span(_DELETION), items=_TOO_LARGE)]),
    ("too many commands", _TOO_LARGE_REASON, [_span(_DELETION, _TOO_MANY_COMMANDS)]),
    (
        "too many parts",
        _TOO_LARGE_REASON,
        [_span(_parts(*[_DELETION] * limits.TRANSACTION_PARTS_MAX))] * _TOO_MANY_TRANSACTIONS,
    ),
    (
        "an unknown command",
        Reason.REASON_UNIMPLEMENTED,
        [_with(_span(_DELETION), code=_UNKNOWN_CODE)],
    ),
    ("a read as a command", Reason.REASON_UNIMPLEMENTED, [_span(_LISTING)]),
    ("a transaction of nothing", _MALFORMED, [_span(_parts())]),
    ("two transactions in a span", _MALFORMED, [_with(_TRANSACT, items=_TRANSACT.items * 2)]),
    ("a transaction without frames", _MALFORMED, [_with(_TRANSACT, items=_NO_FRAME)]),
    ("a transaction of rubbish", _MALFORMED, [_with(_TRANSACT, items=frame(_RUBBISH))]),
    ("a transaction that ends a session", _MALFORMED, [_span(_parts(_END))]),
    (
        "a transaction of an unknown command",
        Reason.REASON_UNIMPLEMENTED,
        [_span(_parts(_DELETION, code=_UNKNOWN_CODE))],
    ),
    ("too large a transaction", _MALFORMED, [_span(_parts(*[_DELETION] * _TOO_MANY_PARTS))]),
    (
        "too many passwords",
        _TOO_LARGE_REASON,
        [_span(_USER, _TOO_MANY_USERS)],
    ),
)

_READS: Final = (
    ("no frame", _with(_span(_SESSIONS_OF), items=_NO_FRAME)),
    ("a span that claims too much", _with(_span(_SESSIONS_OF), count=2)),
    ("rubbish", _with(_span(_SESSIONS_OF), items=frame(_RUBBISH))),
    ("no frame of a stream", _with(_span(_LISTING), items=_NO_FRAME)),
)

REQUESTS: Final[Sequence[StrangeRequest]] = (
    *_rubbish_everywhere(),
    *(
        StrangeRequest(f"a watch of {what}", (_MALFORMED,), partial(_watch, asked))
        for what, asked in _WATCHES
    ),
    *(StrangeRequest(what, (due,), partial(_submit, spans)) for what, due, spans in _SPANS),
    StrangeRequest(
        "a watch of an unknown domain",
        (_MALFORMED,),
        partial(_watch, watch_api.WatchRequest(domains=[_UNKNOWN_STAGE])),
    ),
    StrangeRequest(
        "a watch of another cluster",
        (Reason.REASON_REVISION_COMPACTED,),
        partial(_watch, watch_api.WatchRequest(from_revision=1, cluster_id=_OTHER_CLUSTER)),
    ),
    StrangeRequest(
        "a watch of rubbish", (_MALFORMED,), partial(_call_of_many, WATCH_PATH, _RUBBISH)
    ),
    *(
        StrangeRequest(
            f"rubbish to {name}", (_MALFORMED,), partial(_call_of_many, _SNAPSHOTS + name, _RUBBISH)
        )
        for name in ("VerifySnapshot", "DownloadSnapshot")
    ),
    StrangeRequest("a stream of rubbish", (_MALFORMED,), partial(_stream, (_RUBBISH,))),
    StrangeRequest(
        "rubbish behind the opening of a stream",
        (_MALFORMED,),
        partial(_stream, (_OPEN, _RUBBISH)),
    ),
    StrangeRequest("a stream that is not opened", (_MALFORMED,), partial(_stream, (_COMMAND,))),
    StrangeRequest(
        "a command without a session",
        (Reason.REASON_SESSION_REQUIRED,),
        partial(_stream, (_OPEN, _COMMAND)),
    ),
    StrangeRequest(
        "a read of an unknown code",
        (Reason.REASON_UNIMPLEMENTED,),
        partial(_stream, (_OPEN, _read([_with(_span(_LISTING), code=_UNKNOWN_CODE)]))),
    ),
    StrangeRequest(
        "a login among other reads",
        (_MALFORMED,),
        partial(_stream, (_OPEN, _read([_span(_LOGIN)]))),
    ),
    StrangeRequest("a read of nothing", (_MALFORMED,), partial(_stream, (_OPEN, _read([])))),
    *(
        StrangeRequest(
            f"{what} among reads", (_MALFORMED,), partial(_stream, (_OPEN, _read([span])))
        )
        for what, span in _READS
    ),
    StrangeRequest(
        "a number of another's session", (Reason.REASON_SESSION_EVICTED,), _use_session_of_another
    ),
    StrangeRequest("request 0", (_MALFORMED,), partial(_submit, [_span(_DELETION)], number=0)),
    StrangeRequest(
        "a request far ahead",
        (Reason.REASON_REQUEST_GAP, Reason.REASON_OVERLOADED),
        partial(_submit, [_span(_DELETION)], number=1 << 40),
    ),
    StrangeRequest(
        "a number without a session",
        (_MALFORMED,),
        partial(_call, method_of(_DELETION).path, b"", (("viewstamp-request", "1"),)),
    ),
    StrangeRequest(
        "a consistency that there is not",
        (_MALFORMED,),
        partial(_call, _LIST_PATH, b"", (("viewstamp-consistency", "at-least=x"),)),
    ),
    StrangeRequest(
        "a consistency by its name",
        (None,),
        partial(_call, _LIST_PATH, b"", (("viewstamp-consistency", "linearizable"),)),
    ),
    StrangeRequest(
        "another scheme",
        (Reason.REASON_UNAUTHENTICATED,),
        partial(_call_alone, (("authorization", "Basic eA=="),)),
    ),
    StrangeRequest("no token", (Reason.REASON_UNAUTHENTICATED,), partial(_call_alone, ())),
)
