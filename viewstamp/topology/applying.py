"""Carries plans out on a cluster: reads, compares, and sends what has to change as transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.identifiers import FacadeClient
from viewstamp.errors import Refusal
from viewstamp.topology.changes import Plan, PlanRules
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
from viewstamp.topology.passwords import PasswordFile
from viewstamp.topology.reader import read_found
from viewstamp.topology.sending import AppliedPlan, PlanSender, Progress, TopologyClient
from viewstamp.topology.steps import PlanStep, pieces_of, steps_of

# How often a plan is made, because somebody changed what it is about before it was carried out.
PLANS_MAX: Final = 5


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
        sender = PlanSender(client, _passwords(current, passwords), atomic=atomic)
        stale = await sender.carry_out(steps, applied, progress)
        if stale is None:
            return applied
        if applied.plans == PLANS_MAX:
            raise ClusterUnsettled(
                f"each of {PLANS_MAX} plans was out of date when it came to the cluster, the last "
                f"one by {stale.name}: {stale.message} Either others change the same, or you may "
                "not see what is there"
            )


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


def _passwords(current: Plan, passwords: PasswordFile | None) -> dict[str, str]:
    names = current.new_users()
    if not names:
        return {}
    if passwords is None:
        raise PasswordsNeeded(f"give a file for the passwords of {', '.join(names)}")
    return passwords.passwords_for(names)
