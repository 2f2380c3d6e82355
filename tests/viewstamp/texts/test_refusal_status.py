"""Refusals as gRPC statuses: every reason has its code, and nothing dynamic is lost on the way."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from services.streams.refusals import more_than_exist
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import REASONS, Refusal, iggy_code, reason_name
from viewstamp.status import grpc_code, trailing_details

SENT_REASONS = sorted(value for name, value in Reason.items() if value)


def info_of(refusal: Refusal) -> error_details_pb2.ErrorInfo:
    """Return the ErrorInfo that travels with a refusal."""
    _, encoded = trailing_details(refusal)
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(encoded).details[0].Unpack(info)
    return info


def test_every_reason_has_a_code() -> None:
    """The table and the documented enum hold the same reasons."""
    assert sorted(REASONS) == SENT_REASONS


@pytest.mark.parametrize("reason", SENT_REASONS, ids=[Reason.Name(r) for r in SENT_REASONS])
def test_reason_travels(reason: Reason.ValueType) -> None:
    """A refusal's reason, message, details and Iggy's number arrive in the status."""
    refusal = Refusal(reason, "what was wrong", subject=7)

    info = info_of(refusal)

    assert grpc_code(refusal) is not grpc.StatusCode.OK
    assert (info.reason, info.domain) == (reason_name(reason), "viewstamp")
    assert info.metadata["subject"] == "7"
    assert info.metadata.get("iggy_code") == (
        None if iggy_code(reason) is None else str(iggy_code(reason))
    )


def test_error_message_round_trip() -> None:
    """A refusal inside a reply comes out as it went in."""
    refusal = Refusal(Reason.REASON_REQUEST_GAP, "skips 3", resend_from=3, session=9)

    again = Refusal.from_error(refusal.to_answer())

    assert (again.reason, again.message, again.details) == (
        refusal.reason,
        refusal.message,
        {"resend_from": "3", "session": "9"},
    )


def test_details_may_have_any_name() -> None:
    """Details come off the wire under any name, those of our own parameters included."""
    details = {"reason": "a", "message": "b", "self": "c"}

    assert Refusal(Reason.REASON_INTERNAL, "what was wrong", **details).details == details


def test_machine_may_know_a_closer_number() -> None:
    """Deleting more partitions than exist carries Iggy's own number for that case."""
    assert info_of(more_than_exist("payments", 9, 4)).metadata["iggy_code"] == "2019"


@pytest.mark.parametrize(
    ("told", "delay_ms"), [("1500", 1500), ("", 0), ("soon", 0), ("9" * 99, 0)]
)
def test_retry_info(told: str, delay_ms: int) -> None:
    """A refusal that says when to come again says so as stock clients read it, too."""
    refusal = Refusal(Reason.REASON_QUOTA_EXCEEDED, "too much", retry_delay_ms=told)
    _, encoded = trailing_details(refusal)
    details = status_pb2.Status.FromString(encoded).details
    retries = [error_details_pb2.RetryInfo.FromString(d.value) for d in details[1:]]
    assert [retry.retry_delay.ToMilliseconds() for retry in retries] == [delay_ms] * bool(delay_ms)


def test_equal_refusals_are_equal_bytes() -> None:
    """The order of details does not show, so peers remember one block for equal refusals."""
    details = {f"detail_{number}": str(number) for number in range(8)}
    backwards = dict(reversed(details.items()))
    one, other = (Refusal(SENT_REASONS[0], "wrong", **each) for each in (details, backwards))
    assert trailing_details(one) == trailing_details(other)
