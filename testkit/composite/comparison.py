"""Whether what the real system answered is what the model says."""

from __future__ import annotations

from typing import Any

from coordinator.mux.types import ReadAnswered, RequestReply, SpanReply
from testkit.composite.model import CODES, METHODS, ModelAnswer, Outcome
from testkit.composite.views import facts_of
from testkit.composite.world import CompositeRefused
from viewstamp.api.errors.v1.errors_pb2 import Error
from viewstamp.framing import unframe


def check_reply(reply: RequestReply, expected: ModelAnswer) -> None:
    """Fail unless the answer to a request is the model's."""
    where = f"request {reply.number} of session {reply.session_id}"
    got = (reply.session_id, reply.number, reply.op, reply.first_revision)
    wanted = (expected.session_id, expected.number, expected.op, expected.first_revision)
    assert got == wanted, f"{where}: {got}, the model says {wanted}"
    if reply.error is not None or expected.error is not None:
        check_refusal(reply.error, expected.error, where)
        return
    assert len(reply.spans) == len(expected.spans), f"{where}: {len(reply.spans)} spans"
    for code, span, outcomes in zip(expected.codes, reply.spans, expected.spans, strict=True):
        check_span(code, span, outcomes, where)


def check_read(codes: list[int], answered: ReadAnswered, expected: list[list[Outcome]]) -> None:
    """Fail unless the answer to a read is the model's."""
    assert answered.error is None, f"read {answered.token}: {Error.FromString(answered.error)}"
    for code, span, outcomes in zip(codes, answered.spans, expected, strict=True):
        check_span(code, span, outcomes, f"read {answered.token}")


def check_span(code: int, span: SpanReply, outcomes: list[Outcome], where: str) -> None:
    """Fail unless results and errors of a span are the model's, index by index."""
    results = unframe(span.results)
    errors = {error.index: error.error for error in span.errors}
    assert len(results) == len(outcomes), f"{where}: {len(results)} results of {len(outcomes)}"
    assert sorted(errors) == [error.index for error in span.errors], f"{where}: errors disordered"
    for index, (result, outcome) in enumerate(zip(results, outcomes, strict=True)):
        what = f"{where}, {METHODS[code].name} at {index}"
        if index in errors or isinstance(outcome, CompositeRefused):
            assert result == b"", f"{what}: refused, and yet it has a result"
            check_refusal(errors.get(index), outcome, what)
        else:
            check_result(code, result, outcome, what)


def check_result(code: int, result: bytes, expected: dict[str, Any], what: str) -> None:
    """Fail unless a response states the model's facts."""
    response = METHODS[code].response.FromString(result)
    if code == CODES["Transact"]:
        parts = list(response.results)  # type: ignore[attr-defined]
        assert len(parts) == len(expected["results"]), f"{what}: {len(parts)} results"
        for part, (part_code, facts) in zip(parts, expected["results"], strict=True):
            check_result(part_code, part, facts, f"{what}, {METHODS[part_code].name}")
        return
    got = _said(facts_of(response))
    assert got == _said(expected), f"{what}: {got}, the model says {_said(expected)}"


def check_refusal(error: bytes | None, expected: object, what: str) -> None:
    """Fail unless an error is the model's refusal."""
    got = None if error is None else Error.FromString(error)
    assert isinstance(expected, CompositeRefused) and got is not None, (
        f"{what}: {got}, the model says {expected}"
    )
    assert expected.matches(got), f"{what}: {got}, the model says {expected}"


def _said(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a response really says: absent and zero are the same."""
    return {name: value for name, value in facts.items() if value not in (0, "", b"", [], False)}
