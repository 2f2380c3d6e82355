"""Spans: many framed messages of one method, taken apart and put together in bulk.

A span whose items do not match its count is refused item by item, for fixed reasons, not the texts
of a library: errors are cached and compared between replicas, so their bytes are part of the
behaviour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from services.runtime.failures import ApplyError
from viewstamp import framing
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import PREPARE_COMMANDS_MAX

# From this number on one call into the protobuf library beats one Python call per item.
BULK_ITEMS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class DecodedSpan:
    """The decoded requests of a span, one per index; the first has index `start`.

    `skipped` holds the indexes that must not be handled: None for one refused by an earlier stage,
    an error for one refused here. Their requests are meaningless.
    """

    requests: Sequence[Any]
    skipped: dict[int, errors_pb2.Error | None]
    start: int = 0

    def moved(self, by: int) -> DecodedSpan:
        """Return the requests as a later part of a span, from index `start` + `by` on."""
        skipped = {index + by: error for index, error in self.skipped.items()}
        return DecodedSpan(self.requests, skipped, self.start + by)


def _frames_class() -> type[Any]:
    """Return a message class `{repeated bytes items = 1}`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="viewstamp/frames.proto", package="viewstamp", syntax="proto3"
    )
    message = file.message_type.add(name="Frames")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="items", number=1, type=field.TYPE_BYTES, label=field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    encoded = pool.AddSerializedFile(file.SerializeToString())
    frames: type[Any] = message_factory.GetMessageClass(encoded.message_types_by_name["Frames"])
    return frames


_Frames: Final = _frames_class()


def join(items: Sequence[bytes]) -> bytes:
    """Return the items framed and joined."""
    if len(items) < BULK_ITEMS_MIN:
        return framing.frame_all(items)
    joined: bytes = _Frames(items=items).SerializeToString()
    return joined


def split(blob: bytes) -> list[bytes]:
    """Return the items of a blob. Raises protobuf's DecodeError if it is cut off."""
    return list(_Frames.FromString(blob).items)


def decode(
    request: type[Message], batch: type[Any], items: bytes, count: int, refused: Iterable[int]
) -> DecodedSpan:
    """Return the requests of a span, `batch` being the typed batch class of `request`.

    Raises ProtocolError where `count` or `refused` cannot come from a correct coordinator.
    """
    skipped = _skipped(count, refused)
    try:
        requests: Sequence[Any] = batch.FromString(items).items
    except DecodeError:
        return _decode_each(request, items, count, skipped)
    if len(requests) != count:
        return _refused_whole(count, len(requests), skipped)
    return DecodedSpan(requests, skipped)


def decode_raw(items: bytes, count: int, refused: Iterable[int]) -> DecodedSpan:
    """Return the encoded requests of a span, for a stage that does not know their type."""
    skipped = _skipped(count, refused)
    try:
        requests = split(items)
    except DecodeError:
        return _refused_whole(count, None, skipped)
    if len(requests) != count:
        return _refused_whole(count, len(requests), skipped)
    return DecodedSpan(requests, skipped)


def decode_contexts(contexts: bytes, count: int) -> list[bytes]:
    """Return one context per index, or an empty list if there are none at all.

    Raises ProtocolError for a number other than `count`: a stage wrote them, not a client.
    """
    if not contexts:
        return []
    try:
        split_contexts = split(contexts)
    except DecodeError as error:
        raise ApplyError("the contexts of a span are not framed") from error
    if len(split_contexts) != count:
        raise ApplyError(f"a span of {count} has {len(split_contexts)} contexts; one per index")
    return split_contexts


def malformed(case: str, /, **details: object) -> errors_pb2.Error:
    """Return the error of bytes that are not the request they should be."""
    return Refusal.of(Reason.REASON_MALFORMED_REQUEST, case, **details).to_error()


def _skipped(count: int, refused: Iterable[int]) -> dict[int, errors_pb2.Error | None]:
    if count > PREPARE_COMMANDS_MAX:
        raise ApplyError(f"a span of {count} items; the gateway admits {PREPARE_COMMANDS_MAX}")
    skipped: dict[int, errors_pb2.Error | None] = dict.fromkeys(refused)
    if skipped and max(skipped) >= count:
        raise ApplyError(f"index {max(skipped)} is refused in a span of {count} items")
    return skipped


def _decode_each(
    request: type[Message], items: bytes, count: int, skipped: dict[int, errors_pb2.Error | None]
) -> DecodedSpan:
    """Find the malformed items, and keep the others."""
    try:
        encoded = split(items)
    except DecodeError:
        return _refused_whole(count, None, skipped)
    if len(encoded) != count:
        return _refused_whole(count, len(encoded), skipped)
    requests: list[Message | None] = []
    for index, item in enumerate(encoded):
        try:
            requests.append(request.FromString(item))
        except DecodeError:
            requests.append(None)
            skipped.setdefault(index, _not_a(request))
    return DecodedSpan(requests, skipped)


def _not_a(request: type[Message]) -> errors_pb2.Error:
    return malformed("wrong_type", type=request.DESCRIPTOR.full_name)


def _refused_whole(
    count: int, found: int | None, skipped: dict[int, errors_pb2.Error | None]
) -> DecodedSpan:
    """Refuse every index that an earlier stage has not refused."""
    if found is None:
        error = malformed("unframed")
    else:
        error = malformed("span_count", claimed=count, found=found)
    for index in range(count):
        skipped.setdefault(index, error)
    return DecodedSpan((None,) * count, skipped)
