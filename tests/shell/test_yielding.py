"""When a replica lets others on its machine come first: a table of what it sees, over time."""

from __future__ import annotations

import json

import pytest

from coordinator.yielding import (
    BEHIND_MS,
    KEEPS_UP_MS,
    LOOK_INTERVAL_MS,
    Seen,
    Yielding,
    YieldingPorts,
    say,
)


def seen(*, follows: bool = True, op: int = 9, applied: int = 9) -> Seen:
    """Return what a look finds."""
    return Seen(follows, op, applied)


BEHIND = seen(applied=8)
LEADS = seen(follows=False)


class Trial:
    """A replica that is looked at, and what it says."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.seen = seen()
        self.said: list[bool] = []
        self._yielding = Yielding(
            YieldingPorts(lambda: self.seen, self.said.append, lambda: self.now_ms)
        )

    def sees(self, found: Seen, lasts_ms: int = 0) -> None:
        """Look at it while it is like this for so long: at the beginning, and again and again."""
        self.seen = found
        self._yielding.look()
        for _ in range(0, lasts_ms, LOOK_INTERVAL_MS):
            self.now_ms += LOOK_INTERVAL_MS
            self._yielding.look()


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([(seen(), 0)], [True]),
        ([(LEADS, 0)], []),
        ([(seen(), 0), (LEADS, 0)], [True, False]),
        ([(seen(), 0), (LEADS, 0), (seen(), 0)], [True, False, True]),
        ([(seen(), 0), (BEHIND, BEHIND_MS - LOOK_INTERVAL_MS)], [True]),
        ([(seen(), 0), (BEHIND, BEHIND_MS)], [True, False]),
        ([(BEHIND, BEHIND_MS), (seen(), KEEPS_UP_MS - LOOK_INTERVAL_MS)], [True, False]),
        ([(BEHIND, BEHIND_MS), (seen(), KEEPS_UP_MS)], [True, False, True]),
        ([(BEHIND, 2 * BEHIND_MS), (LEADS, 0), (seen(), 0)], [True, False, True]),
    ],
    ids=[
        "a backup that keeps up yields",
        "the primary does not, nor who has no view",
        "a backup that becomes the primary comes first at once",
        "a primary that becomes a backup yields at once",
        "a backup may lag for a while",
        "one that lags for longer no longer yields",
        "once behind, keeping up for a moment is not enough",
        "a backup that has kept up for a while yields again",
        "who leads in between begins anew",
    ],
)
def test_when_it_yields(looks: list[tuple[Seen, int]], said: list[bool]) -> None:
    """What a replica says follows from what it is and how far it lags, and is said once."""
    trial = Trial()
    for found, lasts_ms in looks:
        trial.sees(found, lasts_ms)
    assert trial.said == said


def test_busy_is_not_behind() -> None:
    """A backup always has something to do under load; it yields while each op is done soon."""
    trial = Trial()
    for op in range(200):
        trial.sees(seen(op=op + 4, applied=op), LOOK_INTERVAL_MS)
    assert trial.said == [True]


def test_falling_back_slowly_is_behind() -> None:
    """One that applies something at every look, and less than comes, is found out."""
    trial = Trial()
    for look in range(200):
        trial.sees(seen(op=20 * look, applied=look), LOOK_INTERVAL_MS)
    assert trial.said == [True, False]


def test_an_entry_that_is_gone_is_waited_for_no_more() -> None:
    """A view may discard what a backup journaled: it is idle then, and not behind."""
    trial = Trial()
    trial.sees(seen(op=12))
    trial.sees(seen(op=9), 2 * BEHIND_MS)
    assert trial.said == [True]


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The supervisor reads a line of JSON."""
    say(True)
    say(False)
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [
        {"yields": True},
        {"yields": False},
    ]
