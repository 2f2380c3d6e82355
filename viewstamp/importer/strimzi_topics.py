"""A `KafkaTopic` of Strimzi as a topic. Each key of its configuration is carried over or noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from viewstamp import limits
from viewstamp.topology.layout import UINT64_MAX
from viewstamp.topology.model import DeclaredTopic

# Called with what is not carried over, and the reason.
Note: TypeAlias = Callable[[str, str], None]

_ENDLESS: Final = -1
_COMPRESSION: Final = MappingProxyType(
    {"uncompressed": "none", "gzip": "gzip", "lz4": "lz4", "zstd": "zstd"}
)


def topic_of(name: str, spec: Mapping[str, Any], note: Note) -> DeclaredTopic:
    """Return the topic that a resource declares; tell what of it is not in that."""
    return _Conversion(name, spec, note).topic()


class _Conversion:
    """One topic."""

    def __init__(self, name: str, spec: Mapping[str, Any], note: Note) -> None:
        self._name = name
        self._spec = spec
        self._note = note
        config = spec.get("config")
        self._config: Mapping[str, Any] = config if isinstance(config, dict) else {}

    def topic(self) -> DeclaredTopic:
        """Return the topic."""
        partitions = self._number("partitions", 0, limits.PARTITIONS_PER_TOPIC_MAX)
        values: dict[str, Any] = {}
        for key, value in self._config.items():
            convert = _CONVERSIONS.get(key, _Conversion.nothing)
            values.update(convert(self, key, value))
        per_partition = values.pop("retention_bytes", None)
        if per_partition is not None:
            values["max_topic_size_bytes"] = self._topic_size(per_partition, partitions, values)
        topic_name = self._spec.get("topicName")
        return DeclaredTopic(
            name=topic_name if isinstance(topic_name, str) else self._name,
            partitions=partitions,
            replication_factor=self._number("replicas", 1, limits.REPLICATION_FACTOR_MAX),
            **values,
        )

    def retention(self, key: str, value: Any) -> dict[str, Any]:
        """Return how long messages are kept; -1 is for ever."""
        milliseconds = _whole(value)
        if milliseconds == _ENDLESS:
            return {"message_expiry_us": 0}
        if milliseconds is None or not 0 < milliseconds * 1_000 <= UINT64_MAX:
            return self._left_out(key, value, "it must be -1, or milliseconds above 0")
        return {"message_expiry_us": milliseconds * 1_000}

    def retention_bytes(self, key: str, value: Any) -> dict[str, Any]:
        """Return how much a partition may hold; -1 is without limit."""
        size = _whole(value)
        if size is None or (size != _ENDLESS and size <= 0):
            return self._left_out(key, value, "it must be -1, or bytes above 0")
        return {"retention_bytes": size}

    def segment_size(self, key: str, value: Any) -> dict[str, Any]:
        """Return the size of a segment, if it can be one here."""
        size, least, most = (
            _whole(value),
            limits.SEGMENT_SIZE_BYTES_MIN,
            limits.SEGMENT_SIZE_BYTES_MAX,
        )
        multiple = limits.SEGMENT_SIZE_BYTES_MULTIPLE
        if size is None or not least <= size <= most or size % multiple:
            right = f"segments have {least} to {most} bytes, a multiple of {multiple}"
            return self._left_out(key, value, right)
        return {"segment_size_bytes": size}

    def compression(self, key: str, value: Any) -> dict[str, Any]:
        """Return the algorithm."""
        if value in _COMPRESSION:
            return {"compression_algorithm": _COMPRESSION[value]}
        if value == "producer":
            reason = "producers do not choose it here; the topic does, and a new one has none"
        else:
            reason = f"there are only {', '.join(_COMPRESSION.values())}"
        return self._left_out(key, value, reason)

    def cleanup(self, key: str, value: Any) -> dict[str, Any]:
        """Note anything but the deletion of old messages."""
        if value == "delete":
            return {}
        return self._left_out(key, value, "messages are not compacted here, but deleted by age")

    def nothing(self, key: str, value: Any) -> dict[str, Any]:
        """Note a key that means nothing here."""
        return self._left_out(key, value, "topics have no such option here")

    def _topic_size(
        self, per_partition: int, partitions: int | None, values: Mapping[str, Any]
    ) -> int | None:
        """Return how much a topic may hold if its partitions may hold so much."""
        if per_partition == _ENDLESS:
            return 0
        size = per_partition * (partitions or 0)
        segment = values.get("segment_size_bytes", limits.SEGMENT_SIZE_BYTES_MAX)
        if partitions is None or not segment <= size <= UINT64_MAX:
            reason = "it is for a partition; all of them together must hold at least a segment"
            self._left_out("retention.bytes", per_partition, reason)
            return None
        self._note(
            f"KafkaTopic {self._name}: retention.bytes",
            f"it is for a partition; max_topic_size is that of all {partitions} together, {size} "
            "bytes: raise it when you add partitions",
        )
        return size

    def _number(self, key: str, lowest: int, highest: int) -> int | None:
        value = self._spec.get(key)
        number = _whole(value)
        if value is not None and (number is None or not lowest <= number <= highest):
            self._left_out(key, value, f"it must be a number from {lowest} to {highest}")
            return None
        return number

    def _left_out(self, key: str, value: Any, reason: str) -> dict[str, Any]:
        self._note(f"KafkaTopic {self._name}: {key}={value}", reason)
        return {}


_CONVERSIONS: Final[Mapping[str, Callable[[_Conversion, str, Any], dict[str, Any]]]] = (
    MappingProxyType(
        {
            "retention.ms": _Conversion.retention,
            "retention.bytes": _Conversion.retention_bytes,
            "segment.bytes": _Conversion.segment_size,
            "compression.type": _Conversion.compression,
            "cleanup.policy": _Conversion.cleanup,
        }
    )
)


def _whole(value: Any) -> int | None:
    """Return a whole number that is given as one, or as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.removeprefix("-").isascii():
        return int(value) if value.removeprefix("-").isdecimal() else None
    return value if isinstance(value, int) else None
