"""A soak kills every kind of process, at the primary and at a backup, and spares one replica."""

from __future__ import annotations

from itertools import product

import pytest

from testkit.soak.kill_plan import VICTIMS, RoundKill, kill_of, victim
from testkit.torture.cluster import REPLICAS
from viewstamp.cluster.local import COORDINATOR
from viewstamp.routing import SERVICE_NAMES

HOUR = 60


def test_everything_dies_in_an_hour() -> None:
    """Each kind of process dies at the primary and at a backup while one replica is spared."""
    kills = [kill_of(number, HOUR) for number in range(HOUR)]
    assert {kill.spared for kill in kills} == {0}
    assert {kill[:2] for kill in kills} == set(
        product((COORDINATOR, *SERVICE_NAMES), (True, False))
    )


def test_each_replica_is_spared() -> None:
    """A stretch after the other each replica is spared, and then the first one again."""
    stretches = [kill_of(number, HOUR).spared for number in range(0, 4 * HOUR, HOUR)]
    assert stretches == [0, 1, 2, 0]
    assert kill_of(HOUR - 1, HOUR).spared == 0


@pytest.mark.parametrize("primary", [None, *range(REPLICAS)])
@pytest.mark.parametrize("spared", range(REPLICAS))
@pytest.mark.parametrize("on_primary", [True, False])
def test_the_spared_replica_is_never_hit(
    on_primary: bool, spared: int, primary: int | None
) -> None:
    """Whoever leads, another replica is hit, in the planned role if that is possible."""
    for number in range(2 * len(VICTIMS)):
        hit = victim(RoundKill(COORDINATOR, on_primary, spared), primary, number)
        assert hit != spared
        if primary not in (None, spared):
            assert (hit == primary) is on_primary
