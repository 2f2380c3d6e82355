"""Packs waiting requests into the next prepare once it is worth its cost; there is no timer.

A prepare costs about as much as a hundred commands in it. So while prepares are under way, a few
waiting commands wait until the next prepare is applied, and then share one prepare. If no prepare
is under way, no command waits. Many single callers do not take a prepare each.

Two kinds of callers wait: sessions, whose requests are never split and keep their number, and
loose callers without a session, whose commands are packed into requests of the gateway's own
session. A lone command therefore never waits for company, and a crowd shares one prepare.

Snapshot commands of loose callers go alone and first: a cut is a prepare of its own, and a snapshot
frees a full disk, which blocks all other commands. Commands of the replica itself never wait. Of
other callers' snapshot commands, one at a time also goes before the waiting requests. What ends the
epoch goes alone, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from coordinator.base.command_traces import CommandTrace
from coordinator.mux.run_shapes import BARS_ALL, PLAIN, STARTS_REQUEST, Shape
from coordinator.mux.types import BEGIN_EPOCH_CODE, TRANSACT_CODE
from coordinator.replica.request_sizes import check_request_size
from viewstamp import limits
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.routing import methods_of_file

# What a loose command may add to a request beside its payload: its own span, a trace parent, and
# the enclosing request.
LOOSE_COMMAND_OVERHEAD_BYTES: Final = 192
# The memory of a waiting request beside its bytes, roughly.
WAITING_OVERHEAD_BYTES: Final = 512
# While one prepare is under way, this many commands must wait until another is worth its cost, and
# twice as many with every further one: the fuller the pipeline, the larger its prepares...
GATHERED_COMMANDS: Final = 128
# ... or this many bytes, which cost more than the prepare itself.
GATHERED_BYTES: Final = 256 * limits.KIB
WAITING_BYTES_MAX: Final = 64 * limits.MIB
# Of callers; each takes its own prepare, permitted or not.
SNAPSHOT_COMMANDS_WAITING_MAX: Final = 64
# The cut, its outcome, and the commands that free space.
SNAPSHOT_COMMANDS: Final = frozenset(
    {"BeginSnapshot", "CompleteSnapshot", "FailSnapshot", "DeleteSnapshot", "PruneSnapshots"}
)
SNAPSHOT_CODES: Final = frozenset(
    method.code
    for method in methods_of_file(snapshots_service_pb2.DESCRIPTOR)
    if method.name in SNAPSHOT_COMMANDS
)


@dataclass(frozen=True, slots=True)
class AnsweredSpan:
    """The answer to one span: framed results, and the errors of refused commands by index."""

    results: bytes
    errors: Sequence[errors_pb2.IndexedError]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: its place in the log, and its spans or one error for all."""

    view: int
    op: int
    first_revision: int
    spans: tuple[AnsweredSpan, ...]
    error: errors_pb2.Error | None = None

    def errors_of(self, position: int) -> Sequence[errors_pb2.IndexedError]:
        """Return the refusals of a span.

        A reply that was kept without a fingerprint may be that of a request with fewer spans.
        """
        return self.spans[position].errors if position < len(self.spans) else ()


@dataclass(slots=True)
class SessionRequest:
    """One request of a session, ready for the log, and the future of its reply."""

    logged: log_pb2.LoggedRequest
    future: asyncio.Future[Reply]
    user_id: int = 0
    encoded: bytes = b""
    command_count: int = 0
    traces: Sequence[CommandTrace] = ()  # of sampled calls
    shape: Shape = PLAIN

    def __post_init__(self) -> None:
        self.encoded = frame(self.logged.SerializeToString())
        spans = self.logged.spans
        self.command_count = spans[0].count if len(spans) == 1 else sum(s.count for s in spans)


@dataclass(slots=True)
class LooseCommand:
    """One command of a caller without a session."""

    code: int
    item: bytes  # loggable payload
    user_id: int
    credential_revision: int
    trace_parent: str
    future: asyncio.Future[Reply]  # of one span with one result
    trace: CommandTrace | None = None  # if it is sampled
    shape: Shape = PLAIN


@dataclass(slots=True)
class PrepareBatch:
    """The content of one prepare: its body, and its waiters, request by request."""

    body: bytes
    command_count: int
    requests: list[log_pb2.LoggedRequest]
    waiters: list[asyncio.Future[Reply] | list[LooseCommand]]
    may_use_reserve: bool = False
    ends_epoch: bool = False
    traces: Sequence[CommandTrace] = ()  # of sampled calls, by their place in the prepare
    runs: int = 1


# A request with its measures: bytes, commands, and its cost in a turn. The cost counts commands, or
# bytes or runs where those cost more. A plain tuple, because one is made for each command.
_Waiting: TypeAlias = tuple[SessionRequest | LooseCommand, int, int, int]


@dataclass(slots=True)
class _Builder:
    parts: list[bytes] = field(default_factory=list)
    requests: list[log_pb2.LoggedRequest] = field(default_factory=list)
    waiters: list[asyncio.Future[Reply] | list[LooseCommand]] = field(default_factory=list)
    traces: list[CommandTrace] = field(default_factory=list)
    command_count: int = 0
    size: int = 0
    # Loose commands of any callers that will share the next request.
    loose: list[LooseCommand] = field(default_factory=list)
    loose_size: int = 0
    # Runs so far, and what the last of them bars: see `coordinator.mux.run_shapes`.
    runs: int = 0
    bars: int = BARS_ALL

    def takes(self, waiting: _Waiting) -> bool:
        """Append a request, or a loose command; return False if it no longer fits."""
        request, size, command_count, _ = waiting
        shape = request.shape
        is_joined = self.loose and isinstance(request, LooseCommand)
        needs = shape.needs if is_joined else shape.needs | STARTS_REQUEST
        new_runs = shape.runs if self.bars & needs else 0
        if not self._fits(command_count, size, new_runs):
            return False
        self.runs += new_runs
        self.bars = shape.bars if new_runs else self.bars | shape.bars
        if isinstance(request, LooseCommand):
            if request.trace is not None:
                self._trace(request.trace, len(self.loose))
            self.loose.append(request)
            self.loose_size += size
            return True
        self.end_loose()
        for trace in request.traces:
            self._trace(trace, trace.index)
        self._add(request.encoded, request.logged, request.command_count, request.future)
        return True

    def end_loose(self) -> None:
        """Make a request of the loose commands taken."""
        if self.loose:
            taken, self.loose, self.loose_size = self.loose, [], 0
            request = pack_loose(taken)
            self._add(frame(request.SerializeToString()), request, len(taken), taken)

    def _fits(self, command_count: int, size: int, runs: int) -> bool:
        """Return whether that much more fits into this prepare."""
        loose = len(self.loose)
        return (
            self.command_count + loose + command_count <= limits.PREPARE_COMMANDS_MAX
            # Acknowledgements hold no command, but must not make a prepare endless either.
            and len(self.requests) + bool(loose) < limits.PREPARE_COMMANDS_MAX
            and self.size + self.loose_size + size <= limits.PREPARE_BODY_BYTES_MAX
            and self.runs + runs <= limits.PREPARE_RUNS_MAX
        )

    def _add(
        self,
        encoded: bytes,
        request: log_pb2.LoggedRequest,
        command_count: int,
        waiter: asyncio.Future[Reply] | list[LooseCommand],
    ) -> None:
        """Append one request."""
        self.parts.append(encoded)
        self.requests.append(request)
        self.waiters.append(waiter)
        self.command_count += command_count
        self.size += len(encoded)

    def _trace(self, trace: CommandTrace, index: int) -> None:
        """Note a sampled call whose first command is the `index`-th of the next addition."""
        trace.offset = self.command_count + index
        self.traces.append(trace)


class TurnQueues:
    """Waiting requests by user. Users take turns: nobody's commands delay others for long.

    A turn has a budget of commands, and a larger request uses up several turns, so that a sender of
    few large requests gets no more than a sender of many small ones. Each user's order is kept.
    """

    def __init__(self) -> None:
        self._of_user: dict[int, deque[_Waiting]] = {}
        self._order: deque[int] = deque()  # of turns
        self._credit: dict[int, int] = {}  # commands left of a turn, and of those before
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiting: _Waiting) -> None:
        """Queue a request behind those of the same user."""
        user_id = waiting[0].user_id
        queue = self._of_user.get(user_id)
        if queue is None:
            queue = self._of_user[user_id] = deque()
            self._order.append(user_id)
            self._credit[user_id] = limits.COMMANDS_IN_TURN
        queue.append(waiting)
        self._count += 1

    def hand_out(self, takes: Callable[[_Waiting], bool]) -> None:
        """Hand out requests, turn by turn, until `takes` returns False or nothing waits.

        A request that `takes` refuses stays first in its queue.
        """
        while self._order:
            user_id = self._order[0]
            queue = self._of_user[user_id]
            goes_on = self._hand_out_turn(user_id, queue, takes)
            if not queue:
                del self._of_user[user_id], self._credit[user_id]
                self._order.popleft()
            elif goes_on:
                self._credit[user_id] += limits.COMMANDS_IN_TURN
                self._order.rotate(-1)
            if not goes_on:
                return

    def _hand_out_turn(
        self, user_id: int, queue: deque[_Waiting], takes: Callable[[_Waiting], bool]
    ) -> bool:
        """Hand out one user's requests within the turn; return False if `takes` wants no more."""
        credit = self._credit[user_id]
        is_alone = len(self._order) == 1
        goes_on = True
        before = len(queue)
        while queue:
            cost = queue[0][3]
            if cost > credit and not is_alone:
                break
            if not takes(queue[0]):
                goes_on = False
                break
            queue.popleft()
            credit = credit - cost if credit > cost else 0
        self._credit[user_id] = credit
        self._count -= before - len(queue)
        return goes_on


class Batcher:
    """The requests that wait for a place in the log: in order of arrival per user, in turns."""

    def __init__(self) -> None:
        self._queues = TurnQueues()
        self._waiting_bytes = 0
        self._waiting_commands = 0
        # Snapshot commands: the replica's own, and those of callers.
        self._own: deque[LooseCommand] = deque()
        self._asked: deque[LooseCommand] = deque()
        self._was_asked = False  # whether the last prepare was one of these
        # What ends the epoch.
        self._changes: deque[LooseCommand] = deque()

    def __len__(self) -> int:
        return len(self._queues) + len(self._own) + len(self._asked) + len(self._changes)

    @property
    def has_lone_command(self) -> bool:
        """Whether a command waits that goes first, and alone."""
        return bool(self._own or self._asked or self._changes)

    def is_worth_a_prepare(self, under_way: int) -> bool:
        """Return whether enough waits for one more prepare beside those under way."""
        return (
            self._waiting_commands >= gathered_commands(under_way)
            or self._waiting_bytes >= GATHERED_BYTES
        )

    def add(self, waiting: SessionRequest | LooseCommand) -> None:
        """Queue a request.

        Raises Refusal COMMAND_TOO_LARGE if it could never fit into a prepare, OVERLOADED if too
        many bytes, or snapshot commands, wait already.
        """
        if isinstance(waiting, LooseCommand):
            size, command_count = len(waiting.item) + LOOSE_COMMAND_OVERHEAD_BYTES, 1
        else:
            size, command_count = len(waiting.encoded), waiting.command_count
        if size > limits.PREPARE_BODY_BYTES_MAX or command_count > limits.REQUEST_COMMANDS_MAX:
            check_request_size(command_count, size)
        if isinstance(waiting, LooseCommand) and waiting.code in SNAPSHOT_CODES:
            self._add_snapshot_command(waiting)
            return
        if isinstance(waiting, LooseCommand) and waiting.code == BEGIN_EPOCH_CODE:
            if self._changes:
                raise Refusal(
                    Reason.REASON_OVERLOADED, "another change of members is waiting: try again"
                )
            self._changes.append(waiting)
            return
        if self._waiting_bytes + size + WAITING_OVERHEAD_BYTES > WAITING_BYTES_MAX:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                f"requests of {self._waiting_bytes} bytes are waiting already: try again",
                waiting_bytes=self._waiting_bytes,
            )
        self._waiting_bytes += size + WAITING_OVERHEAD_BYTES
        self._waiting_commands += command_count
        turn_cost = size // limits.TURN_BYTES_PER_COMMAND or 1
        if command_count > turn_cost:
            turn_cost = command_count
        if waiting.shape.weight > turn_cost:
            turn_cost = waiting.shape.weight
        self._queues.add((waiting, size, command_count, turn_cost))

    def take(self) -> PrepareBatch | None:
        """Return the next prepare's content, or None if nothing waits."""
        if not self._queues:
            return None
        self._was_asked = False
        builder = _Builder()
        self._hand_out(builder.takes)
        builder.end_loose()
        return PrepareBatch(
            b"".join(builder.parts),
            builder.command_count,
            builder.requests,
            builder.waiters,
            traces=builder.traces,
            runs=builder.runs,
        )

    def take_snapshot_command(self) -> PrepareBatch | None:
        """Return a prepare of one snapshot command; None if none is due."""
        if self._own:
            command = self._own.popleft()
        elif self._asked and not (self._was_asked and self._queues):
            command, self._was_asked = self._asked.popleft(), True
        else:
            return None
        return _alone(command)

    def take_change(self) -> PrepareBatch | None:
        """Return a prepare that ends the epoch; None if none is due."""
        return _alone(self._changes.popleft()) if self._changes else None

    def refuse_all(self, refusal: Refusal) -> None:
        """Fail all waiting requests."""
        self.refuse_ordinary(refusal)
        _refuse(self._own, refusal)
        self.refuse_asked(refusal)

    def refuse_ordinary(self, refusal: Refusal) -> None:
        """Fail all waiting requests except snapshot commands."""

        def refuse(waiting: _Waiting) -> bool:
            future = waiting[0].future
            if not future.done():
                future.set_exception(refusal)
            return True

        self._hand_out(refuse)
        _refuse(self._changes, refusal)

    def refuse_asked(self, refusal: Refusal) -> None:
        """Fail callers' snapshot commands: the rest of the reserve is for the replica's own."""
        _refuse(self._asked, refusal)

    def _add_snapshot_command(self, command: LooseCommand) -> None:
        if command.user_id == limits.SYSTEM_USER_ID:
            self._own.append(command)
        elif len(self._asked) < SNAPSHOT_COMMANDS_WAITING_MAX:
            self._asked.append(command)
        else:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                f"{len(self._asked)} commands about snapshots are waiting already: try again",
                waiting=len(self._asked),
            )

    def _hand_out(self, takes: Callable[[_Waiting], bool]) -> None:
        """Hand out waiting requests, in turn, until `takes` returns False; keep the sums."""
        taken_bytes = taken_commands = 0

        def counted(waiting: _Waiting) -> bool:
            nonlocal taken_bytes, taken_commands
            if not takes(waiting):
                return False
            taken_bytes += waiting[1] + WAITING_OVERHEAD_BYTES
            taken_commands += waiting[2]
            return True

        self._queues.hand_out(counted)
        self._waiting_bytes -= taken_bytes
        self._waiting_commands -= taken_commands


def _alone(command: LooseCommand) -> PrepareBatch:
    """Return a prepare of one command."""
    request = pack_loose([command])
    ends_epoch = command.code == BEGIN_EPOCH_CODE
    return PrepareBatch(
        frame(request.SerializeToString()),
        1,
        [request],
        [[command]],
        may_use_reserve=not ends_epoch,
        ends_epoch=ends_epoch,
        traces=() if command.trace is None else (command.trace,),
    )


def _refuse(commands: deque[LooseCommand], refusal: Refusal) -> None:
    while commands:
        waiting = commands.popleft()
        if not waiting.future.done():
            waiting.future.set_exception(refusal)


def gathered_commands(under_way: int) -> int:
    """Return how many commands must wait until one more prepare is worth its cost."""
    if not under_way:
        return 0
    return min(GATHERED_COMMANDS << (under_way - 1), limits.PREPARE_COMMANDS_MAX)


def pack_loose(commands: Sequence[LooseCommand]) -> log_pb2.LoggedRequest:
    """Return one request of the gateway's session.

    Neighbours of equal code and principal share a span; a transaction is a span of its own.
    """
    request = log_pb2.LoggedRequest(session_id=limits.GATEWAY_SESSION_ID)
    key: tuple[int, int, int] | None = None
    items: list[bytes] = []
    for command in commands:
        if command.trace_parent:
            request.trace_parent = command.trace_parent
        this = (command.code, command.user_id, command.credential_revision)
        # A transaction takes one revision and its own run, so it never shares a span.
        if this != key or command.code == TRANSACT_CODE:
            _add_span(request, key, items)
            key, items = this, []
        items.append(frame(command.item))
    _add_span(request, key, items)
    return request


def _add_span(
    request: log_pb2.LoggedRequest, key: tuple[int, int, int] | None, items: Sequence[bytes]
) -> None:
    if key is None:
        return
    code, user_id, credential_revision = key
    request.spans.add(
        code=code,
        count=len(items),
        items=b"".join(items),
        user_id=user_id,
        credential_revision=credential_revision,
    )


def is_about_snapshots(body: bytes) -> bool:
    """Return whether a prepare's body is one that `Batcher.take_snapshot_command` makes."""
    requests = log_pb2.PrepareBody.FromString(body).requests
    spans = [span for request in requests for span in request.spans]
    return bool(spans) and all(span.code in SNAPSHOT_CODES for span in spans)
