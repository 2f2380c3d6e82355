"""Who may see the past, by what the present says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.gateway.past_access import PastAccess, PresentQuestion
from coordinator.gateway.routes import Routes
from coordinator.mux import types as mux
from coordinator.replica.batcher import AnsweredSpan, Reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame

ALICE = 7
# Any read that the coordinator knows without a service.
QUESTION = PresentQuestion("/viewstamp.api.cluster.v1.ClusterService/ListAlarms", b"")


class PresentReads:
    """Answers every read alike: one question, and the changes of access."""

    def __init__(self, reason: Reason.ValueType | None, page: domain_pb2.ChangesPage) -> None:
        refused = () if reason is None else (Refusal(reason, "no").to_error(),)
        errors = tuple(errors_pb2.IndexedError(index=0, error=error) for error in refused)
        self.spans = (
            AnsweredSpan(frame(b""), errors),
            AnsweredSpan(frame(page.SerializeToString()), ()),
        )

    def next_token(self) -> int:
        """Return a token."""
        return 1

    def start(self, read: mux.Read, *, linearizable: bool, revision: int) -> asyncio.Future[Any]:
        """Answer at once."""
        assert linearizable
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(Reply(1, 50, 500, self.spans))
        return future


def access(
    reason: Reason.ValueType | None = None, access_revision: int = 0, oldest_revision: int = 1
) -> PastAccess:
    """Return what decides, with what the present says."""
    page = domain_pb2.ChangesPage(access_revision=access_revision, oldest_revision=oldest_revision)
    watched = {mux.Stage.STREAMS: ("Stream",)}
    return PastAccess(Routes(), PresentReads(reason, page), lambda: watched)


@pytest.mark.parametrize(
    ("user_id", "access_revision", "oldest_revision", "oldest"),
    [(ALICE, 0, 1, 0), (ALICE, 40, 1, 40), (ALICE, 40, 91, 90), (0, 40, 91, 0)],
)
async def test_the_oldest_state_that_may_be_seen(
    user_id: int, access_revision: int, oldest_revision: int, oldest: int
) -> None:
    """It is that of the last change of access, or from where such changes are known; root sees
    all."""
    decided = access(None, access_revision, oldest_revision)
    now = await decided.ask(user_id, 1, 0, [QUESTION])
    assert (now.oldest_revision, now.answers) == (oldest, [b""])


async def test_ended_credentials_are_refused() -> None:
    """Whoever the present does not know sees nothing; other refusals are answers."""
    with pytest.raises(Refusal) as refused:
        await access(Reason.REASON_UNAUTHENTICATED).ask(ALICE, 1, 0, [QUESTION])
    assert refused.value.reason == Reason.REASON_UNAUTHENTICATED
    now = await access(Reason.REASON_PERMISSION_DENIED).ask(ALICE, 1, 0, [QUESTION])
    (answer,) = now.answers
    assert isinstance(answer, Refusal)
