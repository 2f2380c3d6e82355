"""Sends the commands of one plan, as transactions that expect what the plan has found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_service_pb2 import CreateUserRequest
from viewstamp.client.identifiers import FacadeClient
from viewstamp.errors import Refusal
from viewstamp.topology.changes import DeclaredKind, PlannedChange
from viewstamp.topology.steps import PlanStep, pieces_of

# What happened to an entity between the reading and the command: read again.
_STALE: Final = frozenset(
    {
        Reason.REASON_REVISION_MISMATCH,
        Reason.REASON_STREAM_EXISTS,
        Reason.REASON_TOPIC_EXISTS,
        Reason.REASON_GROUP_EXISTS,
        Reason.REASON_USER_EXISTS,
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
        Reason.REASON_GROUP_NOT_FOUND,
        Reason.REASON_USER_NOT_FOUND,
    }
)
# The work of a transaction is more than one log entry may hold.
TOO_MUCH: Final = frozenset(
    {
        Reason.REASON_COST_EXCEEDED,
        Reason.REASON_ANSWER_TOO_LARGE,
        Reason.REASON_COMMAND_TOO_LARGE,
    }
)
# Called with the commands that have taken effect, and the commands of the plan.
Progress: TypeAlias = Callable[[int, int], None]


class TopologyClient(FacadeClient, Protocol):
    """What the application of a topology needs of a client."""

    async def transact(
        self, requests: Sequence[Message], *, validate_only: bool = False
    ) -> list[Any]:
        """Apply commands as one, or only try it."""


@dataclass(slots=True)
class AppliedPlan:
    """What took effect: the changes, and the revisions of the transactions that made them."""

    changes: list[PlannedChange] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    plans: int = 0


class PlanSender:
    """Sends the commands of one plan."""

    def __init__(
        self, client: TopologyClient, passwords: Mapping[str, str], *, atomic: bool
    ) -> None:
        self._client = client
        self._passwords = passwords
        self._atomic = atomic
        # The revisions at which transactions of this plan have changed entities.
        self._revisions: dict[tuple[DeclaredKind, tuple[str, ...]], int] = {}

    async def carry_out(
        self, steps: Sequence[PlanStep], applied: AppliedPlan, progress: Progress
    ) -> Refusal | None:
        """Send the steps; return a refusal that says that the plan is out of date, if any."""
        pieces = deque(pieces_of(steps))
        done = 0
        while pieces:
            piece = pieces.popleft()
            try:
                answers = await self._client.transact(self._requests(piece))
            except Refusal as refusal:
                if refusal.reason in _STALE:
                    return refusal
                if refusal.reason not in TOO_MUCH or len(piece) == 1 or self._atomic:
                    raise
                pieces.extendleft((piece[len(piece) // 2 :], piece[: len(piece) // 2]))
                continue
            self._note(piece, answers[0].header.revision, applied)
            done += len(piece)
            progress(done, len(steps))
        return None

    async def refusal_of_all(self, steps: Sequence[PlanStep]) -> Refusal | None:
        """Have the cluster check steps as one transaction; return its refusal, if any."""
        try:
            await self._client.transact(self._requests(steps), validate_only=True)
        except Refusal as refusal:
            return refusal
        return None

    async def refusal_of(self, step: PlanStep) -> Refusal | None:
        """Have the cluster check a step; return its refusal, if it would refuse it."""
        request = self._guarded(step)
        request.validate_only = True
        try:
            await self._client.call(request)
        except Refusal as refusal:
            return refusal
        return None

    def _requests(self, piece: Sequence[PlanStep]) -> list[Message]:
        """Return the requests of a transaction; the first one of each entity is guarded."""
        seen: set[Any] = set()
        requests: list[Message] = []
        for step in piece:
            requests.append(step.request if step.entity in seen else self._guarded(step))
            seen.add(step.entity)
        return requests

    def _guarded(self, step: PlanStep) -> Any:
        """Return the request of a step; it is refused if the entity has changed in between."""
        request: Any = type(step.request)()
        request.CopyFrom(step.request)
        found = 0 if step.change.found is None else step.change.found.revision
        if expected := self._revisions.get(step.entity, found):
            request.expected_revision = expected
        if isinstance(request, CreateUserRequest):
            request.password = self._passwords[request.username]
        return request

    def _note(self, piece: Sequence[PlanStep], revision: int, applied: AppliedPlan) -> None:
        applied.revisions.append(revision)
        for step in piece:
            self._revisions[step.entity] = revision
            if not applied.changes or applied.changes[-1] is not step.change:
                applied.changes.append(step.change)
