"""Watchers of a part of the changes in a world: what they are shown, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from testkit.oracles.feeds import Shown, ShownFeed
from testkit.world.narrow_feeds import Hidden, NarrowLife, WatchedPart, narrow_violations
from testkit.world.options import WorldOptions, draw
from testkit.world.run import WorldRun
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change

TOPIC, GROUP = "a.Topic", "a.Group"
ORDERS, OTHERS = 3, 4


def change(entity_type: str, stream_id: int, revision: int = 0) -> Change:
    """Return a change of something in a stream."""
    return Change(
        entity_type=entity_type,
        stream_id=stream_id,
        domain=routing_pb2.STAGE_USERS,
        revision=revision,
    )


WHOLE = {
    11: [change(TOPIC, ORDERS), change(GROUP, OTHERS)],
    12: [change(TOPIC, OTHERS)],
    13: [change(GROUP, ORDERS)],
}
TOLD = [change(GROUP, ORDERS, 13), change(GROUP, ORDERS, 23)]
PART = WatchedPart(stream_id=ORDERS)
GOOD = {11: WHOLE[11][:1], 13: WHOLE[13]}


def shown(begin: int, complete: int, changes: Mapping[int, Sequence[Change]]) -> Shown:
    """Return what a watcher was shown behind one revision and up to another."""
    result = Shown(begin, only_topics=False, complete=begin)
    for revision, each in sorted(changes.items()):
        result.take(revision, each)
    result.complete = complete
    return result


def verdict(changes: Mapping[int, Sequence[Change]], hidden: Sequence[Hidden] = ()) -> str:
    """Return what the judge finds about a watcher of one stream, up to revision 30; the watcher of
    everything came to revision 20."""
    feed = ShownFeed()
    feed.lives.append(shown(10, 20, WHOLE))
    life = NarrowLife("w", PART, shown(10, 30, changes))
    return "\n".join(narrow_violations([life], feed, {"w": hidden}, TOLD))


def test_all_of_a_part_and_nothing_else_is_right() -> None:
    """What is in the part is due, also where no watcher of everything was shown anything."""
    assert verdict(GOOD | {23: [change(GROUP, ORDERS)]}, [Hidden(13, 20)]) == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({13: GOOD[13]}, "was shown 0 changes of 11, and 1 others are due"),
        (GOOD | {12: GOOD[11]}, "was shown 1 changes of 12, and 0 others are due"),
        (GOOD | {11: WHOLE[11]}, "was shown what it did not ask for, of 11"),
        (GOOD | {15: GOOD[11]}, "was shown 1 changes of 15, and 0 others are due"),
        (GOOD | {25: WHOLE[12]}, "was shown what it did not ask for, of 25"),
        ({11: GOOD[11]}, "was not shown a a.Group of revision 13"),
        (GOOD, "was not shown a a.Group of revision 23"),
    ],
    ids=["left out", "of another", "too much", "invented", "a stray", "of a caller", "unknown"],
)
def test_what_is_wrong_with_a_part_is_found(
    changes: Mapping[int, Sequence[Change]], says: str
) -> None:
    """A change that is left out, invented, or of another part is a violation."""
    assert says in verdict(changes)


def test_what_a_user_may_not_see_is_found() -> None:
    """A change behind the end of the permission, and up to the next one, is a violation."""
    assert "changes of 11, which it may not see" in verdict(GOOD, [Hidden(10, 12)])
    assert "may not see" not in verdict(GOOD, [Hidden(11, 12)])


def test_a_part_is_what_is_asked_for() -> None:
    """Types, domains and ids narrow a part down; what is not given narrows nothing."""
    topic = Change(
        entity_type=TOPIC, domain=routing_pb2.STAGE_STREAMS, stream_id=3, topic_id=4, group_id=5
    )
    assert all(
        part.has(topic)
        for part in (
            WatchedPart(),
            WatchedPart((GROUP, TOPIC), (1, routing_pb2.STAGE_STREAMS), 3, 4, 5),
        )
    )
    wrong = (
        WatchedPart(entity_types=(GROUP,)),
        WatchedPart(domains=(1,)),
        *(WatchedPart(**{name: 9}) for name in ("stream_id", "topic_id", "group_id")),  # type: ignore[arg-type]
    )
    assert not any(part.has(topic) for part in wrong)


@pytest.mark.long
def test_narrow_watchers_are_one_run() -> None:
    """They are shown and refused much, rightly, and the same seed gives the same digest."""
    options = WorldOptions(seconds=3, clients=1, faults=(), narrow_watchers=2)
    first, second = (WorldRun(2, options).run() for _ in range(2))
    assert first.violations == []
    assert first.digest == second.digest
    assert first.branches["revisions shown to narrow watchers"] > 5
    assert any(mark.startswith("narrow watchers: ") for mark in first.marks)


def test_seeds_draw_programs_apart_from_everything_else() -> None:
    """Some seeds have narrow watchers, some have strangers, and each has them or not alone."""
    drawn = [(draw(seed).narrow_watchers, draw(seed).strangers) for seed in range(1, 60)]
    assert {narrow for narrow, _ in drawn} == {0, 1, 2}
    assert len({(narrow > 0, strangers > 0) for narrow, strangers in drawn}) == 4
