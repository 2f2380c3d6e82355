"""A request that visits the services again and again is refused, or weighs by its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.gateway.shares import Shares
from coordinator.mux.run_shapes import PLAIN
from coordinator.replica.batcher import LooseCommand, SessionRequest
from tests.coordinator.gateway.test_admission import DONE, AdmissionTrial
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
from viewstamp.routing import MethodKind

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
    """A request of too many runs is refused, and the refusal says how to go on."""
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
    """A request may have as many runs as the limit, and any number of commands in one run."""
    assert shape_of(names, count).runs == runs


COMMANDS = sorted(name for name, method in METHODS.items() if method.kind is MethodKind.COMMAND)


@given(st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=24), st.integers(1, 3))
def test_runs_are_told_as_the_mux_makes_them(commands: Sequence[str], count: int) -> None:
    """The runs of a request are counted exactly, for any number and order of spans."""
    assert shape_of(commands, count).runs == split_runs([request(commands, count).logged])


async def test_a_session_hears_of_it() -> None:
    """The gateway refuses before the log, and the number stays free."""
    world = AdmissionTrial()
    pair = [METHODS[name] for name in ALTERNATING]
    spans = [submit.Span(code=m.code, count=1, items=b"\x0a\x00") for m in pair] * MOST
    with pytest.raises(Refusal) as caught:
        await world.admit_spans(1, spans)
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert not world.logged
    await world.admit(1)
    assert len(world.logged) == 1


async def test_a_session_has_few_such_requests_under_way() -> None:
    """A request of many runs takes a share by its runs, and others are let in when it ends."""
    world = AdmissionTrial()
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
    """Requests of few alternating spans weigh as much per run as one request of many spans."""
    shares = Shares(AdmissionTrial().mux.replies, lambda _: None)
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


class LooseWorld(AdmissionTrial):
    """A log that takes commands without a session, too."""

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
    """Commands that do not end a run may take the whole share of their user."""
    world = LooseWorld()
    with pytest.raises(Refusal):
        while True:
            world.commands.submit_loose(loose("CreateStream"))
    assert len(world.loose) == limits.COMMANDS_UNDER_WAY_PER_USER_MAX
    assert shape_of(["CreateStream"] * 16).weight == 0


async def test_the_log_hears_of_a_request_s_runs() -> None:
    """A request that waits for a prepare carries the shape that was computed for it."""
    world = LooseWorld()
    spans = [submit.Span(code=METHODS[n].code, count=1, items=frame(b"")) for n in ALTERNATING]
    await world.admit_spans(1, spans)
    await world.admit_spans(2, spans[1:])
    assert [each.shape.runs for each in world.logged] == [2, 1]
    for name in KINDS[:-1]:
        world.commands.submit_loose(loose(name))
    assert [each.shape for each in world.loose] == [shape_of([name]) for name in KINDS[:-1]]
