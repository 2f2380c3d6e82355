"""Carries plans out on a cluster: reads, compares, and sends what has to change as transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from google.protobuf.message import Message

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_service_pb2 import CreateUserRequest
from viewstamp.client.identifiers import FacadeClient
from viewstamp.errors import Refusal
from viewstamp.topology.changes import DeclaredKind, Plan, PlannedChange, PlanRules
from viewstamp.topology.compare import DEFAULT_RULES, compare
from viewstamp.topology.difference import difference
from viewstamp.topology.errors import (
    ClusterUnsettled,
    NotAtomic,
    PasswordsNeeded,
    PlanChanged,
    PlanRefused,
)
from viewstamp.topology.found import ALL, ReadScope, as_topology, scope_of
from viewstamp.topology.model import Topology
from viewstamp.topology.passwords import PASSWORD_RANDOM_BYTES, PasswordFile
from viewstamp.topology.reader import read_found
from viewstamp.topology.steps import PlanStep, pieces_of, steps_of

# How often a plan is made, because somebody changed what it is about before it was carried out.
PLANS_MAX: Final = 5
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
_TOO_MUCH: Final = frozenset(
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

    async def transact(self, requests: Sequence[Message]) -> list[Any]:
        """Apply commands as one."""


@dataclass(slots=True)
class AppliedPlan:
    """What took effect: the changes, and the revisions of the transactions that made them."""

    changes: list[PlannedChange] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    plans: int = 0


async def plan(client: FacadeClient, topology: Topology, rules: PlanRules = DEFAULT_RULES) -> Plan:
    """Compare a topology with the cluster. Raises Refusal, ClientError, ClusterUnsettled."""
    found = await read_found(client, scope_of(topology, prune=rules.prune))
    return compare(topology, found, rules)


async def diff(
    client: FacadeClient, topology: Topology, rules: PlanRules = DEFAULT_RULES
) -> list[str]:
    """Return the lines of `difference` between the cluster and a topology; none if equal.

    Raises Refusal, ClientError, ClusterUnsettled.
    """
    found = await read_found(client, scope_of(topology, prune=rules.prune))
    return difference(topology, found, rules)


async def export(client: FacadeClient, streams: Sequence[str] = ()) -> Topology:
    """Return a topology that declares everything on the cluster, or in some streams.

    Raises Refusal (STREAM_NOT_FOUND, ...), ClientError, ClusterUnsettled.
    """
    scope = ReadScope(dict.fromkeys(streams)) if streams else ALL
    found = await read_found(client, scope)
    for name in streams:
        if name not in found.streams:
            raise Refusal.of(Reason.REASON_STREAM_NOT_FOUND, stream=name)
    return as_topology(found)


async def apply(
    client: TopologyClient,
    topology: Topology,
    rules: PlanRules = DEFAULT_RULES,
    *,
    passwords: PasswordFile | None = None,
    approved: Plan | None = None,
    atomic: bool = False,
    progress: Progress = lambda done, planned: None,
) -> AppliedPlan:
    """Make the cluster as a topology declares; a second time changes nothing.

    All changes take effect at one revision if they fit into one transaction; `atomic` demands that.
    Otherwise they are made in order, in as few transactions as possible. A change that somebody
    else was faster with leads to another plan, at most `PLANS_MAX` times. With `approved` no plan
    may destroy more than that one.

    Raises Refusal, ClientError, PlanRefused, PlanChanged, NotAtomic, ClusterUnsettled,
    PasswordsNeeded, PasswordFileError. After any of them it can be called again.
    """
    applied = AppliedPlan()
    while True:
        applied.plans += 1
        current = await plan(client, topology, rules)
        check_plan(current, approved)
        steps = steps_of(current)
        if atomic:
            check_atomic(steps)
        sender = _Sender(client, _passwords(current, passwords), atomic=atomic)
        stale = await sender.carry_out(steps, applied, progress)
        if stale is None:
            return applied
        if applied.plans == PLANS_MAX:
            raise ClusterUnsettled(
                f"each of {PLANS_MAX} plans was out of date when it came to the cluster, the last "
                f"one by {stale.name}: {stale.message} Either others change the same, or you may "
                "not see what is there"
            )


async def check(client: TopologyClient, current: Plan, *, atomic: bool = False) -> list[Refusal]:
    """Have the cluster check the changes that depend on no other; return what it would refuse.

    Raises Refusal, ClientError, NotAtomic.
    """
    steps = steps_of(current)
    if atomic:
        check_atomic(steps)
    made_up = secrets.token_urlsafe(PASSWORD_RANDOM_BYTES)
    sender = _Sender(client, dict.fromkeys(current.new_users(), made_up), atomic=False)
    found: list[Refusal | None] = []
    for piece in pieces_of([step for step in steps if step.stands_alone]):
        found += await asyncio.gather(*map(sender.refusal_of, piece))
    return [refusal for refusal in found if refusal is not None]


def check_plan(current: Plan, approved: Plan | None) -> None:
    """Raise PlanRefused if it has problems, PlanChanged if it destroys more than `approved`."""
    if current.problems:
        raise PlanRefused(current.problems)
    if approved is not None and current.losses - approved.losses:
        raise PlanChanged(
            "the cluster has changed since the plan was shown, and more would be lost now: look "
            "at the plan again"
        )


def check_atomic(steps: Sequence[PlanStep]) -> None:
    """Raise NotAtomic if steps do not fit into one transaction."""
    count = len(pieces_of(steps))
    if count > 1:
        raise NotAtomic(
            f"{len(steps)} commands need {count} transactions: one holds at most "
            f"{limits.TRANSACTION_PARTS_MAX} commands and {limits.COMMAND_BYTES_MAX} bytes. "
            "Declare fewer changes at a time, or do without atomicity"
        )


class _Sender:
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
                if refusal.reason not in _TOO_MUCH or len(piece) == 1 or self._atomic:
                    raise
                pieces.extendleft((piece[len(piece) // 2 :], piece[: len(piece) // 2]))
                continue
            self._note(piece, answers[0].header.revision, applied)
            done += len(piece)
            progress(done, len(steps))
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


def _passwords(current: Plan, passwords: PasswordFile | None) -> dict[str, str]:
    names = current.new_users()
    if not names:
        return {}
    if passwords is None:
        raise PasswordsNeeded(f"give a file for the passwords of {', '.join(names)}")
    return passwords.passwords_for(names)
