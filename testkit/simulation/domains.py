"""The real application: mux, sessions, users, streams and consumer groups, as composite tests do.

Clients have real sessions. What they ask for, and what the answers must be, comes from the model
of the composite tests, which follows the one history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from coordinator.mux import types as mux
from coordinator.mux.applied_digests import AppliedDigests
from coordinator.mux.stage import SERVICE_STAGES
from coordinator.vsr import Prepare
from testkit.checkers.checker import Executed
from testkit.composite.comparison import check_reply, reasons_alone
from testkit.composite.harness import CompositeReplica
from testkit.composite.model import CODES, NONCE_BYTES, SYSTEM_USER, Model, ModelAnswer
from testkit.composite.workload import CompositeWorkload
from testkit.logged_requests import decode_requests
from testkit.simulation.application import ApplicationKind
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.format.prepare import checksum_of
from viewstamp.framing import frame, unframe
from viewstamp.limits import (
    FEATURE_LEVEL_BOUNDED,
    GATEWAY_SESSION_ID,
    UNAPPLIED_PREPARES_MAX,
)

DIGEST_OPS: Final = 8
"""After every so many entries the stages come to rest, and their state is looked at as a whole."""

STEPS_AT_ONCE_MAX: Final = 12
SESSIONS_EVICTED: Final = errors_pb2.REASON_SESSION_EVICTED


@dataclass(frozen=True, slots=True)
class DomainRequest:
    """A request of a client; `logged` is its form in the log."""

    client: int
    number: int
    logged: bytes
    command_count: int


class DomainApplication(CompositeReplica):
    """The stages of one replica, each on its own, one step at a time."""

    def __init__(self, random: Random, state: bytes | None = None) -> None:
        super().__init__(random)
        assert state is None, "snapshots are of the compact application alone"
        self._random = random
        self._waiting: deque[Prepare] = deque()
        self._applied_op = 0

    @property
    def op(self) -> int:
        """the last entry that was applied."""
        return self._applied_op

    @property
    def applied_digests(self) -> AppliedDigests:
        """Those of the real mux."""
        return self.mux.digests

    @property
    def is_busy(self) -> bool:
        """Whether an entry waits or is on its way."""
        return bool(self._waiting or self.mux.unapplied)

    def start(self, prepare: Prepare) -> None:
        """Take in the next committed entry."""
        self._waiting.append(prepare)

    def step(self) -> list[Executed]:  # type: ignore[override]  # it says more than the base's
        """Let services go on by a few steps; return what applied."""
        while self._waiting and self._may_enter():
            self._enter(self._waiting.popleft())
        for _ in range(self._random.randint(1, STEPS_AT_ONCE_MAX)):
            if not super().step():
                break
        return self._applied()

    def _may_enter(self) -> bool:
        is_resting = self.mux.op % DIGEST_OPS == 0 and self.mux.unapplied > 0
        is_looked_at = self.mux.op > self._applied_op and self.mux.op % DIGEST_OPS == 0
        return not (is_resting or is_looked_at) and self.mux.unapplied < UNAPPLIED_PREPARES_MAX

    def _enter(self, prepare: Prepare) -> None:
        header = prepare.header
        self._carry_out(
            self.mux.commit(
                mux.CommittedPrepare(
                    op=header.op,
                    view=header.view,
                    first_revision=header.first_revision,
                    timestamp=header.timestamp,
                    feature_level=header.feature_level,
                    requests=decode_requests(prepare.body),
                )
            )
        )

    def _applied(self) -> list[Executed]:
        executed = []
        while self._applied_op + 1 in self.replies:
            self._applied_op += 1
            replies = self.replies[self._applied_op]
            effective = tuple(
                filter(None, (_effective(each, self._applied_op) for each in replies))
            )
            is_resting = self._applied_op % DIGEST_OPS == 0 and self.mux.unapplied == 0
            digest = checksum_of(b"".join(self.digests().values())) if is_resting else None
            executed.append(Executed(self._applied_op, replies, effective, digest))
        return executed

    def crash_stage(self) -> bool:
        """Let one service die. It starts empty and gets its batches again."""
        self.restart(self._random.choice(SERVICE_STAGES))
        return True

    def save(self) -> bytes:
        """Snapshots come from the compact application alone."""
        raise AssertionError("snapshot_ops must be 0 with this application")

    def read(self, query: Any) -> Any:
        """Reads come from the compact application alone."""
        raise AssertionError("nobody reads the domains here")


def _effective(reply: mux.RequestReply, op: int) -> Hashable:
    """What took effect for the first time in this entry, as far as sessions can tell."""
    is_counted = reply.session_id != GATEWAY_SESSION_ID and reply.number > 0
    is_first = reply.error is None and reply.op == op
    return (reply.session_id, reply.number) if is_counted and is_first else None


class DomainModel:
    """The model of the composite tests, along the one history."""

    def __init__(self) -> None:
        self.model = Model()
        self._expected: dict[bytes, list[tuple[int, ModelAnswer]]] = {}
        self._levels: dict[int, int] = {}  # by op

    def commit(self, prepare: Prepare) -> None:
        """Follow the next entry."""
        self._levels[prepare.op] = prepare.header.feature_level
        requests = log_pb2.PrepareBody.FromString(prepare.body).requests
        level = prepare.header.feature_level
        answers = self.model.commit(prepare.header.timestamp, requests, level)
        for request, answer in zip(requests, answers, strict=True):
            key = request.SerializeToString(deterministic=True)
            self._expected.setdefault(key, []).append((prepare.op, answer))

    def wrong_reply(self, request: DomainRequest, op: int, reply: mux.RequestReply) -> str | None:
        """Compare a reply with the model's to the same request in the same entry."""
        answer = next((a for at, a in self._expected.get(request.logged, ()) if at == op), None)
        if answer is None:
            return f"it is not in entry {op} of the history"
        is_repeated = reply.op != op
        if is_repeated and self._levels[reply.op] < FEATURE_LEVEL_BOUNDED:
            answer = reasons_alone(answer)  # no more is kept of refusals at level 1
        try:
            check_reply(reply, answer)
        except AssertionError as error:
            return str(error)
        return None

    def wrong_read(self, query: Any, op: int, value: Any) -> str | None:
        """Nobody reads."""
        return None


class DomainLoad:
    """One client: it registers a session, uses it, and registers another when that has ended."""

    def __init__(self, model: DomainModel, random: Random) -> None:
        self._workload = CompositeWorkload(random, model.model)
        self._model = model.model
        self._random = random
        self._session = 0
        self._user = 0
        self._number = 0
        self._nonce = random.randbytes(NONCE_BYTES)

    def request(self, client: int, number: int) -> DomainRequest:
        """Register, or do anything that the composite workload draws."""
        self._workload.learn()
        if self._session == 0:
            logged = self._registration()
        else:
            spans = self._workload.spans(self._user, self._session)
            logged = log_pb2.LoggedRequest(
                session_id=self._session,
                number=self._number + 1,
                acked=self._number,
                spans=spans,
            )
        encoded = logged.SerializeToString(deterministic=True)
        return DomainRequest(client, number, encoded, sum(span.count for span in logged.spans))

    def _registration(self) -> log_pb2.LoggedRequest:
        users = [user.id for user in self._model.world.users.values() if user.active]
        self._user = self._random.choice(users) if users and self._random.random() < 0.5 else 0
        payload = sessions_service_pb2.RegisterSessionRequest(nonce=self._nonce)
        span = log_pb2.LoggedSpan(
            code=CODES["RegisterSession"],
            count=1,
            items=frame(payload.SerializeToString()),
            user_id=self._user,
            credential_revision=self._workload.stamp(self._user),
        )
        return log_pb2.LoggedRequest(session_id=GATEWAY_SESSION_ID, spans=[span])

    def query(self) -> Any:
        """Nobody reads."""
        raise AssertionError("reads_percent must be 0 with this application")

    def answered(self, request: DomainRequest, reply: mux.RequestReply) -> None:
        """Learn which session was opened, which number was used up, or that the session ended."""
        if self._session == 0:
            self._registered(reply)
        elif reply.error is None:
            self._number += 1
        elif errors_pb2.Error.FromString(reply.error).reason == SESSIONS_EVICTED:
            self._begin_anew()
        elif self._random.random() < 0.5:
            # Its credentials may have changed for good: another session gets new ones.
            self._begin_anew()

    def _registered(self, reply: mux.RequestReply) -> None:
        result = unframe(reply.spans[0].results)[0] if reply.spans else b""
        if result:
            response = sessions_service_pb2.RegisterSessionResponse.FromString(result)
            self._session = response.session_id
            self._number = 0
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._session = 0
        self._nonce = self._random.randbytes(NONCE_BYTES)


def encode_requests(requests: Sequence[DomainRequest]) -> bytes:
    """The body of an entry."""
    body = log_pb2.PrepareBody()
    for request in requests:
        body.requests.append(log_pb2.LoggedRequest.FromString(request.logged))
    return body.SerializeToString(deterministic=True)


def bootstrap_body(nonces: Sequence[bytes]) -> bytes:
    """The body of op 1."""
    found = users_service_pb2.FoundRequest(root_password_hash="root", boot_nonces=nonces)
    span = log_pb2.LoggedSpan(
        code=CODES["Found"],
        count=1,
        items=frame(found.SerializeToString(deterministic=True)),
        user_id=SYSTEM_USER,
    )
    request = log_pb2.LoggedRequest(session_id=GATEWAY_SESSION_ID, spans=[span])
    return log_pb2.PrepareBody(requests=[request]).SerializeToString(deterministic=True)


def read_initial_members(body: bytes) -> Sequence[bytes]:
    """The nonces of op 1."""
    span = log_pb2.PrepareBody.FromString(body).requests[0].spans[0]
    found = users_service_pb2.FoundRequest.FromString(unframe(span.items)[0])
    return list(found.boot_nonces)


DOMAINS: Final = ApplicationKind(
    replica=DomainApplication,
    model=DomainModel,
    load=DomainLoad,
    encode=encode_requests,
    bootstrap_body=bootstrap_body,
    read_initial_members=read_initial_members,
)
