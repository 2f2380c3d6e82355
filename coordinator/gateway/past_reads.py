"""Reads at an earlier revision: of whoever may see it (`past_access`), answered by its state.

At a revision that is read the caller had the access of today, so the state of then decides about
each call as it would today.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from coordinator.gateway.past_access import PastAccess, PresentAnswers, PresentQuestion
from coordinator.history.builder import PastBuilder
from coordinator.history.messages import AskState
from coordinator.history.turns import IsWanted, PastQuestion, PastTurns
from coordinator.mux import types as mux
from coordinator.replica.answers import span_reply
from coordinator.replica.batcher import Reply
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USER_ID
from viewstamp.routing import Method

_WHO_ASKS: Final = PresentQuestion(
    "/viewstamp.api.users.v1.UsersService/WhoAmI", users_api.WhoAmIRequest().SerializeToString()
)


class PastReads:
    """Starts reads at earlier revisions."""

    def __init__(self, access: PastAccess, turns: PastTurns) -> None:
        self._access = access
        self._turns = turns

    def start(
        self, read: mux.Read, methods: Sequence[Method], revision: int
    ) -> asyncio.Future[Reply]:
        """Start a read of some methods; the future may fail with Refusal, and cancelling it ends
        the work. Raises Refusal for methods that know the present alone."""
        for method in methods:
            _check_has_past(method)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        task = loop.create_task(self._answer(future, read, revision))
        future.add_done_callback(lambda _: task.cancel())
        return future

    async def _answer(self, future: asyncio.Future[Reply], read: mux.Read, revision: int) -> None:
        try:
            reply = await self._answered(read, revision)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(reply)

    async def _answered(self, read: mux.Read, revision: int) -> Reply:
        user_id = read.user_id or 0
        now = await self._access.ask(user_id, read.credential_revision, revision, [_WHO_ASKS])
        check_visible(now, revision)
        _check_has_right(user_id, now.answers[0])

        async def ask(builder: PastBuilder, _: IsWanted) -> Reply:
            answered = await builder.ask(AskState(read))
            assert isinstance(answered, mux.ReadAnswered), "a read is answered by what was read"
            return _reply(now.reply.view, answered)

        reply: Reply = await self._turns.ask(PastQuestion(user_id, revision, now.reply.op, ask))
        return reply


def check_visible(now: PresentAnswers, revision: int) -> None:
    """Raise Refusal REVISION_COMPACTED for a revision that the caller may not see."""
    oldest = now.oldest_revision
    if revision < oldest:
        raise Refusal(
            Reason.REASON_REVISION_COMPACTED,
            f"revision {revision} is from before a change of what you may do, or from where that is"
            f" not known: {oldest} is the oldest one that you may read; root may read earlier ones",
            revision=revision,
            oldest=oldest,
        )


def _check_has_right(user_id: int, answer: bytes | Refusal) -> None:
    """Raise Refusal for a caller without any permission: a state costs as much as all services."""
    if isinstance(answer, Refusal):
        raise answer
    permissions = users_api.WhoAmIResponse.FromString(answer).user.permissions
    everywhere = getattr(permissions, "global")
    if user_id != ROOT_USER_ID and not (everywhere.ByteSize() or permissions.streams):
        raise Refusal(
            Reason.REASON_PERMISSION_DENIED,
            "whoever reads an earlier revision needs some permission, and you have none: ask for"
            " one, or leave the revision out",
        )


def _reply(view: int, answered: mux.ReadAnswered) -> Reply:
    """Return an answer in the shell's form. Raises the Refusal of the read."""
    if answered.error is not None:
        raise Refusal.from_error(errors_pb2.Error.FromString(answered.error))
    spans = tuple(span_reply(span) for span in answered.spans)
    return Reply(view, answered.op, answered.revision, spans)


def _check_has_past(method: Method) -> None:
    """Raise Refusal for reads that are about the present, or give something to their caller."""
    is_kept = mux.Stage(method.owner) in mux.SERVICE_STAGES
    if method.public or method.at_primary or not is_kept:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"{method.full_name} knows the present alone: leave the revision out",
            method=method.full_name,
        )
