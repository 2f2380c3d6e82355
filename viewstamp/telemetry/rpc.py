"""The attributes of an RPC in spans: its name, its service, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    REASONS,
    UNAVAILABLE,
    reason_name,
    status_code,
)
from viewstamp.telemetry import otlp
from viewstamp.telemetry.spans import AttributeValue, SpanOutcome

OK: Final = "ok"
OUTCOME_OK: Final = otlp.attributes_of({"viewstamp.outcome": OK})[1:-1]  # without brackets
# These are failures of the cluster, not faults of the caller. Other refusals are answers.
_FAILURES: Final = frozenset({INTERNAL, UNAVAILABLE, DEADLINE_EXCEEDED})


class RpcNames(NamedTuple):
    """The names of a method in spans."""

    span_name: str  # "StreamsService/CreateTopic"
    attributes: Mapping[str, AttributeValue]
    encoded: str  # the attributes as OTLP JSON, without the bracket at the end
    pattern: str  # `otlp.pattern_of` a span with this name


@cache  # as many as there are methods
def rpc_names(full_name: str) -> RpcNames:
    """Return the names of a method, given `viewstamp.api.streams.v1.StreamsService/CreateTopic`."""
    service, _, method = full_name.rpartition("/")
    name = f"{service.rpartition('.')[2]}/{method}"
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
    encoded = otlp.attributes_of(attributes).removesuffix("]")
    return RpcNames(name, attributes, encoded, otlp.pattern_of(name))


def refused_attributes(reason: Reason.ValueType) -> dict[str, AttributeValue]:
    """Return the attributes of a refusal."""
    # A cluster that is newer than this library may have new reasons.
    name = reason_name(reason) if reason in REASONS else str(int(reason))
    return {"viewstamp.outcome": name, "viewstamp.reason": name}


def refused_status(reason: Reason.ValueType) -> SpanOutcome:
    """Return the status of a refused call: an error if the cluster failed."""
    is_failure = reason in REASONS and status_code(reason) in _FAILURES
    return SpanOutcome.ERROR if is_failure else SpanOutcome.UNSET
