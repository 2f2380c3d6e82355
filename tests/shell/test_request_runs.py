"""A request that goes through the services again and again is refused, or weighs as it costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.gateway.request_runs import check_runs
from coordinator.gateway.shares import Shares
from tests.shell.test_admission import World
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.routing import methods_of_file

METHODS = {
    method.name: method
    for file in (streams_service_pb2.DESCRIPTOR, users_service_pb2.DESCRIPTOR, submit.DESCRIPTOR)
    for method in methods_of_file(file)
}
MOST = limits.REQUEST_RUNS_MAX


def runs_of(names: Sequence[str], count: int = 1) -> int:
    """Return the runs of spans of methods, of so many commands each."""
    return check_runs([METHODS[name] for name in names], [count] * len(names))


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["UpdatePermissions", "CreateStream"] * (MOST // 2 + 1), 1),
        (["DeleteStream", "UpdateUser"] * (MOST + 1), 1),
        (["Transact"], MOST + 1),
    ],
)
def test_too_many_runs_are_refused(names: Sequence[str], count: int) -> None:
    """Commands that cannot go together are refused beyond the limit, and say how to go on."""
    with pytest.raises(Refusal) as caught:
        runs_of(names, count)
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert int(caught.value.details["runs"]) > MOST


@pytest.mark.parametrize(
    ("names", "count", "runs"),
    [
        (["UpdatePermissions", "CreateStream"] * (MOST // 2), 1, MOST),
        (["CreateStream", "DeleteStream"] * (limits.REQUEST_COMMANDS_MAX // 2), 1, 1),
        (["UpdatePermissions", "CreateStream"], limits.REQUEST_COMMANDS_MAX // 2, 1),
        (["Transact"], MOST, MOST),
    ],
)
def test_what_goes_together_is_let_in(names: Sequence[str], count: int, runs: int) -> None:
    """As many runs as the limit pass, and any number of commands that share one."""
    assert runs_of(names, count) == runs


async def test_a_session_hears_of_it() -> None:
    """The gateway refuses before the log, and the number stays free."""
    world = World()
    pair = [METHODS["UpdatePermissions"], METHODS["CreateStream"]]
    spans = [submit.Span(code=m.code, count=1, items=b"\x0a\x00") for m in pair] * MOST
    with pytest.raises(Refusal) as caught:
        await world.admit_spans(1, spans)
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert not world.logged
    await world.admit(1)
    assert len(world.logged) == 1


def test_runs_weigh_more_than_commands() -> None:
    """A user has fewer requests of many runs under way than of as many commands."""
    shares = Shares(World().mux.replies, lambda _: None)
    taken = [shares.take_of_session(1, 5, MOST, 100, MOST) for _ in range(2)]
    with pytest.raises(Refusal) as caught:
        shares.take_of_session(1, 5, MOST, 100, MOST)
    assert caught.value.reason == Reason.REASON_QUOTA_EXCEEDED
    for each in taken:
        shares.give_back(each)
    assert not len(shares)
