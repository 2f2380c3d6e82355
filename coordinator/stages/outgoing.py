"""Messages to a service over an Apply stream, and which of them are joined."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.stages.item_log import LoggedBatch
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.framing import encode_varint
from viewstamp.telemetry.sampling import TRACE_PARENT_CHARACTERS

# The bytes before a traceparent that is added to an encoded batch; all are equally long.
_TRACED: Final = domain_pb2.ApplyRequest(
    batch=domain_pb2.Batch(trace_parents=["-" * TRACE_PARENT_CHARACTERS])
).SerializeToString()[:-TRACE_PARENT_CHARACTERS]
# Batches that wait together share a message up to this many bytes. Beyond that the first would
# wait for the others longer than a message costs.
SHARED_MESSAGE_BYTES_MAX: Final = 64 * limits.KIB
_BATCHES_TAG: Final = bytes((domain_pb2.ApplyRequest.BATCHES_FIELD_NUMBER << 3 | 2,))


@dataclass(slots=True)
class OutgoingBatch:
    """One message, and the entry of the item log that it holds."""

    message: bytes
    entry: LoggedBatch | None  # None for reads
    is_answered: bool = True
    may_share: bool = False


def take_together(waiting: deque[OutgoingBatch]) -> list[OutgoingBatch]:
    """Take the batches of the next message: one, or all that may share it and fit."""
    taken = [waiting.popleft()]
    size = len(taken[0].message)
    while taken[0].may_share and waiting and waiting[0].may_share:
        size += len(waiting[0].message)
        if size > SHARED_MESSAGE_BYTES_MAX:
            break
        taken.append(waiting.popleft())
    return taken


def joined(messages: Sequence[bytes]) -> bytes:
    """Return one message for encoded requests that hold a batch each."""
    if len(messages) == 1:
        return messages[0]
    # On the wire, a field of one batch and one of several look alike: see `Batches`.
    batches = b"".join(messages)
    return _BATCHES_TAG + encode_varint(len(batches)) + batches


def traced(trace_parents: Sequence[str]) -> bytes:
    """Return the bytes that add traceparents to an encoded batch: joined encodings are one message.

    Each is as long as `format_trace_parent` makes it.
    """
    return b"".join([_TRACED + text.encode() for text in trace_parents])
