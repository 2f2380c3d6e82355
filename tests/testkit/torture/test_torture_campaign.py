"""A campaign runs rounds until there are enough, goes on where it was, and keeps evidence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testkit.torture import __main__ as campaign
from testkit.torture import figures
from testkit.torture.round import RoundFigures

KILLS_PER_ROUND = 10


class FakeRounds:
    """Stands in for clusters and rounds; the rounds of some seeds have findings."""

    def __init__(self, bad: range) -> None:
        self.seeds: list[int] = []
        self.clusters = 0
        self._bad = bad

    @asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[None]:
        """Start a cluster, which only has a directory."""
        directory.mkdir()
        self.clusters += 1
        yield

    def __call__(self, _: Any, number: int, seed: int, *__: Any) -> FakeRounds:
        """Make the round of a seed."""
        self.seeds.append(seed)
        return self

    async def run(self) -> RoundFigures:
        """Run the round that was made last."""
        seed = self.seeds[-1]
        findings = ["something was lost"] if seed in self._bad else []
        return RoundFigures(seed, seed, kills={"users": KILLS_PER_ROUND}, findings=findings)


def run(monkeypatch: pytest.MonkeyPatch, directory: Path, bad: range, *flags: str) -> FakeRounds:
    """Run a campaign with stand-ins for its rounds."""
    rounds = FakeRounds(bad)
    monkeypatch.setattr(campaign, "running", rounds.running)
    monkeypatch.setattr(campaign, "TortureRound", rounds)
    path = ["--figures", str(directory / "figures.jsonl"), "--directory", str(directory / "data")]
    campaign.main([*path, "--json", *flags])
    return rounds


def kept(directory: Path) -> int:
    """How many clusters are kept as evidence."""
    return len(list((directory / "data").iterdir()))


@pytest.mark.long
def test_rounds_run_until_there_are_enough_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds share a cluster for a while, and nothing is left of clusters without a finding."""
    rounds = run(monkeypatch, tmp_path, range(0), "--kills", "75", "--seed", "3")
    assert rounds.seeds == list(range(3, 11))
    assert rounds.clusters == 2
    assert kept(tmp_path) == 0


def test_a_campaign_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that are in the file are not run again; more kills need more rounds."""
    first = run(monkeypatch, tmp_path, range(0), "--rounds", "2")
    then = run(monkeypatch, tmp_path, range(0), "--kills", "50")
    assert (first.seeds, then.seeds) == ([1, 2], [3, 4, 5])
    assert len(figures.load(tmp_path / "figures.jsonl")) == 5


def test_evidence_is_kept_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with a finding is kept and used no more, and a run ends after some of them."""
    rounds = run(monkeypatch, tmp_path, range(2, 100))
    assert rounds.seeds == list(range(1, campaign.CLUSTERS_KEPT_MAX + 2))
    assert rounds.clusters == kept(tmp_path) == campaign.CLUSTERS_KEPT_MAX


def test_a_run_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time no cluster is started."""
    assert run(monkeypatch, tmp_path, range(0), "--minutes", "0").clusters == 0
