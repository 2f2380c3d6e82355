"""The gateway is built from descriptors: a new RPC of a domain needs no line in the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.processes.callers import Caller, SubmitStream, refused, span
from tests.processes.made_up import message
from tests.processes.processes import COORDINATOR, ReplicaProcesses, replica

pytestmark = pytest.mark.xdist_group("processes")

SERVICE = "/viewstamp.tests.made_up.v1.NotesService"


@pytest.fixture(scope="module")
def noted() -> Iterator[ReplicaProcesses]:
    """A replica whose streams service has the made-up RPCs."""
    with replica(modules={"streams": "tests.processes.made_up"}) as running:
        yield running


def put(caller: Caller, text: str) -> Any:
    """Call the made-up command."""
    encoded = caller.raw(
        f"{SERVICE}/PutNote", message("PutNoteRequest", text=text).SerializeToString()
    )
    return type(message("PutNoteResponse")).FromString(encoded)


def get(caller: Caller) -> Any:
    """Call the made-up query."""
    encoded = caller.raw(f"{SERVICE}/GetNote", b"")
    return type(message("GetNoteResponse")).FromString(encoded)


def test_made_up_command_and_query(noted: ReplicaProcesses) -> None:
    """Both RPCs work, unary and over Submit, refuse, and survive a restart of the coordinator."""
    with noted.root() as root:
        first = put(root, "one")
        assert (first.before, put(root, "two").before) == ("", "one")
        assert get(root).text == "two"
        assert get(root).header.revision == first.header.revision + 1
        with refused() as failure:
            put(root, "")
        assert tuple(failure) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_OPTION")
        stream = SubmitStream(root.with_session())
        (answer,) = stream.ask(1, span(910, message("PutNoteRequest", text="three"))).spans
        assert answer.results == span(0, message("PutNoteResponse", before="two")).items
    noted.kill(COORDINATOR)
    noted.start(COORDINATOR)
    with noted.root() as root:
        assert get(root).text == "three"


def test_defect_is_taken_back(noted: ReplicaProcesses) -> None:
    """A command whose handler has a defect is INTERNAL and raises an alarm; others are served."""
    with noted.root() as root:
        before = get(root).text
        for _ in range(2):
            with refused() as failure:
                put(root, "defect")
            assert tuple(failure) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert root.alarms() == ["ALARM_KIND_COMMAND_REVERTED"]
        assert get(root).text == before
        assert put(root, "after").before == before


def test_other_replicas_do_not_serve_it(root: Caller) -> None:
    """A method that no service claims is UNIMPLEMENTED."""
    with refused() as failure:
        put(root, "one")
    assert tuple(failure) == (grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED")
