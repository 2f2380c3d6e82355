"""Who may see the past, decided today: the rule of a watch (`watch_openings`).

One linearizable read of the present finds whether the caller's credentials are in force, and when
the caller's access changed last. What was before is not given out, since the access of that time is
not known any more; root is an exception, because it was always allowed everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.gateway.change_pages import ChangeReads, changes_span, confirmed, page_of
from coordinator.gateway.replies import result_of
from coordinator.gateway.routes import Routes
from coordinator.mux import types as mux
from coordinator.replica.batcher import Reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import ROOT_USER_ID
from viewstamp.routing import Method


@dataclass(frozen=True, slots=True)
class PresentQuestion:
    """A read of the present that the caller makes."""

    path: str
    request: bytes


@dataclass(frozen=True, slots=True)
class PresentAnswers:
    """What the present says, at `reply`: an answer for each question, or its refusal.

    `oldest_revision` is that of the first state that the caller may see.
    """

    reply: Reply
    answers: Sequence[bytes | Refusal]
    oldest_revision: int


class PastAccess:
    """Asks the present. `watched` are the types that the services show, by stage."""

    def __init__(
        self,
        routes: Routes,
        reads: ChangeReads,
        watched: Callable[[], Mapping[mux.Stage, Collection[str]]],
        *,
        is_served: bool = True,
    ) -> None:
        self._is_served = is_served
        self.routes = routes
        self._reads = reads
        self._watched = watched

    async def ask(
        self,
        user_id: int,
        credential_revision: int,
        revision: int,
        questions: Sequence[PresentQuestion],
    ) -> PresentAnswers:
        """Ask at least one question, not before a revision. Raises Refusal, UNAUTHENTICATED
        included."""
        if not self._is_served:
            raise Refusal(
                Reason.REASON_UNIMPLEMENTED,
                "this replica does not build earlier states (--no-history): ask another one",
            )
        if not self._watched().get(mux.Stage.STREAMS):
            raise Refusal(
                Reason.REASON_UNIMPLEMENTED,
                "the service of streams does not tell when access changes: upgrade it",
            )
        read = mux.Read(
            self._reads.next_token(),
            (
                *map(self._span, questions),
                changes_span(mux.Stage.STREAMS, domain_pb2.ChangesRequest(user_id=user_id)),
            ),
            user_id,
            credential_revision,
        )
        reply = await confirmed(
            self._reads, read, revision, "name a revision that the cluster has reached"
        )
        answers = [_answer(reply, index) for index in range(len(questions))]
        page = page_of(reply, len(questions))
        is_root = user_id == ROOT_USER_ID
        oldest = 0 if is_root else max(page.access_revision, page.oldest_revision - 1)
        return PresentAnswers(reply, answers, oldest)

    def _span(self, question: PresentQuestion) -> mux.ReadSpan:
        method: Method = self.routes.public(question.path)
        return mux.ReadSpan(method.code, 1, frame(question.request))


def _answer(reply: Reply, index: int) -> bytes | Refusal:
    """Return an answer or its refusal. Raises Refusal UNAUTHENTICATED."""
    try:
        return result_of(reply, index)
    except Refusal as refusal:
        if refusal.reason == Reason.REASON_UNAUTHENTICATED:
            raise
        return refusal
