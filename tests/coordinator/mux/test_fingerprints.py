"""Fingerprints in log order: every replica refuses a duplicate number with other content."""

from __future__ import annotations

import pytest

from coordinator.base.slices import at_once
from coordinator.mux.requests import RequestWork, SessionsStage
from coordinator.mux.types import (
    CommittedPrepare,
    LoggedRequest,
    LoggedSpan,
    RegisterSession,
    RequestReply,
)
from coordinator.stages import codec
from coordinator.stages.codec import ProtobufCodec
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.limits import FEATURE_LEVEL_BOUNDED, FINGERPRINT_BYTES

SESSION = 5
FIRST, SECOND = (bytes([number]) * FINGERPRINT_BYTES for number in (1, 2))
UNKNOWN = b""


def _stage() -> SessionsStage:
    stage = SessionsStage(ProtobufCodec())
    stage.machine.apply(RegisterSession(b"n" * 16), LoggedSpan(1, 1, b"", 3, 1), 0, SESSION)
    stage.replies.open(SESSION, 3)
    return stage


def _apply(stage: SessionsStage, op: int, fingerprint: bytes, level: int) -> RequestReply:
    """Log request 1 once more and return its answer."""
    message = log_pb2.LoggedRequest(session_id=SESSION, number=1, fingerprint=fingerprint)
    message.spans.add(code=200, count=1, user_id=3, credential_revision=1)
    (request,) = at_once(codec.logged_requests([message]))
    work = RequestWork(request, op)
    assert stage.admits(work) == (op == 1)
    return stage.apply(_prepare(op, request, level), work)


def _prepare(op: int, request: LoggedRequest, level: int) -> CommittedPrepare:
    return CommittedPrepare(op, 1, op, 1_000, level, (request,))


@pytest.mark.parametrize(
    ("level", "known", "again"),
    [
        (FEATURE_LEVEL_BOUNDED, FIRST, FIRST),
        (FEATURE_LEVEL_BOUNDED, UNKNOWN, SECOND),
        (FEATURE_LEVEL_BOUNDED, FIRST, UNKNOWN),
        (FEATURE_LEVEL_BOUNDED - 1, FIRST, SECOND),
    ],
)
def test_a_duplicate_in_the_log(level: int, known: bytes, again: bytes) -> None:
    """A duplicate gets the first reply if it may be the same request; below level 2 always."""
    stage = _stage()
    first = _apply(stage, 1, known, level)
    assert _apply(stage, 2, again, level) is first


def test_another_request_under_a_used_number() -> None:
    """A request that cannot be the first one is refused, and the first reply is kept."""
    stage = _stage()
    first = _apply(stage, 1, FIRST, FEATURE_LEVEL_BOUNDED)
    duplicate = _apply(stage, 2, SECOND, FEATURE_LEVEL_BOUNDED)
    assert duplicate.error is not None
    error = errors_pb2.Error.FromString(duplicate.error)
    assert error.reason == errors_pb2.Reason.REASON_REQUEST_NUMBER_REUSED
    assert stage.replies.window(SESSION).replies == {1: first}  # type: ignore[union-attr]


def test_a_section_keeps_the_fingerprint() -> None:
    """A reply restored from a section still distinguishes its request from another."""
    stage = _stage()
    first = _apply(stage, 1, FIRST, FEATURE_LEVEL_BOUNDED)
    restored = ProtobufCodec()
    entities = list(stage.replies.entities())
    values = [restored.decode_sessions_entity(kind, encoded) for kind, _, encoded in entities]
    assert first in values and first.fingerprint == FIRST
