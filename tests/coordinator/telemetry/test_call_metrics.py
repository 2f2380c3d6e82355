"""Calls on the Prometheus page: how long each method took, how calls ended, and logins."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from coordinator.gateway.routes import Routes
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.gateway.unary import Elsewhere, UnaryCalls
from coordinator.gateway.watched_requests import WatchedRequest
from coordinator.replica.batcher import AnsweredSpan, Reply
from coordinator.telemetry.calls import CallMetrics
from coordinator.telemetry.metrics import ReplicaMetrics
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal, reason_name
from viewstamp.limits import REQUEST_COMMANDS_MAX
from viewstamp.routing import methods_of_file
from viewstamp.telemetry.sampling import Sampler
from viewstamp.tokens import AccessToken

CREATE = "/viewstamp.api.users.v1.UsersService/CreateUser"
GET = "/viewstamp.api.users.v1.UsersService/GetUser"
LOGIN = "/viewstamp.api.users.v1.UsersService/Login"
STRANGE = "/some.Service/WithASecretInIt"
UNCLAIMED_CODE = 60_000
ANSWERED = Reply(1, 5, 9, (AnsweredSpan(b"\x0a\x00", ()),))
DENIED = Refusal(Reason.REASON_PERMISSION_DENIED, "no")
Outcome = Reply | BaseException


def users_routes() -> Routes:
    """Return routes to the methods of users, and to the coordinator's own."""
    routes = Routes()
    for method in methods_of_file(users_service_pb2.DESCRIPTOR):
        routes.add(method)
    return routes


def watch(metrics: ReplicaMetrics) -> GatewayWatch:
    """Return the watch of a gateway that records no traces."""
    return GatewayWatch(users_routes(), None, Sampler(0.0), metrics)


def counted(metrics: ReplicaMetrics) -> dict[tuple[str, str], int]:
    """Return how many calls were counted, by method and status."""
    samples = [sample for family in metrics.calls.families() for sample in family.samples]
    return {
        (sample.labels["rpc"], sample.labels["code"]): int(sample.value)
        for sample in samples
        if sample.name == "viewstamp_call_seconds_count"
    }


def logins(metrics: CallMetrics) -> dict[str, int]:
    """Return how many logins were counted, by outcome."""
    samples = [sample for family in metrics.families() for sample in family.samples]
    return {
        sample.labels["outcome"]: int(sample.value)
        for sample in samples
        if sample.name == "viewstamp_logins_total"
    }


def refused_alone(reason: Reason.ValueType) -> Reply:
    """Return the reply to one call that its owner refused."""
    error = errors_pb2.IndexedError(index=0, error=errors_pb2.Error(reason=reason))
    return Reply(1, 5, 9, (AnsweredSpan(b"", (error,)),))


class PlainCall:
    """A unary call, whose abort raises what the transport's raises."""

    def invocation_metadata(self) -> tuple[()]:
        """Return none."""
        return ()

    def peer(self) -> str:
        """Return an address."""
        return "ipv4:127.0.0.1:1"

    async def abort(self, *_: object, **__: object) -> None:
        """End the call."""
        raise grpc.aio.AbortError


class OneOutcome:
    """Stands for authenticator, commands, reads and the primary elsewhere: each ends the same."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def principal(self, _: object) -> AccessToken:
        """Believe the caller."""
        return AccessToken(1, 1, 0)

    def check_credentials(self, _: object) -> None:
        """Believe the caller."""

    async def start_spans(self, *_: object) -> Reply:
        """Answer a read."""
        return self._end()

    def is_possible(self, _: object) -> bool:
        """Say that calls can be passed on."""
        return True

    async def forward(self, *_: object, **__: object) -> bytes:
        """Pass a call on, which ends there."""
        self._end()
        return b""

    def _end(self) -> Reply:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def refuse_as_backup() -> None:
    """Refuse as a replica that does not lead."""
    raise Refusal(Reason.REASON_NOT_PRIMARY, "ask the primary")


async def serve(path: str, outcome: Outcome, *, leads: bool = True) -> ReplicaMetrics:
    """Serve one unary call that ends like this; return what was counted."""
    metrics, part = ReplicaMetrics(str), OneOutcome(outcome)
    unused: Any = SimpleNamespace()
    anything: Any = part
    calls = UnaryCalls(
        bytes(16),
        users_routes(),
        *(anything, anything, unused, anything),
        (lambda: None) if leads else refuse_as_backup,
        watch(metrics),
        None if leads else Elsewhere(lambda: None, anything, unused),
    )
    context: Any = PlainCall()
    await asyncio.gather(calls.serve(path, b"", context), return_exceptions=True)
    return metrics


@pytest.mark.parametrize(
    ("path", "outcome", "expected"),
    [
        (GET, ANSWERED, ("GetUser", "OK")),
        (GET, refused_alone(Reason.REASON_USER_NOT_FOUND), ("GetUser", "NOT_FOUND")),
        (GET, DENIED, ("GetUser", "PERMISSION_DENIED")),
        (GET, asyncio.CancelledError(), ("GetUser", "CANCELLED")),
        (GET, ZeroDivisionError(), ("GetUser", "UNKNOWN")),
        (STRANGE, ANSWERED, ("unknown", "UNIMPLEMENTED")),
    ],
    ids=["answered", "refused", "refused before", "given up", "failed", "unknown method"],
)
async def test_each_unary_call_counts_once(
    path: str, outcome: Outcome, expected: tuple[str, str]
) -> None:
    """A call counts with its method and status however it ends; a strange path has one name."""
    assert counted(await serve(path, outcome)) == {expected: 1}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (ANSWERED, {}),
        (grpc.aio.AbortError(), {}),
        (Refusal(Reason.REASON_VIEW_CHANGE, "again"), {("CreateUser", "UNAVAILABLE"): 1}),
        (asyncio.CancelledError(), {("CreateUser", "CANCELLED"): 1}),
    ],
    ids=["answered there", "refused there", "nobody there", "given up"],
)
async def test_a_call_that_is_passed_on_counts_where_it_is_answered(
    outcome: Outcome, expected: dict[tuple[str, str], int]
) -> None:
    """A backup counts what it ends itself, and not what the primary counts."""
    assert counted(await serve(CREATE, outcome, leads=False)) == expected


def request(*spans: tuple[int, int]) -> submit_pb2.CommandRequest:
    """Return a request of spans, each a code and a number of commands."""
    return submit_pb2.CommandRequest(
        number=1, spans=[submit_pb2.Span(code=code, count=count) for code, count in spans]
    )


def code_of(name: str) -> int:
    """Return the code of a method of users."""
    return next(method.code for method in users_routes().methods() if method.name == name)


def spans_of_three() -> submit_pb2.CommandRequest:
    """Return a request of three creations, a deletion, and something that nobody claims."""
    return request((code_of("CreateUser"), 3), (code_of("DeleteUser"), 1), (UNCLAIMED_CODE, 1))


def reply(*reasons: Reason.ValueType) -> Reply:
    """Return the reply to `spans_of_three`, whose first commands were refused for these reasons."""
    errors = [
        errors_pb2.IndexedError(index=index, error=errors_pb2.Error(reason=reason))
        for index, reason in enumerate(reasons)
    ]
    return Reply(1, 5, 9, (AnsweredSpan(b"", errors), AnsweredSpan(b"", ())))


WHOLE = errors_pb2.Error(reason=Reason.REASON_SESSION_EVICTED)
EXISTS, QUOTA = Reason.REASON_USER_EXISTS, Reason.REASON_QUOTA_EXCEEDED
OTHERS = {("DeleteUser", "OK"): 1, ("unknown", "OK"): 1}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (reply(), {("CreateUser", "OK"): 3, **OTHERS}),
        (reply(EXISTS), {("CreateUser", "OK"): 2, ("CreateUser", "ALREADY_EXISTS"): 1, **OTHERS}),
        (reply(EXISTS, EXISTS, EXISTS), {("CreateUser", "ALREADY_EXISTS"): 3, **OTHERS}),
        (Reply(1, 5, 9, (), WHOLE), {("CreateUser", "ABORTED"): 1}),
        (Refusal(QUOTA, "later"), {("CreateUser", "RESOURCE_EXHAUSTED"): 1}),
    ],
    ids=["answered", "one refused", "all refused", "refused in the log", "refused before"],
)
def test_each_call_of_a_request_counts(
    outcome: Reply | Refusal, expected: dict[tuple[str, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of a request count by method and status, each as long as the request lasted."""
    metrics = ReplicaMetrics(str)
    moments = iter((1_000_000, 4_000_000))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(moments))
    watched = WatchedRequest(watch(metrics), spans_of_three(), 1)
    if isinstance(outcome, Refusal):
        watched.refused(outcome)
    else:
        watched.answered(outcome)
    monkeypatch.undo()
    assert counted(metrics) == expected
    total_s = sum(
        sample.value
        for family in metrics.calls.families()
        for sample in family.samples
        if sample.name == "viewstamp_call_seconds_sum"
    )
    assert total_s == pytest.approx(0.003 * sum(expected.values()))


@pytest.mark.parametrize("outcome", [Reply(1, 5, 9, (), WHOLE), Refusal(QUOTA, "later")])
def test_a_request_without_calls_may_be_refused(outcome: Reply | Refusal) -> None:
    """An acknowledgement has no method: its refusal counts under the name for none."""
    metrics = ReplicaMetrics(str)
    watch(metrics).took(request(), 0, outcome)
    ((method, _),) = counted(metrics)
    assert method == "unknown"
    metrics = ReplicaMetrics(str)
    watch(metrics).took(request(), 0, Reply(1, 5, 9, ()))
    assert counted(metrics) == {}


def test_a_gateway_without_a_page_counts_nothing() -> None:
    """Without metrics a call is not timed, and a request takes no notice of its end."""
    unwatched = GatewayWatch(users_routes(), None, Sampler(0.0), None)
    with unwatched.timed(LOGIN) as call:
        assert call is None
    unwatched.took(request((code_of("CreateUser"), 1)), 0, ANSWERED)


def test_a_liar_counts_once() -> None:
    """A refused request that claims billions of calls, in thousands of spans, is one call."""
    metrics = ReplicaMetrics(str)
    spans = [(code_of("CreateUser"), 2**31)] * (2 * REQUEST_COMMANDS_MAX)
    watch(metrics).took(request(*spans), 0, Refusal(Reason.REASON_COMMAND_TOO_LARGE, "split it"))
    assert counted(metrics) == {("CreateUser", "INVALID_ARGUMENT"): 1}


@pytest.mark.parametrize(
    ("path", "outcome", "expected"),
    [
        (LOGIN, ANSWERED, {"ok": 1}),
        (
            LOGIN,
            refused_alone(Reason.REASON_INVALID_CREDENTIALS),
            {"INVALID_CREDENTIALS": 1},
        ),
        (LOGIN, refused_alone(QUOTA), {"QUOTA_EXCEEDED": 1}),
        (LOGIN, Refusal(QUOTA, "later"), {"QUOTA_EXCEEDED": 1}),
        (LOGIN, Reply(1, 5, 9, (), WHOLE), {reason_name(WHOLE.reason): 1}),
        (LOGIN, Refusal(Reason.REASON_READ_DEADLINE, "late"), {"READ_DEADLINE": 1}),
        (GET, refused_alone(QUOTA), {}),
    ],
    ids=["ok", "wrong", "throttled", "no share", "whole", "late", "no login"],
)
async def test_logins_count_by_outcome(
    path: str, outcome: Outcome, expected: dict[str, int]
) -> None:
    """A login counts by its reason; the usual outcomes are shown from the start, at 0."""
    found = logins((await serve(path, outcome)).calls)
    assert found == {"ok": 0, "INVALID_CREDENTIALS": 0, "QUOTA_EXCEEDED": 0} | expected
