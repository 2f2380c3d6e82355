"""Digests of all stages for GetStatus: one walk at a time, for all who ask.

A walk over whole states costs as much as they hold, so a caller who asks during one waits for the
next, together with all others who do: each gets digests of states no older than the question.
Domain services walk by themselves. The sessions section, up to 256 MiB of replies, is hashed here,
in slices between which everything else goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

from coordinator.gateway.shares import full, too_much
from coordinator.mux import types as mux
from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format.digest import StateDigest
from viewstamp.framing import unframe
from viewstamp.limits import (
    ENCODE_SLICE_US,
    STATUS_DIGESTS_MAX,
    STATUS_DIGESTS_PER_USER_MAX,
)
from viewstamp.machine.freezing import Entity

SLICE_NS: Final = ENCODE_SLICE_US * 1_000
_SPANS: Final = tuple(
    mux.ReadSpan(mux.STATE_DIGEST_CODE, 1, b"", owner=stage) for stage in mux.SERVICE_STAGES
)

# In hexadecimal, by stage; sessions included.
Digests: TypeAlias = dict[mux.Stage, str]
Waiter: TypeAlias = tuple[int | None, Callable[[Digests | Refusal], None]]

_log = logging.getLogger(__name__)


class Walks(Protocol):
    """Reads of this replica as seen from here."""

    def next_token(self) -> int:
        """Return a new token for a read."""
        ...

    def start(self, read: mux.Read, *, linearizable: bool, revision: int) -> asyncio.Future[Reply]:
        """Start a read. Raises Refusal OVERLOADED."""
        ...


class StatusDigests:
    """The callers who wait for digests, and the walk under way."""

    def __init__(self, reads: Walks, session_entities: Callable[[], Iterable[Entity]]) -> None:
        """Begin idle; a walk begins with the first question."""
        self._reads = reads
        self._session_entities = session_entities
        self._waiting: list[Waiter] = []  # for the next walk
        self._is_walking = False
        # By user, including those for whom the walk under way is.
        self._held: Counter[int | None] = Counter()

    def ask(self, user_id: int | None, tell: Callable[[Digests | Refusal], None]) -> None:
        """Have `tell` called once, later, with the digests or with why there are none.

        Raises Refusal QUOTA_EXCEEDED beyond the user's share, and OVERLOADED.
        """
        self._check_share(user_id)
        if self._is_walking:
            self._waiting.append((user_id, tell))
        else:
            self._begin([(user_id, tell)])
        self._held[user_id] += 1

    def _check_share(self, user_id: int | None) -> None:
        held, in_all = self._held[user_id], self._held.total()
        if held >= STATUS_DIGESTS_PER_USER_MAX:
            raise too_much(user_id or 0, "status_digests", held, STATUS_DIGESTS_PER_USER_MAX)
        if in_all >= STATUS_DIGESTS_MAX:
            raise full("status_digests", in_all, STATUS_DIGESTS_MAX)

    def _begin(self, waiters: Sequence[Waiter]) -> None:
        """Begin a walk. Raises Refusal OVERLOADED."""
        read = mux.Read(self._reads.next_token(), _SPANS, None, 0)
        future = self._reads.start(read, linearizable=False, revision=0)
        self._is_walking = True
        future.add_done_callback(lambda done: self._domains_walked(waiters, done))

    def _domains_walked(self, waiters: Sequence[Waiter], future: asyncio.Future[Reply]) -> None:
        """Continue with sessions, unless a service did not answer."""
        try:
            digests = _digests_of(future.result())
            entities = iter(self._session_entities())
        except (Exception, asyncio.CancelledError) as error:
            self._tell(waiters, _refusal_of(error))
        else:
            self._walk_sessions(waiters, digests, entities, StateDigest())

    def _walk_sessions(
        self,
        waiters: Sequence[Waiter],
        digests: Digests,
        entities: Iterator[Entity],
        found: StateDigest,
    ) -> None:
        """Hash sessions for one slice, and the rest after others had their turn."""
        try:
            is_done = _walked_for_a_slice(entities, found)
        except Exception as error:
            self._tell(waiters, _refusal_of(error))
            return
        if is_done:
            self._tell(waiters, {**digests, mux.Stage.SESSIONS: found.hexdigest()})
        else:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._walk_sessions, waiters, digests, entities, found)

    def _tell(self, waiters: Sequence[Waiter], outcome: Digests | Refusal) -> None:
        """Tell all who wait for this walk, and begin the next if somebody waits for it."""
        self._is_walking = False
        for user_id, tell in waiters:
            self._held[user_id] -= 1
            if not self._held[user_id]:
                del self._held[user_id]
            _tell_one(tell, outcome)
        next_waiters, self._waiting = self._waiting, []
        if not next_waiters:
            return
        try:
            self._begin(next_waiters)
        except Exception as error:
            self._tell(next_waiters, _refusal_of(error))


def _walked_for_a_slice(entities: Iterator[Entity], found: StateDigest) -> bool:
    """Hash entities for one slice; return whether all are done."""
    until_ns = time.perf_counter_ns() + SLICE_NS
    for entity in entities:
        found.add(*entity)
        if time.perf_counter_ns() > until_ns:
            return False
    return True


def _tell_one(tell: Callable[[Digests | Refusal], None], outcome: Digests | Refusal) -> None:
    """Tell one waiter; a failure there must not keep the others waiting."""
    try:
        tell(outcome)
    except Exception:
        _log.exception("a caller could not be told digests")


def _refusal_of(error: BaseException) -> Refusal:
    """Return the refusal to tell in place of digests; log any other error."""
    if isinstance(error, Refusal):
        return error
    _log.error("the digests could not be computed", exc_info=error)
    return Refusal(Reason.REASON_INTERNAL, "the replica could not compute digests: see its log")


def _digests_of(reply: Reply) -> Digests:
    """Return the digests of the domain services. Raises Refusal if one of them refused."""
    for span in reply.spans:
        if span.errors:
            raise Refusal.from_error(span.errors[0].error)
    digests = (unframe(span.results)[0].hex() for span in reply.spans)
    return dict(zip(mux.SERVICE_STAGES, digests, strict=True))
