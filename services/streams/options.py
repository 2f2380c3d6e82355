"""Options of topics: defaults, ranges, and one shared tuple for all topics with the same ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.errors import Refusal

# Distinct options that are shared; beyond, the cache is emptied and begins anew.
OPTIONS_CACHED_MAX: Final = 4096


class Options(NamedTuple):
    """All options of a topic, in the units of streams.v1.TopicOptions."""

    message_expiry_us: int
    max_topic_size_bytes: int
    compression_algorithm: streams_pb2.CompressionAlgorithm.ValueType
    replication_factor: int
    segment_size_bytes: int


DEFAULT_OPTIONS: Final = Options(
    message_expiry_us=0,
    max_topic_size_bytes=0,
    compression_algorithm=streams_pb2.COMPRESSION_ALGORITHM_NONE,
    replication_factor=1,
    segment_size_bytes=limits.SEGMENT_SIZE_BYTES_MAX,
)
_OPTIONAL_FIELDS: Final = (
    "message_expiry_us",
    "max_topic_size_bytes",
    "replication_factor",
    "segment_size_bytes",
)


class OptionsPool:
    """Makes options, and sees to it that equal ones are the same object. A cache, not state."""

    __slots__ = ("_by_canonical", "by_encoding", "shared")

    def __init__(self) -> None:
        self._by_canonical: dict[bytes, Options] = {}  # every option is set in the encoding
        self.by_encoding: dict[bytes, Options] = {}
        self.shared: dict[Options, Options] = {DEFAULT_OPTIONS: DEFAULT_OPTIONS}

    def created(self, message: streams_pb2.TopicOptions) -> Options:
        """Return the options of a new topic: `message` over the defaults. Raises Refusal."""
        encoding = message.SerializeToString(deterministic=True)
        known = self.by_encoding.get(encoding)
        if known is None:
            known = self._share(_checked(_overlaid(DEFAULT_OPTIONS, message)))
            self.by_encoding[encoding] = known
        return known

    def updated(self, options: Options, message: streams_pb2.TopicOptions) -> Options:
        """Return `options` with what `message` sets. Raises Refusal."""
        if message.HasField("segment_size_bytes"):
            raise Refusal.of(Reason.REASON_UNSUPPORTED_OPTION, "fixed", option="segment_size_bytes")
        return self._share(_checked(_overlaid(options, message)))

    def loaded(self, encoding: bytes) -> Options | None:
        """Return the options of a section's topic; None if no topic's options are encoded so."""
        known = self._by_canonical.get(encoding)
        if known is None:
            try:
                known = self.created(streams_pb2.TopicOptions.FromString(encoding))
            except Refusal:
                return None
            if to_message(known).SerializeToString(deterministic=True) != encoding:
                return None
            self._by_canonical[encoding] = known
        return known

    def _share(self, options: Options) -> Options:
        caches = self.shared, self.by_encoding, self._by_canonical
        if any(len(cache) >= OPTIONS_CACHED_MAX for cache in caches):
            self.shared.clear()
            self.by_encoding.clear()
            self._by_canonical.clear()
        return self.shared.setdefault(options, options)


@lru_cache(OPTIONS_CACHED_MAX)
def to_message(options: Options) -> streams_pb2.TopicOptions:
    """Return the options as callers and sections see them: every one is set.

    The message is shared: do not change it. Few topics have options that no other has.
    """
    return streams_pb2.TopicOptions(**options._asdict())


def _overlaid(options: Options, message: streams_pb2.TopicOptions) -> Options:
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number = unknown[0].field_number
        raise Refusal.of(Reason.REASON_UNSUPPORTED_OPTION, "unknown", option=number)
    changes = {name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)}
    if message.compression_algorithm:
        changes["compression_algorithm"] = message.compression_algorithm
    return options._replace(**changes)


def _checked(options: Options) -> Options:
    if not 1 <= options.replication_factor <= limits.REPLICATION_FACTOR_MAX:
        raise _out_of_range(
            "replication_factor", options.replication_factor, 1, limits.REPLICATION_FACTOR_MAX
        )
    if options.compression_algorithm not in streams_pb2.CompressionAlgorithm.values():
        highest = max(streams_pb2.CompressionAlgorithm.values())
        raise _out_of_range("compression_algorithm", options.compression_algorithm, 1, highest)
    _check_sizes(options.segment_size_bytes, options.max_topic_size_bytes)
    return options


def _check_sizes(segment: int, topic: int) -> None:
    if not limits.SEGMENT_SIZE_BYTES_MIN <= segment <= limits.SEGMENT_SIZE_BYTES_MAX:
        raise _out_of_range(
            "segment_size_bytes",
            segment,
            limits.SEGMENT_SIZE_BYTES_MIN,
            limits.SEGMENT_SIZE_BYTES_MAX,
        )
    if segment % limits.SEGMENT_SIZE_BYTES_MULTIPLE:
        raise Refusal.of(
            Reason.REASON_INVALID_OPTION,
            "not_a_multiple",
            option="segment_size_bytes",
            value=segment,
            multiple=limits.SEGMENT_SIZE_BYTES_MULTIPLE,
        )
    if topic and topic < segment:
        raise Refusal.of(
            Reason.REASON_INVALID_TOPIC_SIZE,
            max_topic_size_bytes=topic,
            segment_size_bytes=segment,
        )


def _out_of_range(option: str, value: int, lowest: int, highest: int) -> Refusal:
    return Refusal.of(
        Reason.REASON_INVALID_OPTION,
        "out_of_range",
        option=option,
        value=value,
        lowest=lowest,
        highest=highest,
    )
