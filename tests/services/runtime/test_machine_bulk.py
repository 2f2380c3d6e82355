"""The machine's promises for a domain with a faster way through many commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from services.runtime.domain import Call
from services.runtime.machine import Machine
from services.runtime.spans import BULK_ITEMS_MIN
from tests.services.runtime import echo
from tests.services.runtime.echo import PUT, REVERT, SAVEPOINT, EchoState, command, put_request
from tests.services.runtime.harness import MALFORMED, MachineHarness
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

COUNT: Final = 5 * BULK_ITEMS_MIN


def puts(*others: tuple[int, Any]) -> list[Any]:
    """Return requests that the bulk handler takes, but for the `others` at their indexes."""
    requests: list[Any] = [put_request(f"name-{number}") for number in range(COUNT)]
    for index, request in others:
        requests[index] = request
    return requests


class Bulk:
    """A bulk handler of Put that skips requests that emit, fail or are malformed; counts its
    work."""

    def __init__(self) -> None:
        self.handled = 0
        self.fault: Callable[[], None] = lambda: None

    def __call__(self, state: EchoState, encoded: Sequence[bytes], call: Call) -> tuple[int, bytes]:
        """Put up to the first request that is left, and then fail if that is asked for."""
        results: list[bytes] = []
        revision = call.revision
        for item in encoded:
            request = None if item == MALFORMED else echo.parse("PutRequest", item)
            if request is None or request.tell or request.fault:
                break
            call.revision = revision + len(results)
            results.append(echo.put(state, request, call).SerializeToString())
        self.fault()
        self.handled += len(results)
        return len(results), framing.frame_all(results)


@pytest.fixture
def bulk() -> Bulk:
    """A bulk handler that has done nothing."""
    return Bulk()


@pytest.fixture
def harness(bulk: Bulk) -> MachineHarness:
    """A harness whose machine has the bulk handler."""
    made = MachineHarness()
    made.machine = Machine(replace(echo.DOMAIN, bulk={"Put": bulk}))
    return made


SPANS: Final[dict[str, tuple[list[Any], int]]] = {
    # The items of the span, and how many of them the bulk handler does.
    "all plain": (puts(), COUNT),
    "first is refused": (puts((0, put_request("a", fault="refuse"))), COUNT - 2 * BULK_ITEMS_MIN),
    "last is refused": (puts((COUNT - 1, put_request("a", fault="refuse"))), COUNT - 1),
    "one is malformed": (puts((9, MALFORMED)), COUNT - BULK_ITEMS_MIN),
    "two close together tell": (
        puts((9, put_request("a", tell=True)), (11, put_request("b", tell=True))),
        COUNT - BULK_ITEMS_MIN,
    ),
    "two far apart are refused": (
        puts((3, put_request("a", fault="refuse")), (25, put_request("b", fault="refuse"))),
        3 + (25 - (3 + 2 * BULK_ITEMS_MIN)),
    ),
    "all are refused": ([put_request("a", fault="refuse")] * COUNT, 0),
    "too few": (puts()[: BULK_ITEMS_MIN - 1], 0),
    "just enough": (puts()[:BULK_ITEMS_MIN], BULK_ITEMS_MIN),
}


@pytest.mark.parametrize("name", SPANS)
def test_bulk_and_general_way_make_one_answer(
    harness: MachineHarness, bulk: Bulk, name: str
) -> None:
    """Items that the bulk handler skips are answered in place, as without a bulk handler."""
    requests, handled = SPANS[name]
    general = MachineHarness()
    item = command(PUT, *requests, revision=10)
    assert harness.apply(item).reply == general.apply(item).reply
    assert harness.machine.state.snapshot() == general.machine.state.snapshot()
    assert harness.machine.revision == general.machine.revision
    assert harness.machine.undo.entries == []
    assert bulk.handled == handled


@pytest.mark.parametrize(
    "fields",
    [
        {"refused": [3]},
        {"contexts": framing.frame_all(b"%d" % number for number in range(COUNT))},
        {"count": COUNT + 1},
        {"count": COUNT - 1},
    ],
    ids=str,
)
def test_spans_with_more_to_them_take_the_general_way(
    harness: MachineHarness, bulk: Bulk, fields: dict[str, Any]
) -> None:
    """Holes, contexts and wrong counts are no concern of a bulk handler."""
    item = command(PUT, *puts(), **fields)
    assert harness.apply(item).reply == MachineHarness().apply(item).reply
    assert bulk.handled == 0


def fail(error: Exception) -> Callable[[], None]:
    """Return a function that raises the error."""

    def raise_it() -> None:
        raise error

    return raise_it


def test_defect_of_a_bulk_handler_is_taken_back(harness: MachineHarness, bulk: Bulk) -> None:
    """A bulk handler that fails leaves nothing but alarms: every command takes the general way."""
    bulk.fault = fail(KeyError("a bug"))
    general, item = MachineHarness(), command(PUT, *puts())
    assert harness.apply(item).reply == general.apply(item).reply
    assert harness.machine.state.snapshot() == general.machine.state.snapshot()
    first = harness.machine.alarms[0]
    assert (first.where, first.revision) == ("viewstamp.tests.echo.v1.EchoService/Put", 1)


def test_trouble_of_the_process_in_a_bulk_handler_is_not_answered(
    harness: MachineHarness, bulk: Bulk
) -> None:
    """A full disk is no defect of the code: it leaves the machine, as from any handler."""
    bulk.fault = fail(OSError("the disk is full"))
    with pytest.raises(OSError, match="disk is full"):
        harness.apply(command(PUT, *puts()))


def test_savepoint_reverts_what_was_done_in_bulk(harness: MachineHarness, bulk: Bulk) -> None:
    """Within a transaction a bulk handler's changes are remembered like all others."""
    before = harness.machine.state.snapshot()
    outcomes: Sequence[pb.Outcome] = harness.apply(
        SAVEPOINT, command(PUT, *puts()), REVERT
    ).reply.outcomes
    assert len(framing.unframe(outcomes[1].command.results)) == bulk.handled == COUNT
    assert harness.machine.state.snapshot() == before
