"""A request that goes through the services again and again is refused, or weighs as it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.gateway.shares import Shares
from coordinator.mux.run_shapes import PLAIN
from coordinator.replica.batcher import LooseCommand, SessionRequest
from tests.coordinator.gateway.test_admission import DONE, World
from tests.coordinator.replica.prepare_runs import (
    KINDS,
    METHODS,
    loose,
    request,
    shape_of,
    split_runs,
)
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.errors import Refusal
from viewstamp.framing import frame

MOST = limits.REQUEST_RUNS_MAX
ALTERNATING = ("UpdatePermissions", "CreateStream")


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (ALTERNATING * (MOST // 2 + 1), 1),
        (["DeleteStream", "UpdateUser"] * (MOST + 1), 1),
        (["Transact"], MOST + 1),
    ],
)
def test_too_many_runs_are_refused(names: Sequence[str], count: int) -> None:
    """Commands that cannot go together are refused beyond the limit, and say how to go on."""
    with pytest.raises(Refusal) as caught:
        shape_of(names, count)
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert int(caught.value.details["runs"]) > MOST


@pytest.mark.parametrize(
    ("names", "count", "runs"),
    [
        (ALTERNATING * (MOST // 2), 1, MOST),
        (["CreateStream", "DeleteStream"] * (limits.REQUEST_COMMANDS_MAX // 2), 1, 1),
        (ALTERNATING, limits.REQUEST_COMMANDS_MAX // 2, 2),
        (["Transact"], MOST, MOST),
        (["CreateStream"], limits.REQUEST_COMMANDS_MAX, 1),
    ],
)
def test_what_goes_together_is_let_in(names: Sequence[str], count: int, runs: int) -> None:
    """As many runs as the limit pass, and any number of commands that share one."""
    assert shape_of(names, count).runs == runs


@given(st.lists(st.sampled_from(sorted(METHODS)), min_size=1, max_size=24), st.integers(1, 3))
def test_runs_are_told_as_the_mux_makes_them(names: Sequence[str], count: int) -> None:
    """However few spans a request has, and whatever their order, its runs are counted exactly."""
    commands = [name for name in names if METHODS[name].kind.value == "command"]
    if commands:
        assert shape_of(commands, count).runs == split_runs([request(commands, count).logged])


async def test_a_session_hears_of_it() -> None:
    """The gateway refuses before the log, and the number stays free."""
    world = World()
    pair = [METHODS[name] for name in ALTERNATING]
    spans = [submit.Span(code=m.code, count=1, items=b"\x0a\x00") for m in pair] * MOST
    with pytest.raises(Refusal) as caught:
        await world.admit_spans(1, spans)
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert not world.logged
    await world.admit(1)
    assert len(world.logged) == 1


async def test_a_session_has_few_such_requests_under_way() -> None:
    """The gateway has requests of many runs weigh as these, and lets others in when they end."""
    world = World()
    spans = [
        submit.Span(code=METHODS[name].code, count=1, items=b"\x0a\x00")
        for name in ALTERNATING * (MOST // 2)
    ]
    admitted = [await world.admit_spans(number, spans) for number in (1, 2)]
    with pytest.raises(Refusal) as caught:
        await world.admit_spans(3, spans)
    assert caught.value.reason == Reason.REASON_QUOTA_EXCEEDED
    admitted[0].set_result(DONE)
    await asyncio.sleep(0)
    await world.admit_spans(3, spans)


@pytest.mark.parametrize("spans", [2, 4, 16, MOST])
def test_runs_of_one_user_are_bounded_however_they_are_split(spans: int) -> None:
    """Requests of few spans that alternate weigh as one of many: as much of a share by run."""
    shares = Shares(World().mux.replies, lambda _: None)
    shape = shape_of(ALTERNATING * (spans // 2))
    taken = []
    with pytest.raises(Refusal) as caught:
        while True:
            taken.append(shares.take_of_session(1, 5, spans, 100, shape.weight))
    assert caught.value.reason == Reason.REASON_QUOTA_EXCEEDED
    assert caught.value.details["share"] == "commands"
    alternating = request(ALTERNATING * (spans // 2)).logged
    assert MOST <= split_runs([alternating] * len(taken)) <= 4 * limits.PREPARE_RUNS_MAX
    for each in taken:
        shares.give_back(each)
    assert not len(shares)


class LooseWorld(World):
    """Takes commands without a session into the log, too."""

    def __init__(self) -> None:
        """Begin with an empty log."""
        super().__init__()
        self.loose: list[LooseCommand] = []

    def submit(self, waiting: SessionRequest | LooseCommand) -> None:
        """Take a command in."""
        if isinstance(waiting, LooseCommand):
            self.loose.append(waiting)
        else:
            super().submit(waiting)


@pytest.mark.parametrize("ends", ["UpdatePermissions", "DeleteStream", "UpdateUser", "Transact"])
async def test_loose_commands_that_end_runs_weigh_as_runs(ends: str) -> None:
    """A user without a session has no more runs under way than with one, and gets all back."""
    world = LooseWorld()
    taken = []
    with pytest.raises(Refusal) as caught:
        while True:
            for name in (ends, "CreateStream"):
                command = loose(name)
                command.shape = PLAIN  # the gateway has yet to look
                taken.append(world.commands.submit_loose(command))
    assert caught.value.reason == Reason.REASON_QUOTA_EXCEEDED
    assert MOST < len(world.loose) <= 4 * limits.PREPARE_RUNS_MAX
    for each in taken:
        world.commands.settle_loose(each)
    assert not len(world.shares)


async def test_commands_that_go_together_weigh_as_commands() -> None:
    """Whoever sends many commands of which none ends a run has the whole share for them."""
    world = LooseWorld()
    with pytest.raises(Refusal):
        while True:
            world.commands.submit_loose(loose("CreateStream"))
    assert len(world.loose) == limits.COMMANDS_UNDER_WAY_PER_USER_MAX
    assert shape_of(["CreateStream"] * 16).weight == 0


async def test_the_log_hears_of_a_request_s_runs() -> None:
    """What waits for a prepare carries the shape that was found for it."""
    world = LooseWorld()
    spans = [submit.Span(code=METHODS[n].code, count=1, items=frame(b"")) for n in ALTERNATING]
    await world.admit_spans(1, spans)
    await world.admit_spans(2, spans[1:])
    assert [each.shape.runs for each in world.logged] == [2, 1]
    for name in KINDS[:-1]:
        world.commands.submit_loose(loose(name))
    assert [each.shape for each in world.loose] == [shape_of([name]) for name in KINDS[:-1]]
