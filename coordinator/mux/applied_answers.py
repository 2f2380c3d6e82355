"""What applying a prepare led to, as bytes that are the same on every replica.

These are the answers of the state machines: results, refusals, what one stage resolved for another,
effects, and sessions that ended. They follow from the log and the state alone. Nothing of this
process is in them: not the runs into which the prepare was split, not the batches, and not whether
the log is replayed.

Left out is what builds, or lives of a replica, may say differently:

- Refusals of entries of level 1, whose details were worded by builds. Their places count.
- A repeated reply: the entry that it came from was digested, and a restored reply of level 1 has
  fewer details. That it was repeated, and from where, counts.
- What a transaction did before it was taken back. Its refusal counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from coordinator.mux.requests import RequestWork
from coordinator.mux.segments import Segment
from coordinator.mux.types import Applied, CommittedPrepare, RequestReply
from viewstamp import limits

# Session, number, op and first revision of a reply, its spans, and whether it is a refusal.
_REPLY: Final = Struct("<6Q")
_NUMBER: Final = Struct("<Q")
# A number, or a length, and the length or the number of what follows.
_PAIR: Final = Struct("<QQ")


def answer_of(
    prepare: CommittedPrepare, requests: Sequence[RequestWork], applied: Applied
) -> bytearray:
    """Return what applying a prepare led to; `requests` are its requests, all done."""
    says_why = prepare.feature_level >= limits.FEATURE_LEVEL_BOUNDED
    answer = bytearray()
    for work, reply in zip(requests, applied.replies, strict=True):
        _add_reply(answer, reply, is_new=reply.op == prepare.op, says_why=says_why)
        for span in work.spans:
            for segment in span.standing_segments():
                _add_exchanged(answer, segment)
    for session_id in sorted(applied.ended_sessions):
        answer += _NUMBER.pack(session_id)
    return answer


def _add_reply(answer: bytearray, reply: RequestReply, *, is_new: bool, says_why: bool) -> None:
    is_refused = reply.error is not None
    place = (reply.session_id, reply.number, reply.op, reply.first_revision)
    answer += _REPLY.pack(*place, len(reply.spans), is_refused)
    if not is_new:
        return
    if reply.error is not None and says_why:
        answer += _NUMBER.pack(len(reply.error))
        answer += reply.error
    for span in reply.spans:
        answer += _PAIR.pack(len(span.results), len(span.errors))
        answer += span.results
        for refusal in span.errors:
            error = refusal.error if says_why else b""
            answer += _PAIR.pack(refusal.index, len(error))
            answer += error


def _add_exchanged(answer: bytearray, segment: Segment) -> None:
    """Add what the stages told each other about a span: contexts, and effects in stage order."""
    answer += _PAIR.pack(len(segment.contexts), len(segment.effects))
    answer += segment.contexts
    for stage in sorted(segment.effects):
        items = segment.effects[stage]
        answer += _PAIR.pack(stage, len(items))
        for item in items:
            answer += _PAIR.pack(item.revision, len(item.payload))
            answer += item.payload
