"""Every method that callers may use: for what tries them all, or stands in for a cluster."""

from __future__ import annotations

from functools import cache
from typing import Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from viewstamp.api.brokers.v1 import brokers_service_pb2
from viewstamp.api.cluster.v1 import cluster_service_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.history.v1 import history_service_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.routing import Method, methods_of_file

API_FILES: Final[tuple[FileDescriptor, ...]] = (
    sessions_service_pb2.DESCRIPTOR,
    submit_service_pb2.DESCRIPTOR,
    users_service_pb2.DESCRIPTOR,
    brokers_service_pb2.DESCRIPTOR,
    streams_service_pb2.DESCRIPTOR,
    consumer_groups_service_pb2.DESCRIPTOR,
    cluster_service_pb2.DESCRIPTOR,
    snapshots_service_pb2.DESCRIPTOR,
    history_service_pb2.DESCRIPTOR,
)


@cache
def methods_by_request() -> dict[type[Message], Method]:
    """Return every method that callers may use, by the type of its request."""
    methods = (method for file in API_FILES for method in methods_of_file(file))
    return {method.request: method for method in methods if not method.internal}
