"""The batcher makes only prepares that the core accepts, whatever callers send."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.replica import batcher as module
from coordinator.replica.batcher import Batcher, LooseCommand, SessionRequest
from tests.coordinator.replica import prepare_runs
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import (
    COMMANDS_IN_TURN,
    COMMANDS_PER_RUN,
    PREPARE_BODY_BYTES_MAX,
    PREPARE_COMMANDS_MAX,
    PREPARE_RUNS_MAX,
    REQUEST_RUNS_MAX,
    SYSTEM_USER_ID,
)

TRACE_PARENT = "00-" + 32 * "a" + "-" + 16 * "b" + "-01"
U64_MAX = 2**64 - 1


def loose(size: int, user_id: int = U64_MAX) -> LooseCommand:
    """Return a command with everything that adds to its size."""
    future = asyncio.Future[module.Reply](loop=_LOOP)
    return LooseCommand(2**32 - 1, bytes(size), user_id, U64_MAX, TRACE_PARENT, future)


def acknowledgement() -> SessionRequest:
    """Return a request without commands."""
    logged = log_pb2.LoggedRequest(session_id=1, acked=1)
    return SessionRequest(logged, asyncio.Future[module.Reply](loop=_LOOP))


_LOOP = asyncio.new_event_loop()


@given(st.lists(st.integers(0, PREPARE_BODY_BYTES_MAX), min_size=1, max_size=12), st.data())
def test_prepares_are_never_too_large(sizes: list[int], data: st.DataObject) -> None:
    """Bodies fit for any sizes and mix of commands, and every command is in exactly one body."""
    batcher, accepted = Batcher(), 0
    for size in sizes:
        try:
            batcher.add(loose(size, data.draw(st.sampled_from([0, 1, SYSTEM_USER_ID, U64_MAX]))))
        except Refusal as refusal:
            assert refusal.reason == Reason.REASON_COMMAND_TOO_LARGE
            assert size > PREPARE_BODY_BYTES_MAX - 200
        else:
            accepted += 1
    taken = 0
    while (batch := batcher.take()) is not None:
        assert batch.command_count
        assert len(batch.body) <= PREPARE_BODY_BYTES_MAX
        body = log_pb2.PrepareBody.FromString(batch.body)
        assert sum(span.count for r in body.requests for span in r.spans) == batch.command_count
        taken += batch.command_count
    assert taken == accepted


@pytest.mark.parametrize("below", range(0, 400, 7))
def test_largest_command(below: int) -> None:
    """Around the limit a lone command is either refused or makes a body that fits."""
    batcher = Batcher()
    try:
        batcher.add(loose(PREPARE_BODY_BYTES_MAX - below))
    except Refusal as refusal:
        assert refusal.reason == Reason.REASON_COMMAND_TOO_LARGE
        assert below < 200
    else:
        batch = batcher.take()
        assert batch is not None and len(batch.body) <= PREPARE_BODY_BYTES_MAX


def test_acknowledgements_do_not_make_a_prepare_endless() -> None:
    """Requests without commands count as requests: a prepare holds a limited number."""
    batcher = Batcher()
    for _ in range(PREPARE_COMMANDS_MAX + 1):
        batcher.add(acknowledgement())
    sizes = []
    while (batch := batcher.take()) is not None:
        assert batch.command_count == 0
        sizes.append(len(batch.requests))
    assert sizes == [PREPARE_COMMANDS_MAX, 1]


def test_waiting_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest requests count, and requests that are taken make room again."""
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 10 * 600)
    batcher = Batcher()
    with pytest.raises(Refusal) as caught:
        for _ in range(20):
            batcher.add(acknowledgement())
    assert caught.value.reason == Reason.REASON_OVERLOADED
    assert batcher.take() is not None
    batcher.add(acknowledgement())


async def test_refusing_all() -> None:
    """Every waiting caller is told, except those who have left."""
    batcher = Batcher()
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for future in futures:
        batcher.add(LooseCommand(200, b"", 0, 1, "", future))
    futures[0].cancel()
    batcher.refuse_all(Refusal(Reason.REASON_NO_SPACE, "full"))
    assert len(batcher) == 0
    for future in futures[1:]:
        with pytest.raises(Refusal, match="full"):
            await future


def request_of(user_id: int, commands: int, size: int = 0) -> SessionRequest:
    """Return a request of a session."""
    logged = log_pb2.LoggedRequest(session_id=user_id, number=1)
    logged.spans.add(code=1, count=commands, items=bytes(size), user_id=user_id)
    return SessionRequest(logged, asyncio.Future[module.Reply](loop=_LOOP), user_id)


def prepares(batcher: Batcher) -> list[list[int]]:
    """Take everything; return the users of the requests in each prepare."""
    taken = []
    while (batch := batcher.take()) is not None:
        taken.append([request.session_id for request in batch.requests])
    return taken


@pytest.mark.parametrize(("commands", "size"), [(1_000, 0), (8_190, 0), (1, 1_000_000)])
def test_a_flood_of_one_user_delays_nobody_by_more_than_a_turn(commands: int, size: int) -> None:
    """A user who comes last with few requests is in one of the first prepares, in order."""
    batcher = Batcher()
    for _ in range(40):
        batcher.add(request_of(1, commands, size))
    for commands_of_two in (1, 2, 3):
        batcher.add(request_of(2, commands_of_two))
    batcher.add(request_of(3, 1))
    taken = prepares(batcher)
    assert sorted(user_id for prepare in taken for user_id in prepare) == [1] * 40 + [2] * 3 + [3]
    assert [user_id for prepare in taken[:2] for user_id in prepare if user_id > 1] == [2, 2, 2, 3]


def test_large_requests_get_no_more_than_small_ones() -> None:
    """A user of the largest requests waits while others get as many turns as these weigh."""
    batcher = Batcher()
    for _ in range(4):
        batcher.add(request_of(1, 8_190))
    for _ in range(32):
        batcher.add(request_of(2, 1_023))
    order = [user_id for prepare in prepares(batcher) for user_id in prepare]
    second = [index for index, user_id in enumerate(order) if user_id == 1][1]
    assert 14 <= order[:second].count(2) <= 18


def test_loose_commands_of_many_users_share_a_request() -> None:
    """Turns cost no request to a crowd of single callers."""
    batcher = Batcher()
    for user_id in range(100):
        batcher.add(loose(10, user_id))
    batch = batcher.take()
    assert batch is not None
    assert (batch.command_count, len(batch.requests)) == (100, 1)
    assert [span.user_id for span in batch.requests[0].spans] == list(range(100))


ALTERNATING = ("UpdatePermissions", "CreateStream")


def batches(batcher: Batcher) -> list[module.PrepareBatch]:
    """Take everything."""
    taken = []
    while (batch := batcher.take()) is not None:
        taken.append(batch)
    return taken


@pytest.mark.parametrize(
    "names",
    [
        ALTERNATING,
        ("DeleteStream", "UpdateUser"),
        ("DeleteStream", "CreateStream", "UpdateUser"),
        ("Transact",),
        ("CreateStream",),
    ],
)
@pytest.mark.parametrize("user_count", [1, 3])
def test_loose_commands_make_no_prepare_of_too_many_runs(
    names: tuple[str, ...], user_count: int
) -> None:
    """A prepare ends where its runs reach the limit, and not before; the rest goes next."""
    batcher = Batcher()
    for index in range(3_600):
        batcher.add(prepare_runs.loose(names[index % len(names)], index % user_count))
    taken = batches(batcher)
    runs = [prepare_runs.runs_of(batch) for batch in taken]
    assert max(runs) <= PREPARE_RUNS_MAX
    assert all(count == PREPARE_RUNS_MAX for count in runs[:-1])
    assert sum(batch.command_count for batch in taken) == 3_600


@pytest.mark.parametrize("name", ["UpdateUser", "UpdatePermissions", "CreateStream"])
def test_requests_of_one_run_share_runs_as_the_mux_does(name: str) -> None:
    """Many small requests fill prepares as far as their commands, or their runs, allow."""
    batcher = Batcher()
    for _ in range(3_000):
        batcher.add(prepare_runs.request([name]))
    runs = [prepare_runs.runs_of(batch) for batch in batches(batcher)]
    # Each request of UpdateUser asks sessions, to which the previous request sends back.
    full, rest = divmod(3_000, PREPARE_RUNS_MAX)
    assert runs == ([PREPARE_RUNS_MAX] * full + [rest] if name == "UpdateUser" else [1])


_PIECES = st.one_of(
    st.sampled_from(prepare_runs.KINDS).map(prepare_runs.loose),
    st.lists(st.sampled_from(prepare_runs.KINDS), min_size=1, max_size=5).map(prepare_runs.request),
    st.builds(acknowledgement),
)


@given(st.lists(_PIECES, max_size=60))
def test_no_mixture_has_more_runs_than_were_counted(
    waiting: list[LooseCommand | SessionRequest],
) -> None:
    """For any mixture of requests the mux makes at most as many runs as the batcher counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewstamp.limits.PREPARE_RUNS_MAX", 6)
        batcher = Batcher()
        for each in waiting:
            batcher.add(each)
        taken = batches(batcher)
    assert all(prepare_runs.runs_of(batch) <= 6 for batch in taken)
    commands = [1 if isinstance(w, LooseCommand) else w.command_count for w in waiting]
    assert sum(batch.command_count for batch in taken) == sum(commands)


def test_the_largest_request_fits_whatever_went_before() -> None:
    """A request of as many runs as allowed waits for the next prepare, never for ever."""
    batcher = Batcher()
    for _ in range(5):
        batcher.add(prepare_runs.request(ALTERNATING * (REQUEST_RUNS_MAX // 2)))
    batcher.add(prepare_runs.request(["CreateStream"]))
    assert [len(batch.requests) for batch in batches(batcher)] == [1, 1, 1, 1, 2]


@pytest.mark.parametrize("spans", [0, 2, 16])
def test_a_flood_of_runs_delays_others_by_no_more_than_a_turn(spans: int) -> None:
    """Beside others who wait, a turn of one user has few runs: loose, or in small requests."""
    batcher = Batcher()
    for index in range(2_000):
        if spans:
            batcher.add(prepare_runs.request(ALTERNATING * (spans // 2)))
        else:
            batcher.add(prepare_runs.loose(ALTERNATING[index % 2]))
    for _ in range(3):
        batcher.add(prepare_runs.loose("CreateStream", user_id=2))
    first = batcher.take()
    assert first is not None
    users = [span.user_id for each in first.requests for span in each.spans]
    # Since they alternate, every second command begins a run that weighs as one command.
    assert users.index(2) <= 2 * COMMANDS_IN_TURN // COMMANDS_PER_RUN
