"""The number of runs of a request, which cost beyond its commands.

A prepare is split into runs (`coordinator.mux.runs`), each a round trip to several services. So a
request that alternates between kinds of commands costs many times as much as in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.mux import types as mux_types
from coordinator.mux.run_shapes import Shape, command_shape, is_transaction, request_shape
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.routing import Method, MethodKind


def check_runs(shapes: Sequence[Shape], counts: Sequence[int]) -> Shape:
    """Return the shape of a request from those of its spans' methods, and their commands.

    Raises Refusal COMMAND_TOO_LARGE.
    """
    if len(shapes) == 1 and (counts[0] == 1 or not is_transaction(shapes[0])):
        return shapes[0]
    shape = request_shape(zip(shapes, counts, strict=True))
    runs = shape.runs
    if runs > limits.REQUEST_RUNS_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the commands of the request form {runs} groups, which must go through the"
            " services one"
            f" after another; at most {limits.REQUEST_RUNS_MAX} are allowed: put commands of one"
            " method next to each other, or split the request",
            runs=runs,
            runs_max=limits.REQUEST_RUNS_MAX,
        )
    return shape


def method_shape(method: Method) -> Shape:
    """Return what commands of a method add to the runs of a request."""
    is_transact = method.request is submit_pb2.TransactRequest
    return command_shape(None if is_transact else mux_route(method))


def mux_route(method: Method) -> mux_types.Route:
    """Return a method's options in the mux's form."""
    resolve = mux_types.Stage(method.resolve_stage) if method.resolve_stage else None
    return mux_types.Route(
        code=method.code,
        owner=mux_types.Stage(method.owner),
        resolve_stage=resolve,
        gate=method.gate,
        emits_backward=frozenset(mux_types.Stage(stage) for stage in method.emits_backward),
        sets_grants=method.sets_grants,
        internal=method.internal,
        is_query=method.kind is MethodKind.QUERY,
    )
