"""What the API reference says of a method beside its comment: callers, feature level, refusals."""

from __future__ import annotations

import re
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, MethodDescriptorProto

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.errors import status_code

# Names of gRPC status codes by number.
_CODES: Final = {code.value[0]: code.name for code in grpc.StatusCode}
# Packages whose services only processes of the cluster call.
INTERNAL_PACKAGES: Final = frozenset({"domain", "replication"})
# Sentences of a comment that say who may call: they name a permission, or whom one is.
_PERMISSION: Final = re.compile(
    r"\b(?:manage|read|send|poll)_[a-z]+|\b(?:be its user|[Ee]very user may|needs permission)\b"
)
_SENTENCE: Final = re.compile(r"(?<=[.;])\s+(?=[A-Z])")
_REFUSAL: Final = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b|\bUNAUTHENTICATED\b")
_ERRORS: Final = "Errors:"

# By gate: what a caller must be allowed to do, somewhere.
GATES: Final = {
    routing_pb2.GATE_READ_SERVERS: "read_servers or manage_servers",
    routing_pb2.GATE_MANAGE_SERVERS: "manage_servers",
    routing_pb2.GATE_READ_TOPIC: "read_topic, or any other read or manage of streams or topics",
    routing_pb2.GATE_MANAGE_TOPIC: "manage_topic, manage_topics, manage_stream or manage_streams",
    routing_pb2.GATE_POLL_MESSAGES: "read_topic and poll_messages",
    routing_pb2.GATE_READ_USERS: "read_users or manage_users",
    routing_pb2.GATE_LIST_TOPICS: "read_topics, or any other read or manage of streams or topics",
}


def kind(method: MethodDescriptorProto) -> str:
    """Return the kind of a method for the gateway: a command, a query, or neither of them."""
    if method.options.HasExtension(routing_pb2.command):
        return "command"
    return "query" if method.options.HasExtension(routing_pb2.query) else "direct"


def level(method: MethodDescriptorProto) -> int:
    """Return the feature level from which on a method is served; 1 means always."""
    options = _options(method)
    return 1 if options is None else max(1, options.since_level)


def field_level(field: FieldDescriptorProto) -> int:
    """Return the feature level from which on a field counts; 1 means always."""
    since: int = field.options.Extensions[routing_pb2.since_level]
    return max(1, since)


def callers(package: str, method: MethodDescriptorProto, comment: str) -> str:
    """Return who may call a method, in words; `comment` is the method's."""
    of_kind, options = kind(method), _options(method)
    if package in INTERNAL_PACKAGES:
        return "processes of the cluster"
    if options is not None and of_kind == "command" and options.internal:
        return "the primary itself"
    if options is not None and of_kind == "query" and options.public:
        return "everybody, without a token"
    if options is not None and options.resolve.gate:
        return f"users with {GATES[options.resolve.gate]}"
    said = [each for each in _SENTENCE.split(_body(comment)) if _PERMISSION.search(each)]
    return " ".join(said) if said else "every user"


def refusals(service_comment: str, comment: str) -> list[tuple[str, str]]:
    """Return the reasons that a method's comments name, the method's own first, and their codes.

    Raises ValueError for a reason that does not exist.
    """
    own = _REFUSAL.findall(comment.partition(_ERRORS)[2])
    shared = _REFUSAL.findall(service_comment)
    reasons = frozenset(Reason.keys())
    names = dict.fromkeys(name for name in (*own, *shared) if f"REASON_{name}" in reasons)
    unknown = [name for name in own if name not in names and name not in _CODES.values()]
    if unknown:
        raise ValueError(f"a comment names {unknown[0]}, which is no reason of a refusal")
    return [(name, _CODES[status_code(Reason.Value(f"REASON_{name}"))]) for name in names]


def _body(comment: str) -> str:
    """Return a comment as one line, without the list of errors."""
    return " ".join(comment.partition(_ERRORS)[0].split())


def _options(method: MethodDescriptorProto) -> Any:
    """Return the routing options of a method, None for one that has none."""
    of_kind = kind(method)
    if of_kind == "direct":
        return None
    return method.options.Extensions[getattr(routing_pb2, of_kind)]
