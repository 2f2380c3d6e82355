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
from random import Random
from typing import Final

from coordinator.mux.applied_digests import AppliedDigests
from coordinator.vsr import Prepare
from testkit.checkers.checker import Executed
from testkit.simulation.application import ApplicationKind
from viewstamp.format.prepare import checksum_of
from viewstamp.limits import BOOT_NONCE_BYTES

COUNTERS: Final = 6
ADDITIONS_MAX: Final = 4

RequestId = tuple[int, int]
"""Client and request number."""


@dataclass(frozen=True, slots=True)
class ChainRequest:
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
class ChainReply:
    """The outcome of a request: the op of its entry, and the counters after it."""

    op: int
    values: tuple[int, ...]
    refusal: str = ""


@dataclass(slots=True)
class ChainState:
    """Everything that the log led to; `replies` holds the last of each client, with its number."""

    op: int = 0
    digest: bytes = bytes(16)
    counters: dict[int, int] = field(default_factory=dict)
    replies: dict[int, tuple[int, ChainReply]] = field(default_factory=dict)


def encode_requests(requests: Sequence[ChainRequest]) -> bytes:
    """The body of an entry."""
    return json.dumps([[r.client, r.number, r.additions] for r in requests]).encode()


def decode_requests(prepare: Prepare) -> list[ChainRequest]:
    """The requests of an entry; the bootstrap one has none."""
    return [
        ChainRequest(client, number, tuple((counter, amount) for counter, amount in additions))
        for client, number, additions in (json.loads(prepare.body) if prepare.op > 1 else ())
    ]


def bootstrap_body(nonces: Sequence[bytes]) -> bytes:
    """The body of op 1."""
    return b"".join(nonces)


def read_initial_members(body: bytes) -> Sequence[bytes]:
    """The nonces of op 1."""
    return [body[at : at + BOOT_NONCE_BYTES] for at in range(0, len(body), BOOT_NONCE_BYTES)]


def encode_state(state: ChainState) -> bytes:
    """The state as canonical bytes."""
    replies = [
        [client, number, reply.op, reply.values]
        for client, (number, reply) in sorted(state.replies.items())
    ]
    counters = sorted(state.counters.items())
    return json.dumps([state.op, state.digest.hex(), counters, replies]).encode()


def encode_replies(replies: Sequence[ChainReply]) -> bytes:
    """The answers to an entry as canonical bytes."""
    return json.dumps([[reply.op, reply.values, reply.refusal] for reply in replies]).encode()


def decode_state(encoded: bytes) -> ChainState:
    """The state that bytes stand for."""
    op, digest, counters, replies = json.loads(encoded)
    return ChainState(
        op,
        bytes.fromhex(digest),
        dict(counters),
        {
            client: (number, ChainReply(at_op, tuple(values)))
            for client, number, at_op, values in replies
        },
    )


class ChainApplication:
    """Executes entries in op order, one per step."""

    def __init__(self, random: Random, state: bytes | None = None) -> None:
        self.state = ChainState() if state is None else decode_state(state)
        self.applied_digests = AppliedDigests(self.state.op)
        self._waiting: deque[Prepare] = deque()

    @property
    def op(self) -> int:
        """The last executed entry."""
        return self.state.op

    @property
    def is_busy(self) -> bool:
        """Whether an entry waits to be executed."""
        return bool(self._waiting)

    def start(self, prepare: Prepare) -> None:
        """Take in the next committed entry."""
        self._waiting.append(prepare)

    def step(self) -> list[Executed]:
        """Execute the oldest waiting entry."""
        prepare, state = self._waiting.popleft(), self.state
        assert prepare.op == state.op + 1, f"op {prepare.op} is executed after op {state.op}"
        state.op = prepare.op
        state.digest = checksum_of(state.digest + prepare.checksum)
        effective: list[RequestId] = []
        replies = tuple(self.execute(each, effective) for each in decode_requests(prepare))
        self.applied_digests.add(prepare.op, encode_replies(replies))
        return [Executed(prepare.op, replies, tuple(effective), state.digest)]

    def execute(self, request: ChainRequest, effective: list[RequestId]) -> ChainReply:
        """Execute one request, unless it was executed before."""
        state = self.state
        last_number, last = state.replies.get(request.client, (0, None))
        if last is not None and request.number == last_number:
            return last
        if request.number != last_number + 1:
            return ChainReply(state.op, (), f"the next number is {last_number + 1}")
        values = []
        for counter, amount in request.additions:
            state.counters[counter] = state.counters.get(counter, 0) + amount
            values.append(state.counters[counter])
        effective.append(request.id)
        reply = ChainReply(state.op, tuple(values))
        state.replies[request.client] = (request.number, reply)
        return reply

    def crash_stage(self) -> bool:
        """There are no stages."""
        return False

    def save(self) -> bytes:
        """The state as it goes into a snapshot."""
        return encode_state(self.state)

    def read(self, query: int) -> int:
        """The value of a counter."""
        return self.state.counters.get(query, 0)


class ChainModel:
    """Additions one after the other, each request where it comes first."""

    def __init__(self) -> None:
        self._written: dict[int, list[tuple[int, int]]] = {}
        self._replies: dict[RequestId, ChainReply] = {}

    def commit(self, prepare: Prepare) -> None:
        """Follow the next entry of the history."""
        for request in decode_requests(prepare):
            is_next = request.number == 1 or (request.client, request.number - 1) in self._replies
            if is_next and request.id not in self._replies:
                self._replies[request.id] = ChainReply(prepare.op, self._added(prepare.op, request))

    def _added(self, op: int, request: ChainRequest) -> tuple[int, ...]:
        values = []
        for counter, amount in request.additions:
            written = self._written.setdefault(counter, [])
            values.append((written[-1][1] if written else 0) + amount)
            written.append((op, values[-1]))
        return tuple(values)

    def wrong_reply(self, request: ChainRequest, op: int, reply: ChainReply) -> str | None:
        """Compare a reply with the model's, which for a duplicate is of an earlier entry."""
        expected = self._replies.get(request.id)
        if expected is None:
            return "it is not in the history"
        return None if reply == expected else f"the model says {expected}"

    def wrong_read(self, query: int, op: int, value: int) -> str | None:
        """Compare a counter with the model's value after an entry."""
        written = self._written.get(query, [])
        expected = next((v for at, v in reversed(written) if at <= op), 0)
        return None if value == expected else f"the counter was {expected} behind op {op}"


class ChainLoad:
    """Random additions."""

    def __init__(self, model: ChainModel, random: Random) -> None:
        self._random = random

    def request(self, client: int, number: int) -> ChainRequest:
        """A few additions."""
        count = self._random.randint(1, ADDITIONS_MAX)
        additions = tuple((self.query(), self._random.randint(1, 1_000)) for _ in range(count))
        return ChainRequest(client, number, additions)

    def query(self) -> int:
        """Any counter."""
        return self._random.randrange(COUNTERS)

    def answered(self, request: ChainRequest, reply: ChainReply) -> None:
        """There is nothing to learn."""


CHAIN: Final = ApplicationKind(
    replica=ChainApplication,
    model=ChainModel,
    load=ChainLoad,
    encode=encode_requests,
    bootstrap_body=bootstrap_body,
    read_initial_members=read_initial_members,
)
