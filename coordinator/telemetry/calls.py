"""Calls of the gateway by method and status: how long each took, and how logins ended.

A unary call lasts until its answer is handed to the transport. A call within a request of a Submit
stream lasts as long as its request, from its arrival until its answer may be written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final

import grpc
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal, reason_name, status_code
from viewstamp.telemetry.metrics import LatencyHistogram
from viewstamp.telemetry.rpc import OK as LOGGED_IN

# Callers choose paths and codes: whatever no service claims has one label.
UNKNOWN_METHOD: Final = "unknown"
OK: Final = grpc.StatusCode.OK.value[0]
CANCELLED: Final = grpc.StatusCode.CANCELLED.value[0]
# What the transport answers when a handler fails.
FAILED: Final = grpc.StatusCode.UNKNOWN.value[0]
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
# Shown from the start: Prometheus sees no increase in a series that begins with its first count.
_LOGIN_OUTCOMES: Final = (
    LOGGED_IN,
    *map(reason_name, (Reason.REASON_INVALID_CREDENTIALS, Reason.REASON_QUOTA_EXCEEDED)),
)


class CallMetrics:
    """Histograms by method and status. Written on the event loop, read by the page's thread."""

    def __init__(self) -> None:
        """Count from zero."""
        self._latency: dict[tuple[str, int], LatencyHistogram] = {}
        self._logins = dict.fromkeys(_LOGIN_OUTCOMES, 0)

    def took(self, method: str, status: int, duration_ns: int, count: int = 1) -> None:
        """Count calls that took so long; `status` is the number of a gRPC status."""
        histogram = self._latency.get((method, status))
        if histogram is None:
            histogram = self._latency[method, status] = LatencyHistogram()
        histogram.observe(duration_ns, count=count)

    def login(self, outcome: Reply | Refusal) -> None:
        """Count a login by what became of it."""
        reason = _reason_of(outcome)
        name = LOGGED_IN if reason is None else reason_name(reason)
        self._logins[name] = self._logins.get(name, 0) + 1

    def took_in_part(
        self, method: str, errors: Sequence[errors_pb2.IndexedError], count: int, duration_ns: int
    ) -> None:
        """Count the calls of an answered span, of which some or all were refused."""
        for error in errors:
            self.took(method, status_code(error.error.reason), duration_ns)
        if len(errors) < count:
            self.took(method, OK, duration_ns, count - len(errors))

    def families(self) -> Iterable[Metric]:
        """Yield everything that is counted, for the page."""
        calls = HistogramMetricFamily(
            "viewstamp_call_seconds",
            "From the arrival of a call until its answer.",
            labels=["rpc", "code"],
        )
        for (method, status), histogram in list(self._latency.items()):
            histogram.add_to(calls, [method, _NAMES[status]])
        yield calls
        logins = CounterMetricFamily("viewstamp_logins", "Logins.", labels=["outcome"])
        for outcome, count in list(self._logins.items()):
            logins.add_metric([outcome], count)
        yield logins


class TimedCall:
    """A unary call: counted at the end of the `with` block, unless another replica answered it."""

    __slots__ = ("_began_ns", "_is_elsewhere", "_is_login", "_method", "_metrics", "_status")

    def __init__(self, metrics: CallMetrics, method: str, is_login: bool) -> None:
        """Begin now; `method` is a name that the cluster knows, or UNKNOWN_METHOD."""
        self._metrics = metrics
        self._method = method
        self._is_login = is_login
        self._is_elsewhere = False
        self._status: int | None = None
        self._began_ns = time.monotonic_ns()

    def is_elsewhere(self) -> None:
        """Leave the call to the replica that answers it, as long as that one does."""
        self._is_elsewhere = True

    def ended(self, outcome: Reply | Refusal) -> None:
        """Take what became of the call here."""
        self._is_elsewhere = False
        reason = _reason_of(outcome)
        self._status = OK if reason is None else status_code(reason)
        if self._is_login:
            self._metrics.login(outcome)

    def __enter__(self) -> TimedCall:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count the call, ended or given up."""
        status = self._status
        if status is None and isinstance(error, asyncio.CancelledError):
            status = CANCELLED
        elif status is None and self._is_elsewhere:
            return
        duration_ns = time.monotonic_ns() - self._began_ns
        self._metrics.took(self._method, FAILED if status is None else status, duration_ns)


def _reason_of(outcome: Reply | Refusal) -> Reason.ValueType | None:
    """Return why a call was refused, None if it was not; a reply is that of one call."""
    if isinstance(outcome, Refusal):
        return outcome.reason
    if outcome.error is not None:
        return outcome.error.reason
    errors = outcome.errors_of(0)
    return errors[0].error.reason if errors else None
