"""A request of a Submit stream as telemetry sees it: its traces, and when it came."""

from __future__ import annotations

import time

from coordinator.gateway.telemetry import GatewayWatch, Traces
from coordinator.replica.batcher import Reply
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal


class WatchedRequest:
    """A request that has just come; without a watch nothing is noted of it."""

    __slots__ = ("_began_ns", "_request", "_watch", "traces")

    def __init__(
        self,
        watch: GatewayWatch | None,
        request: submit_pb2.CommandRequest | submit_pb2.ReadRequest,
        user_id: int,
    ) -> None:
        """Begin the spans of its sampled calls, `traces`."""
        self._watch = watch
        self._request = request
        self._began_ns = time.monotonic_ns()
        self.traces: Traces = () if watch is None else watch.packed(request, user_id)

    def answered(self, reply: Reply) -> None:
        """Record and count its calls."""
        if self._watch is not None:
            if self.traces:
                self._watch.answered(self.traces, reply)
            self._watch.took(self._request, self._began_ns, reply)

    def refused(self, refusal: Refusal) -> None:
        """Record and count its refusal as a whole."""
        if self._watch is not None:
            self._watch.refused(self.traces, refusal)
            self._watch.took(self._request, self._began_ns, refusal)
