"""A collector that keeps everything it receives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)


class Received(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector that keeps everything it receives."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.requests: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """Keep a request."""
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        """All spans, in the order in which they came."""
        parts = [part for request in self.requests for part in request.resource_spans]
        return [span for part in parts for scope in part.scope_spans for span in scope.spans]

    @property
    def resource(self) -> dict[str, str]:
        """Return the texts in the last report of the process."""
        said = self.requests[-1].resource_spans[0].resource.attributes
        return {one.key: one.value.string_value for one in said}


@contextmanager
def collecting() -> Iterator[tuple[str, Received]]:
    """Yield the endpoint of a collector, and its received data."""
    server, received = grpc.server(futures.ThreadPoolExecutor(1)), Received()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(received, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", received
    server.stop(0).wait()
