"""The compact application: counters and client sessions over a chain of hashes.

A request is a client's number and a few additions to counters; its reply is what the counters came
to. The digest covers every entry ever executed, so two replicas that differ anywhere differ for
good.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.vsr import Prepare
from viewstamp.format.prepare import checksum_of
from viewstamp.limits import BOOT_NONCE_BYTES

RequestId = tuple[int, int]
"""Client and request number."""


@dataclass(frozen=True, slots=True)
class Request:
    """One client request: additions of amounts to counters, one command each."""

    client: int
    number: int
    additions: tuple[tuple[int, int], ...]

    @property
    def id(self) -> RequestId:
        """What tells it from every other request."""
        return (self.client, self.number)

    @property
    def command_count(self) -> int:
        """How many revisions it takes."""
        return len(self.additions)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request came to: the op of the entry that did it, and the counters after it."""

    client: int
    number: int
    op: int
    values: tuple[int, ...]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Executed:
    """One entry went through: its replies, what took effect in it, and the state after it."""

    op: int
    replies: tuple[Reply, ...]
    effective: tuple[RequestId, ...]
    digest: bytes


def encode_requests(requests: Sequence[Request]) -> bytes:
    """The body of an entry."""
    return json.dumps([[r.client, r.number, r.additions] for r in requests]).encode()


def decode_requests(body: bytes) -> list[Request]:
    """The requests of an entry."""
    return [
        Request(client, number, tuple((counter, amount) for counter, amount in additions))
        for client, number, additions in json.loads(body)
    ]


def founding_body(nonces: Sequence[bytes]) -> bytes:
    """The body of op 1."""
    return b"".join(nonces)


def read_founders(body: bytes) -> Sequence[bytes]:
    """The nonces of op 1."""
    return [body[at : at + BOOT_NONCE_BYTES] for at in range(0, len(body), BOOT_NONCE_BYTES)]


@dataclass(slots=True)
class ChainState:
    """Everything that the log led to."""

    op: int = 0
    digest: bytes = bytes(16)
    counters: dict[int, int] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)


class ChainApplication:
    """Executes entries in op order, one per step."""

    def __init__(self, state: ChainState | None = None) -> None:
        self.state = state or ChainState()
        self._waiting: deque[Prepare] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether an entry waits to be executed."""
        return bool(self._waiting)

    def start(self, prepare: Prepare) -> None:
        """Take in the next committed entry."""
        self._waiting.append(prepare)

    def step(self) -> Executed | None:
        """Execute the oldest waiting entry."""
        return self.execute(self._waiting.popleft())

    def execute(self, prepare: Prepare) -> Executed:
        """Execute one entry."""
        state = self.state
        assert prepare.op == state.op + 1, f"op {prepare.op} is executed after op {state.op}"
        state.op = prepare.op
        state.digest = checksum_of(state.digest + prepare.checksum)
        effective: list[RequestId] = []
        requests = decode_requests(prepare.body) if prepare.op > 1 else []
        replies = tuple(self._request(request, effective) for request in requests)
        return Executed(prepare.op, replies, tuple(effective), state.digest)

    def _request(self, request: Request, effective: list[RequestId]) -> Reply:
        state = self.state
        last = state.replies.get(request.client)
        last_number = 0 if last is None else last.number
        if last is not None and request.number == last_number:
            return last
        if request.number != last_number + 1:
            refusal = f"the next number is {last_number + 1}"
            return Reply(request.client, request.number, state.op, (), refusal)
        values = []
        for counter, amount in request.additions:
            state.counters[counter] = state.counters.get(counter, 0) + amount
            values.append(state.counters[counter])
        effective.append(request.id)
        reply = Reply(request.client, request.number, state.op, tuple(values))
        state.replies[request.client] = reply
        return reply

    def read(self, query: Any) -> int:
        """The value of a counter, behind the last executed entry."""
        return self.state.counters.get(query, 0)
