"""Texts of refusals: made at the edge from a reason, a case and details; never too long, never a
failure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viewstamp import limits, texts
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.status import STATUS_DETAILS_KEY, status_message, trailing_details
from viewstamp.texts import general, table

# The size of trailing metadata above which gRPC's core begins to refuse some.
METADATA_BYTES_MAX = 8 * limits.KIB


def test_what_machines_decide_has_no_words() -> None:
    """A refusal made for the log travels as data alone, and is rendered on arrival."""
    refusal = Refusal.of(Reason.REASON_NOT_A_MEMBER, session_id=3, group_id=7)

    error = refusal.to_error()

    assert error.message == ""
    assert Refusal.from_error(error).message == (
        "Session 3 is not a member of consumer group 7; join it first."
    )
    assert str(refusal) == refusal.to_answer().message == refusal.message


def test_message_of_the_edge_stays() -> None:
    """A message that came with a refusal is shown unchanged, whatever this build would say."""
    error = errors_pb2.Error(reason=Reason.REASON_NOT_A_MEMBER, message="go away", case="newer")

    again = Refusal.from_error(error)

    assert (again.message, again.case, again.to_answer()) == ("go away", "newer", error)
    assert again.to_error() == errors_pb2.Error(reason=Reason.REASON_NOT_A_MEMBER, case="newer")


@pytest.mark.parametrize(
    ("reason", "case", "details", "expected"),
    [
        (Reason.REASON_NOT_A_MEMBER, "", {}, "the session is not a member of the group"),
        (Reason.REASON_NOT_A_MEMBER, "since_then", {"b": "x"}, "(since then, b: 'x')"),
        (Reason.REASON_NOT_A_MEMBER, "", {"session_id": "3"}, "(session_id: 3)"),
        (4_711, "", {"b": "2"}, "refused: reason 4711 (b: 2)"),
        (Reason.REASON_UNSPECIFIED, "", {}, "refused: UNSPECIFIED"),
    ],
)
def test_what_a_build_does_not_know(
    reason: int, case: str, details: Mapping[str, str], expected: str
) -> None:
    """Missing details, and cases and reasons of newer builds, get general words."""
    assert expected in texts.render(reason, case, details)


@given(
    reason=st.sampled_from([*Reason.values(), 4_711]),
    case=st.sampled_from(["", *sorted({case for _, case in table.TEXTS})]) | st.text(),
    details=st.dictionaries(st.text(), st.text() | st.text("\U0010ffff{}!\n", min_size=300)),
)
def test_rendering_never_fails(reason: int, case: str, details: dict[str, str]) -> None:
    """Anything from the wire has a text, of one line and within its limit."""
    text = texts.render(reason, case, details)

    assert text.isprintable()
    assert 0 < len(text.encode()) <= limits.REFUSAL_TEXT_BYTES_MAX


@example(details={f"key-{number}": "x" * 9_000 for number in range(40)})
@given(details=st.dictionaries(st.text(), st.text("\U0010ffffx{\x00", max_size=9_000)))
def test_metadata_is_bounded(details: dict[str, str]) -> None:
    """The status of any refusal fits into the metadata that every client accepts."""
    refusal = Refusal(Reason.REASON_INVALID_STREAM_NAME, "x" * 9_000, **details)

    key, status = trailing_details(refusal)

    long = [
        v for v in refusal.details.values() if len(v.encode()) > limits.REFUSAL_DETAIL_BYTES_MAX
    ]
    assert (long, bool(refusal.details)) == ([], bool(details))
    # Escaped, a byte of the message has three; encoded for the wire, three of the status have four.
    message = 3 * len(status_message(refusal).encode())
    assert key == STATUS_DETAILS_KEY
    assert message + len(status) * 4 // 3 < METADATA_BYTES_MAX


def test_every_reason_has_general_words() -> None:
    """Each documented reason without its details still has a text."""
    assert sorted(general.GENERAL) == sorted(value for value in Reason.values() if value)


def test_name_of_a_newer_reason() -> None:
    """A reason of a newer build has its number for a name, and the status UNKNOWN."""
    error = errors_pb2.Error.FromString(bytes([0x08, 0xE7, 0x24]))

    refusal = Refusal.from_error(error)

    assert (refusal.name, refusal.message) == ("4711", "refused: reason 4711")
