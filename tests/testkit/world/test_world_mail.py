"""Messages between replicas: each trouble happens, and all promises of the product hold.

Method: short runs with troubles and deaths close together, and what happened is counted; then a
plain letter is given to one trouble at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from coordinator.peers.codec import Encoder, decode_packet
from coordinator.vsr.messages import CommitMessage, StartViewMessage
from coordinator.vsr.replica import Replica
from testkit.world.letters import POORLY_CARRIED, TROUBLES, Letter, PostOffice
from testkit.world.mail import LETTERS_UNDER_WAY_MAX, STRANGE_CLUSTER_ID
from testkit.world.options import WorldOptions
from testkit.world.replica import CLUSTER_ID
from testkit.world.run import WorldRun
from testkit.world.seeds import good_until
from viewstamp.format.prepare import seal

SMALL = WorldOptions(clients=2, callers=2, keys=2, seconds=4, every_ms=(50, 400))
MESSAGE = CommitMessage(CLUSTER_ID, 0, 3, 4, bytes(16), 5)
LETTER = Letter(0, 1, CommitMessage, Encoder(CLUSTER_ID, 0).encode(MESSAGE).data)


def outcomes(kind: str, letter: Letter, times: int = 400, seed: int = 7) -> list[list[Letter]]:
    """Return what becomes of a letter that is sent again and again in a trouble of 700 ms."""
    office = PostOffice(Random(seed), range(3), CLUSTER_ID, lambda: 700, lambda _: None)
    carry = TROUBLES[kind](office)
    return [carry(letter) for _ in range(times)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kinds", "counted"),
    [
        (("lost_messages", "poorly_carried"), ("message lost", "message of one kind lost")),
        (("repeated_messages", "late_messages"), ("message repeated", "message late")),
        (("clog", "echoes"), ("message held back", "message once more after a start")),
        (("misrouted", "stranger"), ("message misrouted", "hello of another cluster refused")),
        (("holed_log",), ("log with a hole",)),
    ],
)
def test_troubles_happen_and_are_borne(kinds: Sequence[str], counted: Sequence[str]) -> None:
    """Each trouble strikes in few runs with deaths beside it, and all promises hold."""
    counts = good_until(range(1, 31), replace(SMALL, faults=(*kinds, "kill")), *counted)
    assert set(counted) <= counts.keys()


def test_a_strange_message_reaches_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stranger sends gets to the core, which knows the cluster that it claims."""
    seen: Counter[bytes] = Counter()
    step = Replica.step

    def noted(self: Replica, event: object, now_ticks: int) -> object:
        seen[getattr(getattr(event, "message", None), "cluster_id", b"")] += 1
        return step(self, event, now_ticks)  # type: ignore[arg-type]

    monkeypatch.setattr(Replica, "step", noted)
    assert WorldRun(3, replace(SMALL, faults=("stranger",))).run().violations == []
    assert seen[STRANGE_CLUSTER_ID] > 0


def test_a_way_holds_so_many_letters() -> None:
    """While a way is clogged, what does not fit into it is lost."""
    run = WorldRun(1, replace(SMALL, faults=("clog",), seconds=3))
    seen: list[int] = []
    run.world.schedule.watches.append(lambda _: seen.extend(run.mail.under_way.values()))
    assert run.run().violations == []
    assert max(seen) == LETTERS_UNDER_WAY_MAX


def test_some_messages_are_lost() -> None:
    """Some letters are lost, and the connection carries the others as they were."""
    found = outcomes("lost_messages", LETTER)
    assert {len(each) for each in found} == {0, 1}
    assert {letter for each in found for letter in each} == {LETTER}


def test_late_messages_overtake_each_other() -> None:
    """Letters that are late draw their delays one by one, up to 4 s."""
    delays = [letter.delay_ms for each in outcomes("late_messages", LETTER) for letter in each]
    late = [delay for delay in delays if delay is not None]
    assert len(late) < len(delays)
    assert late != sorted(late)
    assert 2_000 < max(late) <= 4_000


def test_a_clogged_way_holds_everything_back() -> None:
    """Whenever it was sent, a letter arrives when the trouble ends."""
    assert outcomes("clog", LETTER, times=3) == [[replace(LETTER, delay_ms=700)]] * 3


def test_a_message_goes_astray_beside_the_one_that_arrives() -> None:
    """A misrouted letter reaches any replica, its own sender too; the right one gets it as well."""
    found = outcomes("misrouted", LETTER)
    assert {each[0] for each in found} == {LETTER}
    assert {letter.target for each in found for letter in each[1:]} == {0, 1, 2}


def test_only_one_kind_is_carried_poorly() -> None:
    """More than half of one kind is lost, and nothing of the others."""
    carried = {
        kind: sum(map(len, outcomes("poorly_carried", replace(LETTER, kind=kind), times=100)))
        for kind in POORLY_CARRIED
    }
    assert sorted(carried.values())[1:] == [100] * (len(POORLY_CARRIED) - 1)
    assert 20 < min(carried.values()) < 60


def test_a_holed_log_lacks_one_entry() -> None:
    """A log of three uncommitted entries arrives whole, or with two of them."""
    values = {"parent": bytes(range(16)), "cluster_id": CLUSTER_ID, "body": b""}
    numbers = {"view": 3, "commit": 0, "first_revision": 1, "command_count": 0, "timestamp": 0}
    headers = tuple(
        seal(**values, **numbers, feature_level=1, op=op).header  # type: ignore[arg-type]
        for op in (5, 6, 7)
    )
    message = StartViewMessage(CLUSTER_ID, 0, 3, bytes(16), 4, 7, headers)
    letter = Letter(0, 1, StartViewMessage, Encoder(CLUSTER_ID, 0).encode(message).data)
    found = outcomes("holed_log", letter, times=50)
    logs = {each.data for letters in found for each in letters}
    decoded = [next(decode_packet(log, CLUSTER_ID, 0)) for log in logs]
    lengths = sorted(len(each.headers) for each in decoded if isinstance(each, StartViewMessage))
    assert lengths == [2, 2, 2, 3]
