"""How often a request goes through the stages: what it costs beyond its commands.

A prepare is split into runs (`coordinator.mux.runs`), each a round trip to several services. So a
request that changes between kinds of commands costs many times what it costs in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.mux import types as mux_types
from coordinator.mux.runs import Entry, split
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.routing import Method, MethodKind

_FEW: Final = 16  # spans and transactions, of which runs are not counted


def check_runs(methods: Sequence[Method], counts: Sequence[int]) -> int:
    """Return how many runs the spans of a request make; few are not counted, and are told as one.

    Raises Refusal COMMAND_TOO_LARGE.
    """
    pieces = sum(n if _is_transact(m) else 1 for m, n in zip(methods, counts, strict=True))
    if pieces <= _FEW:
        return 1
    runs = len(split(_entries(methods, counts)))
    if runs > limits.REQUEST_RUNS_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the request goes through the services {runs} times, one after another, since its"
            f" commands cannot go together; at most {limits.REQUEST_RUNS_MAX} are allowed: put"
            " commands of one method next to each other, or split it",
            runs=runs,
            runs_max=limits.REQUEST_RUNS_MAX,
        )
    return runs


def _entries(methods: Sequence[Method], counts: Sequence[int]) -> list[Entry]:
    """Return what the mux will split: spans, and each transaction by itself."""
    routes = {m.code: None if _is_transact(m) else mux_route(m) for m in methods}
    entries: list[Entry] = []
    for method, count in zip(methods, counts, strict=True):
        route = routes[method.code]
        times = count if route is None else 1
        entries += [Entry(route, starts_request=not entries)] * times
    return entries


def _is_transact(method: Method) -> bool:
    return method.request is submit_pb2.TransactRequest


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
