"""When a cluster is at rest after a load, so that what it has may be compared."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from testkit.load import observation
from testkit.load.observation import wait_until_quiet
from testkit.load.session import LoadFailed


class OfRevisions:
    """A client whose status goes through the revisions given; everything else is an error."""

    def __init__(self, revisions: Iterator[int]) -> None:
        self.asked = 0
        self._revisions = revisions

    async def status(self) -> Any:
        self.asked += 1
        return SimpleNamespace(header=SimpleNamespace(revision=next(self._revisions)))


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "QUIET_S", 0.0)


async def test_two_equal_revisions_are_rest() -> None:
    """The cluster is at rest at the second equal revision, whatever its members still give up."""
    client = OfRevisions(chain([7, 8, 9], repeat(9)))
    await wait_until_quiet(client)  # type: ignore[arg-type]
    assert client.asked == 4


async def test_unrest_names_the_last_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that goes on by itself ends the wait with the last revision that was seen."""
    monkeypatch.setattr(observation, "QUIET_TIMEOUT_S", 0.05)
    client = OfRevisions(count(1))
    with pytest.raises(LoadFailed, match=r"no rest within 0\.05 s: .* is \d+"):
        await wait_until_quiet(client)  # type: ignore[arg-type]
