"""Removals of members, and places that are kept, cost what the end of a membership costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from services.consumer_groups.model import US_PER_MS
from tests.services.cost.machines import SESSION, Fed, groups, reasons
from tests.services.cost.test_cascades import create, join, run
from tests.services.cost.test_heartbeats import beat
from tests.services.cost.test_restored import restored, static_join
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

LEVEL: Final = limits.FEATURE_LEVEL_MEMBERS
PARTITIONS: Final = 3_200
COUNT: Final = 5
# One removal fits, since the first always does, and a second one does not.
CHORE_ROWS: Final = 300
TIMEOUT_US: Final = limits.MEMBER_TIMEOUT_US


def crowd() -> Fed:
    """Return groups with one static member each, which owns all partitions."""
    fed = groups(PARTITIONS, LEVEL)
    create(fed, COUNT)
    join(fed, range(1, COUNT + 1), instance="i")
    return fed


def leave(fed: Fed, group_ids: Sequence[int], *, keep_place: bool) -> list[str]:
    """Let the session leave groups; return the reasons."""
    requests = []
    for group_id in group_ids:
        requests.append(api.LeaveConsumerGroupRequest(keep_place=keep_place))
        requests[-1].group.id = group_id
    return fed.commands("LeaveConsumerGroup", requests)


def silent() -> tuple[Fed, list[pb.Proposal]]:
    """Return members that show no life, and the proposals to remove them."""
    fed = crowd()
    silent = fed.machine.domain.silent
    for elapsed_ms in (0, TIMEOUT_US // US_PER_MS - 1):
        assert not list(silent(fed.machine.state, pb.Tenure(number=1, elapsed_ms=elapsed_ms)))
    elapsed_ms = TIMEOUT_US // US_PER_MS
    return fed, list(silent(fed.machine.state, pb.Tenure(number=1, elapsed_ms=elapsed_ms)))


def away() -> tuple[Fed, list[pb.Proposal]]:
    """Return members whose absence is over, and the proposals to remove them."""
    fed = crowd()
    assert set(leave(fed, range(1, COUNT + 1), keep_place=True)) == {""}
    fed.begun += TIMEOUT_US
    return fed, list(fed.reply.proposals)


def late() -> tuple[Fed, list[pb.Proposal]]:
    """Return members that did not give partitions up in time, and the proposals to remove them."""
    fed = crowd()
    join(fed, range(1, COUNT + 1), session=SESSION + 1)
    fed.begun += max(limits.REVOCATION_TIMEOUT_US, TIMEOUT_US * 11 // 10)
    told = list(fed.machine.domain.proposals(fed.machine.state))
    return fed, [p for p in told if p.code == fed.codes["CompleteRevocation"]]


def remove(fed: Fed, proposals: Sequence[pb.Proposal]) -> list[pb.Proposal]:
    """Sequence removals in one prepare; return those that it proposes again."""
    names = {code: name for name, code in fed.codes.items()}
    (name,) = {names[proposal.code] for proposal in proposals}
    parse = getattr(api, f"{name}Request").FromString
    held, fed.context = fed.context, b""
    requests = [parse(proposal.request) for proposal in proposals]
    assert set(fed.commands(name, requests, session=0, user=limits.SYSTEM_USER_ID)) == {""}
    fed.context = held
    return [p for p in fed.reply.proposals if p.code == fed.codes[name]]


def reasons_of_each(reply: pb.BatchReply) -> list[str]:
    """Return the reason of each outcome of one command."""
    return [reasons(outcome, 1)[0] for outcome in reply.outcomes]


def members(fed: Fed) -> int:
    """Return how many members the session of the crowd has left."""
    return sum(session == SESSION for _, session in fed.machine.state.members.rows)


@pytest.mark.parametrize("ending", [silent, away, late])
def test_removals_beyond_the_prepare_are_put_off(
    monkeypatch: pytest.MonkeyPatch, ending: Any
) -> None:
    """Of many removals in one prepare the first is carried out; the rest is proposed again."""
    fed, proposals = ending()
    monkeypatch.setattr(limits, "PREPARE_CHORE_ROWS_MAX", CHORE_ROWS)
    assert len(proposals) == members(fed) == COUNT
    for left in range(COUNT - 1, -1, -1):
        again = remove(fed, proposals)
        assert members(fed) == len(again) == left
        # Else the primary would take it for the one that it has just sequenced.
        assert not {p.request for p in again} & {p.request for p in proposals}
        proposals = again


@pytest.mark.parametrize("ending", [silent, away, late])
def test_removals_are_done_at_once_where_they_fit(ending: Any) -> None:
    """One prepare removes many members."""
    fed, proposals = ending()
    assert not remove(fed, proposals)
    assert not members(fed)


def test_a_place_is_kept_at_the_price_of_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many members leave for a while in one prepare as leave for good; the rest is refused."""
    monkeypatch.setattr(limits, "PREPARE_ROWS_MAX", 2 * CHORE_ROWS)
    for_good, for_a_while = crowd(), crowd()
    everywhere = range(1, COUNT + 1)
    refused = leave(for_good, everywhere, keep_place=False)
    assert leave(for_a_while, everywhere, keep_place=True) == refused
    assert (refused[0], refused[-1]) == ("", "COST_EXCEEDED")
    places = for_a_while.machine.state.members.rows.values()
    assert [reason == "" for reason in refused] == [member.is_away for member in places]


def test_below_the_level_no_place_is_kept() -> None:
    """At the level before a member that would keep its place leaves for good."""
    fed = crowd()
    fed.level = LEVEL - 1
    assert leave(fed, [1], keep_place=True) == [""]
    assert members(fed) == COUNT - 1


def test_a_kept_place_costs_what_it_costs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are taken again, and refused, alike by a machine that was restored meanwhile."""
    fed = groups(PARTITIONS, LEVEL)
    create(fed, COUNT)
    join(fed, range(1, COUNT + 1), instance="i")
    join(fed, [1], session=SESSION + 1)
    epoch = fed.machine.state.members.rows[1, SESSION].member_epoch
    number = beat(fed, member_epoch=epoch, owned_partitions=range(PARTITIONS)).assignment
    beat(fed, member_epoch=epoch, known_assignment=number)
    assert leave(fed, [1], keep_place=True) == [""]
    other = restored(fed.machine)
    assert fed.machine.state.waiting.rows and not other.state.waiting.rows
    monkeypatch.setattr(limits, "PREPARE_ROWS_MAX", PARTITIONS // 32)
    items = [static_join(fed, "i", SESSION + 2), static_join(fed, "i", SESSION + 3)]
    assert reasons_of_each(fed.prepare(*items)) == ["COST_EXCEEDED", "COST_EXCEEDED"]
    monkeypatch.setattr(limits, "PREPARE_ROWS_MAX", PARTITIONS // 16)
    more = [static_join(fed, "i", SESSION + 2), static_join(fed, "i", SESSION + 3)]
    assert reasons_of_each(fed.prepare(*more)) == ["", "UNRELEASED_INSTANCE_ID"]
    for op, sent in ((fed.op - 1, items), (fed.op, more)):
        batch = pb.Batch(sequence=other.sequence + 1, op=op, feature_level=fed.level, items=sent)
        reply = other.apply(batch).reply
    assert list(reply.outcomes) == list(fed.reply.outcomes)
    assert other.state_digest() == fed.machine.state_digest()


def test_another_assignor_is_cheap() -> None:
    """A change of the assignor touches the group alone; the target is found by an Assign."""
    fed = crowd()
    request = api.UpdateConsumerGroupRequest(assignor=2)  # type: ignore[arg-type]
    request.group.id = 1
    rows = fed.machine.budget.rows_left
    assert fed.commands("UpdateConsumerGroup", [request]) == [""]
    assert fed.machine.budget.rows_left == rows == limits.PREPARE_ROWS_MAX
    assert [p.code for p in fed.reply.proposals] == [fed.codes["Assign"]]
    run(fed, fed.reply.proposals)
    assert len(fed.machine.state.members.rows[1, SESSION].owned) == PARTITIONS
