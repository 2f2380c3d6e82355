"""The feature level at the gateway: what it refuses, and when the level may be raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from coordinator.app.reports import FRESH_REPORT_MS, SnapshotReports
from coordinator.base.roster import Roster
from coordinator.gateway.normalize import Normalizer, Origin
from coordinator.gateway.primary_calls import check_supported
from coordinator.gateway.reads import LINEARIZABLE, ReadStarter
from coordinator.gateway.routes import Routes
from coordinator.peers.messages import ReplicaReportMessage
from testkit.api_methods import API_FILES
from tests.coordinator.gateway.test_admission import AdmissionTrial
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import FEATURE_LEVEL_OFFSETS, FEATURE_LEVEL_TIMES
from viewstamp.routing import Method, MethodKind, methods_of_file
from viewstamp.tokens import AccessToken

TRANSACT, CREATE_STREAM, GET_STATUS, RAISE, DESCRIBE = 10, 200, 450, 408, 409
ROOT: Final = AccessToken(0, 1, 0)
NEEDED: Final = Reason.REASON_FEATURE_LEVEL_REQUIRED
OF_OFFSETS: Final = {
    *("TruncatePartitions", "ReportPartitionEnds", "ListWatermarks"),
    *("CommitOffsets", "ResetOffsets", "DeleteOffsets", "FetchOffsets"),
}
# With the list of all groups, which came with them.
OF_TIMES: Final = {"FindOffsets", "ListAllConsumerGroups"}


def _raised(routes: Routes, code: int, since_level: int) -> Method:
    """Let a method be of a higher level; return it."""
    method = routes.find(code)
    assert method is not None
    newer = replace(method, since_level=since_level)
    routes.add(newer)
    return newer


def _world() -> tuple[AdmissionTrial, Routes]:
    """Return commands over a log, and their routes, in which CreateStream is of level 3."""
    world = AdmissionTrial()
    routes = world.commands.routes
    routes.level_in_force = lambda: 2
    _raised(routes, CREATE_STREAM, 3)
    return world, routes


async def test_a_command_above_the_level_is_refused_before_the_log() -> None:
    """A command that no older build could read enters the log only once the level is raised."""
    world, routes = _world()
    with pytest.raises(
        Refusal, match="CreateStream needs feature level 3, and 2 is in force"
    ) as it:
        await world.admit(1)
    assert it.value.reason == NEEDED
    assert world.logged == []
    with pytest.raises(Refusal, match="needs feature level 3"):
        routes.public("/viewstamp.api.streams.v1.StreamsService/CreateStream")
    assert not routes.may_enter(CREATE_STREAM)
    routes.level_in_force = lambda: 3
    await world.admit(1)
    assert len(world.logged) == 1
    assert routes.may_enter(CREATE_STREAM)


@pytest.mark.parametrize(("code", "reason"), [(CREATE_STREAM, NEEDED), (RAISE, None)])
async def test_a_part_of_a_transaction_above_the_level_is_refused(
    code: int, reason: Reason.ValueType | None
) -> None:
    """Neither a transaction nor a command that must come alone gets around the level."""
    _, routes = _world()
    transaction = submit_pb2.TransactRequest(parts=[submit_pb2.TransactionPart(code=code)])
    span = log_pb2.LoggedSpan(code=TRANSACT, count=1, items=frame(transaction.SerializeToString()))
    method = routes.public_code(TRANSACT, MethodKind.COMMAND)
    with pytest.raises(Refusal) as caught:
        await Normalizer(routes, {}).normalize(method, span, Origin(0, 0, 0, 0, b"", 0))
    assert caught.value.reason == (reason or Reason.REASON_MALFORMED_REQUEST)


def _fields() -> list[tuple[Method, str]]:
    """Return the fields of commands that count from a level above 1 on."""
    return [
        (method, name)
        for file in API_FILES
        for method in methods_of_file(file)
        for name in method.field_levels
    ]


@pytest.mark.parametrize(
    ("method", "name"), _fields(), ids=lambda each: each if isinstance(each, str) else each.name
)
async def test_a_field_above_the_level_is_refused(method: Method, name: str) -> None:
    """Neither alone nor among others nor in a transaction does it get to machines that ignore it.

    Whoever only wants to validate would else change something.
    """
    level = method.field_levels[name]
    routes = Routes(lambda: level - 1)
    routes.add(replace(method, since_level=1))
    set_, unset = method.request(), method.request().SerializeToString()
    # A revision of 0 is an expectation, too.
    setattr(set_, name, True if name == "validate_only" else 0)
    payload = set_.SerializeToString()
    routes.check_command(method, unset)
    attempts: list[Callable[[], None]] = [
        lambda: routes.check_command(method, payload),
        lambda: routes.check_fields(method, frame(unset) + frame(payload) + frame(unset)),
    ]
    for attempt in attempts:
        with pytest.raises(Refusal, match=f"`{name}` of {method.name} needs feature level") as it:
            attempt()
        assert it.value.reason == NEEDED
    if method.name not in {"Transact", "EndSession"}:
        part = submit_pb2.TransactionPart(code=method.code, request=payload)
        items = frame(submit_pb2.TransactRequest(parts=[part]).SerializeToString())
        span = log_pb2.LoggedSpan(code=TRANSACT, count=1, items=items)
        transact = routes.public_code(TRANSACT, MethodKind.COMMAND)
        with pytest.raises(Refusal, match="needs feature level"):
            await Normalizer(routes, {}).normalize(transact, span, Origin(0, 0, 0, 0, b"", 0))
    routes.level_in_force = lambda: level
    routes.check_command(method, payload)


def test_what_cannot_be_read_is_left_to_its_owner() -> None:
    """A malformed command passes the look at its fields: its owner refuses it, the same for all."""
    routes = Routes(lambda: 1)
    (method,) = (m for m, name in _fields() if m.name == "DeleteSnapshot" and name[0] == "v")
    routes.check_fields(method, b"\x0a\x05")
    routes.check_command(method, b"\xff")


async def test_a_field_above_the_level_is_refused_before_the_log() -> None:
    """A request of a session with such a field takes no number and gets into no log."""
    world = AdmissionTrial()
    routes = world.commands.routes
    routes.level_in_force = lambda: 1
    method = routes.find(CREATE_STREAM)
    assert method is not None
    routes.add(replace(method, field_levels={"name": 2}))
    named = frame(streams_service_pb2.CreateStreamRequest(name="a").SerializeToString())
    spans = [submit_pb2.Span(code=CREATE_STREAM, count=1, items=named)]
    with pytest.raises(Refusal, match="`name` of CreateStream needs feature level 2"):
        await world.admit_spans(1, spans)
    assert world.logged == []
    routes.level_in_force = lambda: 2
    await world.admit_spans(1, spans)
    assert len(world.logged) == 1


def test_a_description_needs_its_level() -> None:
    """The coordinator serves its own commands from the level that introduced them."""
    routes = Routes()
    routes.level_in_force = lambda: 2
    with pytest.raises(Refusal, match="SetClusterDescription needs feature level 3, and 2 is"):
        routes.public_code(DESCRIBE, MethodKind.COMMAND)
    routes.level_in_force = lambda: 3
    assert routes.public_code(DESCRIBE, MethodKind.COMMAND).name == "SetClusterDescription"


async def test_a_read_above_the_level_is_refused() -> None:
    """Queries have a level, too: the state that they show may not exist yet."""
    routes = Routes()
    routes.level_in_force = lambda: 2
    _raised(routes, GET_STATUS, 3)
    reads = ReadStarter(routes, object())  # type: ignore[arg-type]
    span = submit_pb2.Span(code=GET_STATUS, count=1, items=frame(b""))
    with pytest.raises(Refusal, match="needs feature level 3"):
        reads.start([span], ROOT, 0, LINEARIZABLE)


@pytest.mark.parametrize(
    ("level", "methods"),
    [
        (FEATURE_LEVEL_OFFSETS - 1, OF_OFFSETS | OF_TIMES),
        (FEATURE_LEVEL_OFFSETS, OF_TIMES),
        (FEATURE_LEVEL_TIMES - 1, OF_TIMES),
        (FEATURE_LEVEL_TIMES, set()),
    ],
)
def test_offsets_need_their_level(level: int, methods: set[str]) -> None:
    """Below a level the gateway refuses its methods of offsets, and no others of their domains."""
    routes, refused = Routes(lambda: level), set()
    files = (streams_service_pb2.DESCRIPTOR, consumer_groups_service_pb2.DESCRIPTOR)
    for method in (method for file in files for method in methods_of_file(file)):
        routes.add(method)
        if not method.internal and not routes.may_enter(method.code):
            with pytest.raises(Refusal) as caught:
                routes.public_code(method.code, method.kind)
            assert caught.value.reason == NEEDED
            refused.add(method.name)
    assert refused == methods


def _report(replica: int, level: int, status: int) -> ReplicaReportMessage:
    """Return what a replica reports of itself."""
    return ReplicaReportMessage(b"", replica, status, 1, 1, 1, 1, 0, "", feature_level_max=level)


def test_who_is_not_heard_supports_nothing() -> None:
    """A replica that is down, halted, silent or never heard is not known to support a level."""
    now_ms = 0
    reports = SnapshotReports(Roster.founding(0, 3, 2), lambda: now_ms)
    normal, halted = cluster_pb2.REPLICA_STATUS_NORMAL, cluster_pb2.REPLICA_STATUS_HALTED
    reports.heard(_report(1, 3, normal))
    now_ms = FRESH_REPORT_MS + 1
    reports.heard(_report(2, 3, normal))
    reports.heard(_report(3, 3, halted))
    assert reports.supported_levels() == {1: 0, 2: 3, 3: 0, 4: 0}


def test_every_replica_must_support_the_level() -> None:
    """The refusal names each replica that lacks the level, with the level that it supports."""
    check_supported(3, {0: 3, 1: 4})
    with pytest.raises(Refusal, match="replica 1 up to 2, replica 2 was not heard") as caught:
        check_supported(3, {0: 3, 1: 2, 2: 0})
    assert caught.value.reason == Reason.REASON_FEATURE_LEVEL_UNSUPPORTED
