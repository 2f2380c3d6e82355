"""A failing audit log or trace keeps no answer from its caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.gateway.audit import Audit
from coordinator.gateway.unary import UnaryCalls
from coordinator.replica.batcher import AnsweredSpan, Reply
from tests.coordinator.gateway.test_admission import DONE
from tests.coordinator.gateway.test_stream_fences import Face, turns
from tests.coordinator.gateway.test_unary_deadline import UnaryCall
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.audit.log import open_log
from viewstamp.framing import EMPTY_FRAME
from viewstamp.routing import MethodKind

READ = submit.ReadRequest(read_id=5, spans=[submit.Span(code=201, count=1, items=EMPTY_FRAME)])


class Blind:
    """Knows no method, and fails on every question."""

    def find(self, code: int) -> None:
        """Fail."""
        raise ValueError(f"planted: method {code}")

    def named(self, path: str) -> None:
        """Fail."""
        raise ValueError(f"planted: {path}")


class Watch:
    """A watch that fails when it is told of an answer."""

    def packed(self, request: object, user_id: int) -> tuple[Any, ...]:
        """Trace everything."""
        return (SimpleNamespace(trace_parent=lambda: ""),)

    def answered(self, traces: object, reply: object) -> None:
        """Fail."""
        raise IndexError("planted")


class ReadsAtHand:
    """Reads that the test answers."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def start(self, *_: object) -> asyncio.Future[Reply]:
        """Start a read."""
        return self.future


def blind_audit(directory: Path) -> tuple[Audit, Any]:
    """Return an audit that fails on every record, and its log."""
    log = open_log(directory, 1 << 20)
    return Audit(log, Blind(), None), log  # type: ignore[arg-type]


async def test_an_answer_goes_out_that_the_audit_log_cannot_tell(tmp_path: Path) -> None:
    """A command is answered though its audit record fails; the record counts as lost."""
    face = Face()
    face.streams.audit, log = blind_audit(tmp_path)
    async with face.stream() as stream:
        stream.send(1)
        await turns()
        face.world.logged[0].future.set_result(DONE)
        async with asyncio.timeout(10):
            assert (await stream.written.get()).command.number == 1
        assert stream.ended_with == ""
    log.close()
    assert log.lost == 1


async def test_a_call_is_answered_that_the_audit_log_cannot_tell(tmp_path: Path) -> None:
    """A unary call that was applied is answered though its audit record fails."""
    audit, log = blind_audit(tmp_path)
    method: Any = SimpleNamespace(code=1, kind=MethodKind.QUERY, public=True)

    async def start_spans(*_: object) -> Reply:
        return Reply(1, 1, 1, (AnsweredSpan(EMPTY_FRAME, ()),))

    nothing: Any = SimpleNamespace()
    calls = UnaryCalls(
        bytes(16),
        SimpleNamespace(public=lambda path: method),  # type: ignore[arg-type]
        *(nothing, nothing, nothing),
        SimpleNamespace(start_spans=start_spans),  # type: ignore[arg-type]
        lambda: None,
        audit=audit,
    )
    assert await calls.serve("/test.Service/Read", b"", UnaryCall(()))  # type: ignore[arg-type]
    log.close()
    assert log.lost == 1


@pytest.mark.parametrize("kind", ["command", "read"])
async def test_a_stream_ends_whose_answer_cannot_be_made(kind: str) -> None:
    """When anything fails after a request was answered, its client is told INTERNAL."""
    face = Face()
    async with face.stream() as stream:
        face.streams.watch = Watch()  # type: ignore[assignment]
        face.streams.reads = ReadsAtHand()  # type: ignore[assignment]
        if kind == "command":
            stream.send(1)
            await turns()
            face.world.logged[0].future.set_result(DONE)
        else:
            stream.arrived.put_nowait(submit.SubmitRequest(read=READ).SerializeToString())
            await turns()
            face.streams.reads.future.set_result(DONE)  # type: ignore[attr-defined]
        await turns()
        assert stream.ended_with == "INTERNAL"
