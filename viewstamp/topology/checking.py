"""Has a cluster check a plan, and change nothing: as one transaction, where it fits into one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.topology.applying import check_atomic
from viewstamp.topology.changes import Plan
from viewstamp.topology.passwords import PASSWORD_RANDOM_BYTES
from viewstamp.topology.sending import TOO_MUCH, PlanSender, TopologyClient
from viewstamp.topology.steps import PlanStep, pieces_of, steps_of

# The field by which a transaction is tried, which a cluster may not know yet.
TRIAL_FIELD: Final = "validate_only"


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """What the cluster says of a plan.

    It would refuse `refusals`. If the plan was not checked as one transaction, `split` says why;
    then each command that depends on no other was checked by itself, and `unchecked` were not.
    """

    refusals: tuple[Refusal, ...] = ()
    split: str = ""
    commands: int = 0
    unchecked: int = 0


async def check(client: TopologyClient, current: Plan, *, atomic: bool = False) -> PlanCheck:
    """Have the cluster check a plan, and change nothing.

    A plan that fits is checked as the transaction that would carry it out, in which commands see
    what those before them would do. Raises Refusal, ClientError, NotAtomic.
    """
    steps = steps_of(current)
    if atomic:
        check_atomic(steps)
    made_up = secrets.token_urlsafe(PASSWORD_RANDOM_BYTES)
    sender = PlanSender(client, dict.fromkeys(current.new_users(), made_up), atomic=atomic)
    pieces = pieces_of(steps)
    if not pieces:
        return PlanCheck()
    if len(pieces) > 1:
        return await _check_apart(
            sender, steps, f"{len(steps)} commands need {len(pieces)} transactions"
        )
    refusal = await sender.refusal_of_all(steps)
    if refusal is None:
        return PlanCheck(commands=len(steps))
    if not atomic and refusal.reason in TOO_MUCH:
        why = f"one transaction would be too much: {refusal.name}: {refusal.message}"
        return await _check_apart(sender, steps, why)
    if _is_about_trial(refusal):
        why = f"the cluster cannot try a transaction yet: {refusal.message}"
        return await _check_apart(sender, steps, why)
    return PlanCheck((refusal, *await _others(sender, steps, refusal)), commands=len(steps))


async def _check_apart(sender: PlanSender, steps: Sequence[PlanStep], why: str) -> PlanCheck:
    """Have the cluster check each command that depends on no other."""
    alone = [step for step in steps if step.stands_alone]
    refusals = await _refusals_apart(sender, alone)
    return PlanCheck(tuple(refusals), why, len(steps), len(steps) - len(alone))


async def _others(sender: PlanSender, steps: Sequence[PlanStep], first: Refusal) -> list[Refusal]:
    """Return what else would be refused: a transaction ends at its first refusal."""
    found = await _refusals_apart(sender, [step for step in steps if step.stands_alone])
    told = (first.reason, first.message)
    same = next((each for each in found if (each.reason, each.message) == told), None)
    return [each for each in found if each is not same]


async def _refusals_apart(sender: PlanSender, steps: Sequence[PlanStep]) -> list[Refusal]:
    found: list[Refusal | None] = []
    for piece in pieces_of(steps):
        found += await asyncio.gather(*map(sender.refusal_of, piece))
    return [refusal for refusal in found if refusal is not None]


def _is_about_trial(refusal: Refusal) -> bool:
    """Return whether a cluster has refused to try a transaction, whatever is in it."""
    is_level = refusal.reason == Reason.REASON_FEATURE_LEVEL_REQUIRED
    return is_level and refusal.details.get("field") == TRIAL_FIELD
