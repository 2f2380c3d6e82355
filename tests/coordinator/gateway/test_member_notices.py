"""Streams are told of changed places in an even flow, each once, and only those that take it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from coordinator.gateway import member_notices as notices_module
from coordinator.gateway.member_notices import MemberNotices
from tests.coordinator.gateway.test_admission import SESSION
from tests.coordinator.gateway.test_stream_fences import Face, turns
from viewstamp.api.domain.v1.domain_service_pb2 import Notice


class NoticedByTest:
    """Some streams that take notices, and what they were told."""

    def __init__(self) -> None:
        self.open = set(range(1, 8))
        self.told: list[tuple[int, set[int]]] = []

    def takes_notices(self, session_id: int) -> bool:
        """Whether a session is open."""
        return session_id in self.open

    def notice(self, session_id: int, group_ids: Collection[int]) -> None:
        """Remember."""
        self.told.append((session_id, set(group_ids)))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams be told in the next turns of the event loop."""
    monkeypatch.setattr(notices_module, "NOTICE_INTERVAL_MS", 0)


def about(session_id: int, group_id: int = 1) -> Notice:
    """Return a notice."""
    return Notice(session_id=session_id, group_id=group_id)


async def test_a_stream_is_told_once_of_everything() -> None:
    """Changes that come before its turn share a notice; sessions without a stream get none."""
    streams = NoticedByTest()
    notices = MemberNotices(streams)
    notices.add([about(1, 5), about(99), about(2, 5)])
    notices.add([about(1, 6), about(1, 5)])
    assert streams.told == []
    await turns()
    assert streams.told == [(1, {5, 6}), (2, {5})]
    notices.add([about(1, 7)])
    await turns()
    assert streams.told[2:] == [(1, {7})]


async def test_a_crowd_is_told_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many streams a few are told at a time, the oldest first, until all were."""
    monkeypatch.setattr(notices_module, "NOTICES_TOGETHER_MAX", 3)
    streams = NoticedByTest()
    notices = MemberNotices(streams)
    notices.add(about(number) for number in range(1, 5))
    notices.add(about(number) for number in range(5, 8))
    counts = []
    while len(notices):
        await asyncio.sleep(0)
        counts.append(len(streams.told))
    assert sorted(set(counts) - {0}) == [3, 6, 7]
    assert [session for session, _ in streams.told] == list(range(1, 8))


async def test_a_stream_gets_its_notice_beside_answers() -> None:
    """One that takes notices gets them, in one message if it is slow; an answer is still due."""
    face = Face()
    async with face.stream(takes_notices=True) as wire:
        assert face.streams.takes_notices(SESSION)
        wire.may_write.clear()
        for group_id in (5, 9, 7):
            face.streams.notice(SESSION, [group_id])
            await turns()
        wire.may_write.set()
        found = [await wire.written.get() for _ in range(2)]
        assert [list(each.notice.group_ids) for each in found] == [[5], [7, 9]]
        wire.send(1)
        await turns()
        assert face.logged == [1]
        assert wire.written.empty()
    assert not face.streams.takes_notices(SESSION)
    face.streams.notice(SESSION, [5])


async def test_who_does_not_take_notices_gets_none() -> None:
    """An older client would not know what to do with one."""
    face = Face()
    async with face.stream() as wire:
        assert not face.streams.takes_notices(SESSION)
        face.streams.notice(SESSION, [5])
        await turns()
        assert wire.written.empty()
