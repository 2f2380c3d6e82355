"""The alarms that operators see: what is wrong at this moment."""

from __future__ import annotations

import logging
from collections.abc import Callable

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

_log = logging.getLogger(__name__)


class Alarms:
    """Raised alarms, one per kind and subject, until they are cleared."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._raised: dict[tuple[int, str], cluster_pb2.Alarm] = {}

    def raise_alarm(
        self, kind: cluster_pb2.AlarmKind.ValueType, message: str, subject: str = ""
    ) -> None:
        """Raise an alarm, unless it is raised already."""
        key = (kind, subject)
        if key in self._raised:
            return
        self._raised[key] = cluster_pb2.Alarm(kind=kind, message=message, since=self._clock_us())
        name = cluster_pb2.AlarmKind.Name(kind)
        _log.error("alarm raised", extra={"fields": {"alarm": name, "message": message}})

    def tell(self, kind: cluster_pb2.AlarmKind.ValueType, message: str, subject: str = "") -> None:
        """Raise an alarm, or change what a raised one says."""
        self.raise_alarm(kind, message, subject)
        self._raised[kind, subject].message = message

    def clear(self, kind: cluster_pb2.AlarmKind.ValueType, subject: str = "") -> None:
        """Clear an alarm if it is raised."""
        if self._raised.pop((kind, subject), None) is not None:
            name = cluster_pb2.AlarmKind.Name(kind)
            _log.warning("alarm cleared", extra={"fields": {"alarm": name, "subject": subject}})

    def all(self) -> list[cluster_pb2.Alarm]:
        """Return what is raised, the oldest first."""
        return sorted(self._raised.values(), key=lambda alarm: alarm.since)
