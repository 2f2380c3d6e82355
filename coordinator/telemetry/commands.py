"""One sampled command on its way through the coordinator."""

from __future__ import annotations

from viewstamp.telemetry.rpc import RpcNames
from viewstamp.telemetry.sampling import TraceContext


class CommandTrace:
    """The SERVER span of a sampled call, and what its children begin with.

    `index` and `count` are its commands among those of its request, `offset` is the place of the
    first of them in the prepare; that one is the `span_index`-th of the request's `span`. Times are
    nanoseconds since 1970, 0 for what has not happened.
    """

    __slots__ = (
        "context",
        "parent_id",
        "names",
        "user_id",
        "index",
        "count",
        "span",
        "span_index",
        "offset",
        "started_ns",
        "queued_ns",
        "answered_ns",
    )

    def __init__(
        self,
        context: TraceContext,
        parent_id: str,
        names: RpcNames,
        started_ns: int,
        *,
        user_id: int | None = None,
        index: int = 0,
        count: int = 1,
        span: int = 0,
        span_index: int = 0,
    ) -> None:
        """Begin; `context` is that of the SERVER span, `parent_id` its caller's span or empty.

        `user_id` is None as long as nobody has looked at the token.
        """
        self.context = context
        self.parent_id = parent_id
        self.names = names
        self.user_id = user_id
        self.index = index
        self.count = count
        self.span = span
        self.span_index = span_index
        self.offset = 0
        self.started_ns = started_ns
        self.queued_ns = 0
        self.answered_ns = 0
