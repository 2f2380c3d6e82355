"""Reads that wait for an index: their limit, and abandoned ones."""

from __future__ import annotations

import pytest

from coordinator.vsr import (
    Effect,
    ReadIndexAbandoned,
    ReadIndexRefused,
    ReadIndexRequested,
    RefusalReason,
    Send,
)
from coordinator.vsr import reads as reads_module
from coordinator.vsr.messages import ReadIndexRequestMessage
from tests.coordinator.vsr.cluster_harness import bootstrapped
from viewstamp.limits import READ_INDEX_RESEND_MS, TICK_MS


def test_waiting_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that no quorum confirms do not pile up without end."""
    monkeypatch.setattr(reads_module, "READ_INDEXES_WAITING_MAX", 2)
    cluster = bootstrapped(3)
    cluster.step(0, ReadIndexRequested(1))
    cluster.step(0, ReadIndexRequested(2))

    assert cluster.step(0, ReadIndexRequested(3)) == [
        ReadIndexRefused(3, RefusalReason.TOO_MANY_READS, 0)
    ]


@pytest.mark.parametrize("index", [0, 1], ids=["primary", "backup"])
def test_an_abandoned_read_takes_no_place(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abandoned read leaves its place free, even if no index was granted."""
    monkeypatch.setattr(reads_module, "READ_INDEXES_WAITING_MAX", 2)
    cluster = bootstrapped(3)
    cluster.step(index, ReadIndexRequested(1))
    for token in range(2, 6):  # each waits for the next round, and is given up there
        assert not _refused(cluster.step(index, ReadIndexRequested(token)))
        cluster.step(index, ReadIndexAbandoned(token))
    for token in range(6, 10):  # each is given up in the round that is under way
        assert not _refused(cluster.step(index, ReadIndexRequested(token)))
        cluster.step(index, ReadIndexAbandoned(1 if token == 6 else token - 1))
    assert not _refused(cluster.step(index, ReadIndexRequested(10)))
    assert _refused(cluster.step(index, ReadIndexRequested(11)))

    cluster.pass_time(2 * READ_INDEX_RESEND_MS)
    assert set(cluster.reads) == {*range(1, 9), 11}


def _refused(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, ReadIndexRefused)]


def test_a_question_for_nobody_is_not_repeated() -> None:
    """A backup whose reads were all abandoned asks no more, until the next read comes."""
    cluster = bootstrapped(3)
    cluster.step(1, ReadIndexRequested(1))
    cluster.step(1, ReadIndexAbandoned(1))
    cluster.network.clear()
    cluster.now_ticks += READ_INDEX_RESEND_MS // TICK_MS
    assert not _questions(cluster.tick(1))

    assert len(_questions(cluster.step(1, ReadIndexRequested(2)))) == 1
    cluster.now_ticks += READ_INDEX_RESEND_MS // TICK_MS
    assert len(_questions(cluster.tick(1))) == 1


def _questions(effects: list[Effect]) -> list[Effect]:
    return [
        effect
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, ReadIndexRequestMessage)
    ]
