"""BlameEntity: who changed an entity, and when, read back from the log (`history.builder`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc.aio

from coordinator.base.decoded_requests import decoded_request
from coordinator.base.refused_calls import abort
from coordinator.gateway.blame_targets import LIST_USERS, BlamedTarget
from coordinator.gateway.past_access import PastAccess
from coordinator.gateway.past_reads import check_visible
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.replies import header_of
from coordinator.gateway.routes import Routes
from coordinator.history.builder import PastBuilder, WalkedLog, compacted_state
from coordinator.history.messages import FoundChange
from coordinator.history.turns import IsWanted, PastQuestion, PastTurns
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.history.v1 import history_service_pb2 as history_api
from viewstamp.errors import Refusal
from viewstamp.past_limits import BLAME_PAGE_MAX, PAST_READ_DEADLINE_MS
from viewstamp.tokens import AccessToken

BLAME_PATH: Final = "/viewstamp.api.history.v1.HistoryService/BlameEntity"

Context = grpc.aio.ServicerContext[Any, Any]


class Blames:
    """Serves BlameEntity. `check_reading` raises Refusal unless reads are answered here."""

    def __init__(
        self,
        cluster_id: bytes,
        authenticator: Authenticator,
        access: PastAccess,
        turns: PastTurns,
        check_reading: Callable[[], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._authenticator = authenticator
        self._access = access
        self._turns = turns
        self._check_reading = check_reading

    def handlers(self) -> Mapping[str, Any]:
        """Return the gRPC method handler by path."""

        async def serve(payload: bytes, context: Context) -> bytes:
            try:
                answer = await self._answer(payload, context)
            except Refusal as refusal:
                await abort(context, refusal)
            return answer.SerializeToString()

        return {BLAME_PATH: grpc.unary_unary_rpc_method_handler(serve)}

    async def _answer(self, payload: bytes, context: Context) -> history_api.BlameEntityResponse:
        request = decoded_request(history_api.BlameEntityRequest, payload)
        self._check_reading()
        principal = self._authenticator.principal(context.invocation_metadata() or ())
        target = await self._target(request, principal)
        user_id, stamp = principal.user_id, principal.credential_revision
        wanted = request.from_revision
        now = await self._access.ask(user_id, stamp, max(0, wanted - 1), target.questions)
        sought = target.sought(now.answers)
        if wanted:
            check_visible(now, wanted - 1)
        oldest = max(await self._turns.oldest_revision(), now.oldest_revision) + 1
        if 0 < wanted < oldest:
            raise compacted_state(wanted - 1, oldest - 1)
        room = min(request.page_size or BLAME_PAGE_MAX, BLAME_PAGE_MAX)

        async def ask(builder: PastBuilder, is_wanted: IsWanted) -> WalkedLog:
            return await builder.walk(sought, wanted or oldest, now.reply.op, room, is_wanted)

        question = PastQuestion(
            user_id, 0, now.reply.op, ask, _goal_of(request), lambda walk: bool(walk.next_revision)
        )
        walked = await self._walked(question)
        return history_api.BlameEntityResponse(
            header=header_of(now.reply, self._cluster_id),
            changes=[_told(self._access.routes, each) for each in walked.found],
            oldest_revision=oldest,
            next_revision=walked.next_revision,
            ids=sorted(walked.ids),
            part=request.part,
        )

    async def _target(
        self, request: history_api.BlameEntityRequest, principal: AccessToken
    ) -> BlamedTarget:
        """Return what is asked for. Who may not call hears that, whatever the request says."""
        user_id, stamp = principal.user_id, principal.credential_revision
        try:
            return BlamedTarget(request)
        except Refusal:
            await self._access.ask(user_id, stamp, 0, [LIST_USERS])
            raise

    async def _walked(self, question: PastQuestion) -> WalkedLog:
        try:
            async with asyncio.timeout(PAST_READ_DEADLINE_MS / 1000):
                walked: WalkedLog = await self._turns.ask(question)
        except TimeoutError as error:
            raise Refusal(
                Reason.REASON_READ_DEADLINE,
                f"the log was not gone through within {PAST_READ_DEADLINE_MS} ms, since others came"
                " first or the state before it takes long: try again, or begin at a later revision",
                deadline_ms=PAST_READ_DEADLINE_MS,
            ) from error
        return walked


def _goal_of(request: history_api.BlameEntityRequest) -> bytes:
    """Return what all pages about an entity have in common."""
    goal = history_api.BlameEntityRequest()
    goal.CopyFrom(request)
    for of_page in ("from_revision", "page_size", "ids"):
        goal.ClearField(of_page)
    return goal.SerializeToString(deterministic=True)


def _told(routes: Routes, found: FoundChange) -> history_api.EntityChange:
    """Return a change with the name of its method."""
    method = routes.find(found.code)
    found.change.method = f"code {found.code}" if method is None else method.full_name
    return found.change
