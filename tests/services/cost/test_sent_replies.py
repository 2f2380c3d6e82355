"""Replies that no message holds, from a log before answers were bounded."""

from __future__ import annotations

from coordinator.gateway.replies import ANSWER_BYTES_MAX, command_reply
from coordinator.replica.batcher import AnsweredSpan, Reply
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import MESSAGE_BYTES_MAX


def reply_of(results: bytes) -> Reply:
    """Return the reply to a request of one span."""
    return Reply(view=1, op=2, first_revision=3, spans=(AnsweredSpan(results, ()),))


def test_a_reply_that_is_too_large_does_not_stop_its_session() -> None:
    """A reply that cannot be sent becomes a reason, which says that the commands were applied."""
    message = command_reply(9, reply_of(frame(bytes(MESSAGE_BYTES_MAX))), b"c" * 16, ())
    assert message.number == 9 and message.header.op == 2 and not message.spans
    refusal = Refusal.from_error(message.error)
    assert refusal.name == "ANSWER_TOO_LARGE" and refusal.details["applied"] == "true"
    assert message.ByteSize() < ANSWER_BYTES_MAX


def test_a_large_reply_is_sent_while_it_fits() -> None:
    """Up to the limit a reply is sent as it is."""
    results = frame(bytes(3 * MESSAGE_BYTES_MAX // 4))
    message = command_reply(9, reply_of(results), b"c" * 16, ())
    assert message.spans[0].results == results and not message.HasField("error")
