"""A small log with commands of several methods, for tests of how it is shown."""

from __future__ import annotations

from google.protobuf.message import Message

from testkit.journal_builders import chain
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.sessions.v1.sessions_service_pb2 import RegisterSessionRequest
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import BeginSnapshotRequest
from viewstamp.api.streams.v1.streams_service_pb2 import CreateStreamRequest, CreateTopicRequest
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1.users_service_pb2 import CreateUserRequest, FoundRequest
from viewstamp.format.prepare import SealedPrepare
from viewstamp.framing import frame
from viewstamp.journals.logged_commands import commands_by_code
from viewstamp.limits import SYSTEM_USER_ID

CODES = {method.request.DESCRIPTOR.name: code for code, method in commands_by_code().items()}
HASH = "argon2-hash-that-nobody-sees"


def body(message: Message, *, user_id: int = 7, session_id: int = 2, number: int = 1) -> bytes:
    """Return the body of an entry with one command."""
    item = frame(message.SerializeToString())
    code = CODES[message.DESCRIPTOR.name]
    span = log_pb2.LoggedSpan(code=code, count=1, items=item, user_id=user_id)
    return _of(span, session_id, number)


def refused_body() -> bytes:
    """Return the body of an entry whose command was refused before the log."""
    error = errors_pb2.Error(reason=errors_pb2.REASON_UNAUTHENTICATED)
    refused = [errors_pb2.IndexedError(index=0, error=error)]
    span = log_pb2.LoggedSpan(
        code=CODES["CreateStreamRequest"], count=1, items=frame(b""), user_id=7, refused=refused
    )
    return _of(span, 2, 4)


def _of(span: log_pb2.LoggedSpan, session_id: int, number: int) -> bytes:
    request = log_pb2.LoggedRequest(session_id=session_id, number=number, spans=[span])
    return log_pb2.PrepareBody(requests=[request]).SerializeToString()


def sample() -> list[SealedPrepare]:
    """Return seven entries: a founding, a session, commands, a refusal and a cut of a snapshot."""
    topic = CreateTopicRequest(stream=Identifier(name="shop"), name="orders", partitions_count=4)
    part = submit.TransactionPart(
        code=CODES["CreateTopicRequest"], request=topic.SerializeToString()
    )
    bodies = [
        body(FoundRequest(root_password_hash=HASH), user_id=SYSTEM_USER_ID, session_id=0, number=0),
        body(RegisterSessionRequest(nonce=bytes(16)), session_id=0, number=0),
        body(CreateStreamRequest(name="shop\x1b[2J")),
        body(CreateUserRequest(username="alice", password_hash=HASH), number=2),
        body(submit.TransactRequest(parts=[part]), number=3),
        refused_body(),
        body(BeginSnapshotRequest(generation=1), user_id=SYSTEM_USER_ID, session_id=0, number=0),
    ]
    return chain(len(bodies), bodies=dict(enumerate(bodies, start=1)))
