"""How many runs a prepare really makes: as the mux splits it, whatever the batcher counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator.gateway.request_runs import check_runs, method_shape, mux_route
from coordinator.mux.run_shapes import Shape
from coordinator.mux.runs import RunEntry, split
from coordinator.mux.types import TRANSACT_CODE
from coordinator.replica.batcher import LooseCommand, PrepareBatch, Reply, SessionRequest
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.routing import methods_of_file

METHODS = {
    method.name: method
    for file in (streams_service_pb2.DESCRIPTOR, users_service_pb2.DESCRIPTOR, submit.DESCRIPTOR)
    for method in methods_of_file(file)
}
SHAPES = {name: method_shape(method) for name, method in METHODS.items()}
ROUTES = {method.code: mux_route(method) for method in METHODS.values()}
# One of each kind: it ends runs of others, sends back to users, or to sessions, or nothing.
KINDS = ("UpdatePermissions", "DeleteStream", "UpdateUser", "CreateStream", "Transact")

_LOOP = asyncio.new_event_loop()


def loose(name: str, user_id: int = 1) -> LooseCommand:
    """Return a command without a session, as the gateway has it."""
    future = asyncio.Future[Reply](loop=_LOOP)
    return LooseCommand(METHODS[name].code, b"", user_id, 1, "", future, shape=SHAPES[name])


def request(names: Sequence[str], count: int = 1, user_id: int = 1) -> SessionRequest:
    """Return a request of a session, as the gateway has it: spans of so many commands each."""
    logged = log_pb2.LoggedRequest(session_id=user_id, number=1)
    for name in names:
        items = b"\x0a\x00" * count
        logged.spans.add(code=METHODS[name].code, count=count, items=items, user_id=user_id)
    future = asyncio.Future[Reply](loop=_LOOP)
    return SessionRequest(logged, future, user_id, shape=shape_of(names, count))


def shape_of(names: Sequence[str], count: int = 1) -> Shape:
    """Return what the gateway makes of a request."""
    return check_runs([SHAPES[name] for name in names], [count] * len(names))


def split_runs(requests: Sequence[log_pb2.LoggedRequest]) -> int:
    """Return how many runs the mux makes of the requests of a prepare."""
    return len(split([entry for each in requests for entry in _entries(each)]))


def runs_of(batch: PrepareBatch) -> int:
    """Return how many runs the mux makes of a prepare."""
    return split_runs(log_pb2.PrepareBody.FromString(batch.body).requests)


def _entries(logged: log_pb2.LoggedRequest) -> list[RunEntry]:
    entries: list[RunEntry] = []
    for span in logged.spans:
        is_transact = span.code == TRANSACT_CODE
        route = None if is_transact else ROUTES[span.code]
        for _ in range(span.count if is_transact else 1):
            entries.append(RunEntry(route, starts_request=not entries))
    return entries
