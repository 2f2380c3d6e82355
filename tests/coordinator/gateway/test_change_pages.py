"""The pages of three services become one sequence of whole revisions."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.gateway.change_pages import ChangePages, ChangesLostError
from coordinator.mux import types as mux
from tests.coordinator.gateway.fake_changes import (
    ACCESS,
    GROUP,
    MEMBER,
    STREAM,
    TOPIC,
    USER,
    FakeChanges,
    change,
    told,
)
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.errors import Refusal
from viewstamp.limits import CHANGES_PAGE_MAX

ROUNDS_MAX: Final = 200
ENTITY_TYPES: Final = (USER, STREAM, TOPIC, ACCESS, GROUP, MEMBER)


async def all_of(
    services: FakeChanges, pages: ChangePages, *, last: int | None = None
) -> list[Change]:
    """Read until a revision is complete, by default the present one; check each step."""
    found: list[Change] = []
    for _ in range(ROUNDS_MAX):
        complete = pages.complete_revision
        if complete >= (services.revision if last is None else last):
            return found
        revisions = await pages.next()
        assert revisions.complete_revision == pages.complete_revision >= complete
        revisions_found = [each.revision for each in revisions.changes]
        assert revisions_found == sorted(revisions_found)
        assert complete < min(revisions_found, default=complete + 1)
        assert max(revisions_found, default=0) <= pages.complete_revision
        found += revisions.changes
    raise AssertionError(f"{ROUNDS_MAX} pages did not suffice")


async def test_changes_come_by_revision_and_stage() -> None:
    """Revisions follow each other, and within one the stages in the order in which they apply."""
    services = FakeChanges()
    services.commit(change(MEMBER, 1, 1, 1), change(STREAM, 1), change(USER, user=3))
    services.commit(change(TOPIC, 1, 1), change(TOPIC, 1, 2))
    services.commit(change(USER, user=4))
    revisions = await ChangePages(services, 1).next()
    assert [(each.revision, each.entity_type) for each in revisions.changes] == [
        (1, USER),
        (1, STREAM),
        (1, MEMBER),
        (2, TOPIC),
        (2, TOPIC),
        (3, USER),
    ]
    assert [each.topic_id for each in revisions.changes[3:5]] == [1, 2]
    assert (revisions.complete_revision, revisions.op, revisions.view) == (3, 3, 1)


async def test_reading_begins_where_it_was_told_to() -> None:
    """Earlier revisions are left out, and a revision without changes is complete, too."""
    services = FakeChanges()
    for number in range(5):
        services.commit(change(STREAM, number))
    services.commit()
    revisions = await ChangePages(services, 4).next()
    assert [each.revision for each in revisions.changes] == [4, 5]
    assert revisions.complete_revision == 6


async def test_a_revision_waits_for_all_its_stages() -> None:
    """What the other stages have of a revision is kept back until a cut-off page is continued."""
    services = FakeChanges(page_max=2)
    services.commit(change(GROUP, 1, 1, 1))
    services.commit(*[change(TOPIC, 1, n) for n in range(5)], change(GROUP, 1, 1, 2))
    pages = ChangePages(services, 1)
    given_out = []
    while pages.complete_revision < 2:
        revisions = await pages.next()
        given_out.append([each.entity_type for each in revisions.changes])
    assert given_out == [[GROUP], [], [TOPIC] * 5 + [GROUP]]


async def test_reads_go_on_at_later_positions() -> None:
    """Revisions that are committed between two pages of one revision come behind it."""
    services = FakeChanges(page_max=2)
    services.commit(*[change(TOPIC, 1, n) for n in range(5)])
    pages = ChangePages(services, 1)
    assert not (await pages.next()).changes
    services.commit(change(USER, user=1), change(GROUP, 1, 1, 1))
    services.commit(change(USER, user=2))
    found = await all_of(services, pages)
    assert told(found) == told(services.all_changes())
    assert len(found) == 8


async def test_who_is_ahead_is_asked_for_nothing() -> None:
    """While one stage catches up, the others add at most a page to what waits in memory."""
    services = FakeChanges(page_max=4)
    for number in range(40):
        services.commit(change(USER, user=number))
    for number in range(40):
        services.commit(change(TOPIC, 1, number))
    pages = ChangePages(services, 1)
    found = await all_of(services, pages, last=40)
    asked = [request.changes_max for each in services.started for request in each.asked()[1:2]]
    assert asked == [CHANGES_PAGE_MAX] + [0] * 9
    assert told(found) == told(services.all_changes())[: len(found)]
    assert told(found + await all_of(services, pages)) == told(services.all_changes())


async def test_changes_that_are_gone_are_missed() -> None:
    """A stage that does not keep the next revision any more is reported, with what it keeps."""
    services = FakeChanges(page_max=2)
    for number in range(6):
        services.commit(change(STREAM, number))
    pages = ChangePages(services, 1)
    await pages.next()
    assert pages.complete_revision == 2
    services.forget(before=3)
    await pages.next()
    services.forget(before=6)
    with pytest.raises(ChangesLostError) as caught:
        await pages.next()
    assert caught.value.oldest_revision == 6


async def test_half_of_a_revision_may_be_lost() -> None:
    """A revision of which a part was read, and is gone, is not given out in part."""
    services = FakeChanges(page_max=2)
    services.commit(*[change(TOPIC, 1, n) for n in range(5)])
    services.commit(change(TOPIC, 1, 9))
    pages = ChangePages(services, 1)
    assert not (await pages.next()).changes
    services.forget(before=2)
    with pytest.raises(ChangesLostError):
        await pages.next()


async def test_any_stage_may_have_lost_changes() -> None:
    """The oldest revision is that of the stage that keeps least."""
    services = FakeChanges()
    services.commit(change(STREAM, 1))
    services.forget(2, mux.Stage.USERS)
    services.forget(3, mux.Stage.CONSUMER_GROUPS)
    services.commit()
    with pytest.raises(ChangesLostError) as caught:
        await ChangePages(services, 1).next()
    assert caught.value.oldest_revision == 3


async def test_a_refused_read_is_made_again() -> None:
    """A refusal changes nothing: the next read asks for the same."""
    services = FakeChanges(page_max=1)
    for number in range(3):
        services.commit(change(STREAM, number), change(GROUP, number, 1, 1))
    pages = ChangePages(services, 1)
    found = list((await pages.next()).changes)
    for reason in (Reason.REASON_DOMAIN_RESTARTING, Reason.REASON_OVERLOADED):
        services.refusal = Refusal(reason, "")
        with pytest.raises(Refusal):
            await pages.next()
    services.refusal = None
    assert told(found + await all_of(services, pages)) == told(services.all_changes())


async def test_a_cancelled_read_is_made_again() -> None:
    """A read that is abandoned leaves nothing behind, and the next one asks for the same."""
    services = FakeChanges()
    pages = ChangePages(services, 1)
    waiting = asyncio.ensure_future(pages.next(waits=True))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [each.future.cancelled() for each in services.started] == [True]
    services.commit(change(STREAM, 1))
    assert len((await pages.next(waits=True)).changes) == 1


async def test_waiting_ends_with_the_next_revision() -> None:
    """A waiting read is answered once there is a revision behind the complete ones."""
    services = FakeChanges()
    services.commit(change(STREAM, 1))
    pages = ChangePages(services, 2)
    waiting = asyncio.ensure_future(pages.next(waits=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    services.commit(change(STREAM, 2))
    assert [each.revision for each in (await waiting).changes] == [2]


async def test_a_part_of_a_revision_is_not_waited_for() -> None:
    """The rest of a revision that is there already is read at once."""
    services = FakeChanges(page_max=1)
    services.commit(change(STREAM, 1), change(STREAM, 2))
    pages = ChangePages(services, 1)
    assert not (await pages.next(waits=True)).changes
    assert len((await pages.next(waits=True)).changes) == 2


async def test_a_position_before_the_first_revision_wanted_says_nothing() -> None:
    """Somebody who watches from a later revision on gets nothing before it, and stays there."""
    services = FakeChanges()
    services.commit(change(STREAM, 1))
    pages = ChangePages(services, 5)
    assert not (await pages.next()).changes
    assert pages.complete_revision == 4
    for number in range(2, 7):
        services.commit(change(STREAM, number))
    assert [each.revision for each in await all_of(services, pages)] == [5, 6]


async def test_reads_are_on_account_of_who_catches_up() -> None:
    """Reads carry the user for whom they are, so that users share the services evenly."""
    services = FakeChanges()
    await ChangePages(services, 1, 7).next()
    await ChangePages(services, 1).next()
    assert [each.read.user_id for each in services.started] == [7, None]
    assert [each.linearizable for each in services.started] == [False, False]
    assert len({each.read.token for each in services.started}) == 2


@given(
    log=st.lists(st.lists(st.sampled_from(ENTITY_TYPES), max_size=6), max_size=12),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=10),
    commits=st.lists(st.integers(0, 3), max_size=10),
    first=st.integers(1, 6),
)
def test_any_pages_make_the_same_sequence(
    log: list[list[str]], sizes: list[int], commits: list[int], first: int
) -> None:
    """However pages are cut off, and whatever is committed between them, the sequence is the
    same."""
    services = FakeChanges()
    steps = iter(log)
    serial = iter(range(10**6))

    def commit(count: int) -> None:
        for types in [next(steps, None) for _ in range(count)]:
            if types is not None:
                services.commit(*[change(each, entity=b"%d" % next(serial)) for each in types])

    async def read() -> list[Change]:
        pages = ChangePages(services, first)
        found: list[Change] = []
        plans = iter(zip(sizes * ROUNDS_MAX, commits + [len(log)] * ROUNDS_MAX, strict=False))
        for services.page_max, count in plans:
            commit(count)
            found += (await pages.next()).changes
            if services.revision == len(log) and pages.complete_revision >= len(log):
                break
        return found

    assert told(asyncio.run(read())) == told(services.all_changes(first))
    assert services.revision == len(log)
