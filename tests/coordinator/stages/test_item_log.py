"""The log for the restart of a service: against a plain list, and rule by rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.stages.item_log import ItemLog, LoggedBatch, ReplayDivergedError, settle
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

# A batch of so many bytes; a cut, as the next generation; the base moves to the n-th newest cut.
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 40)),
        st.tuples(st.just("cut"), st.just(1)),
        st.tuples(st.just("move"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_the_log_holds_all_since_its_base_or_says_that_it_does_not(
    actions: list[tuple[str, int]],
) -> None:
    """Unless dropped, base plus entries are every batch ever sent; the log stays within its
    limit."""
    log, sent = ItemLog(bytes_max=100), 0
    cuts: list[tuple[int, int]] = []  # generation, sequence; those behind the base
    for action, number in actions:
        if action == "move":
            if number < len(cuts):
                generation, sequence = cuts[-1 - number]
                assert log.move_base(generation)
                assert log.base_sequence == sequence
                cuts = [cut for cut in cuts if cut[1] > sequence]
            continue
        sent += 1
        generation = len(cuts) + 1000 * sent if action == "cut" else 0
        log.append(sent, b"x" * number, generation)
        if generation:
            cuts.append((generation, sent))
        assert log.bytes <= 100
        assert log.bytes == sum(len(entry.message) for entry in log)
    if not log.dropped:
        sequences = [entry.sequence for entry in log]
        assert sequences == list(range(log.base_sequence + 1, sent + 1))


def test_a_dropped_log_is_whole_again_behind_the_next_cut() -> None:
    """After an overflow a cut begins a new log, which counts once its generation is the base."""
    log = ItemLog(bytes_max=10)
    log.append(1, b"x" * 11)
    assert log.dropped
    log.append(2, b"x")
    log.append(3, b"cut", cut_generation=1)
    log.append(4, b"y")
    states = [log.dropped]  # the section of that cut is not durable yet
    assert log.move_base(1)
    states.append(log.dropped)

    assert states == [True, False]
    assert [entry.sequence for entry in log] == [4]


def test_a_cut_that_failed_leaves_the_log_dropped() -> None:
    """Only a cut whose generation becomes the base makes the log whole, beginning at the newest
    cut."""
    log = ItemLog(bytes_max=10)
    log.append(1, b"x" * 11)
    log.append(2, b"cut", cut_generation=1)
    log.append(3, b"cut", cut_generation=2)

    assert log.move_base(2)
    assert not log.dropped
    assert not log.move_base(1), "an older base is never gone back to"
    assert log.base_sequence == 3


def test_an_older_cut_does_not_make_a_log_whole_that_began_later() -> None:
    """A log that began behind cut 2 cannot restart a service from the section of cut 1."""
    log = ItemLog(bytes_max=10)
    log.append(1, b"x" * 11)
    log.append(2, b"cut", cut_generation=1)
    log.append(3, b"cut", cut_generation=2)

    assert log.move_base(1)

    assert log.dropped


def test_batches_come_in_order() -> None:
    """A gap is refused; otherwise a replay would skip it in silence."""
    log = ItemLog()
    log.append(1, b"")
    with pytest.raises(ValueError, match="batch 3 entered where 2 is next"):
        log.append(3, b"")


@pytest.mark.parametrize(
    ("second", "agrees"),
    [
        (pb.BatchReply(sequence=7), True),
        (pb.BatchReply(sequence=7, notices=[pb.Notice(session_id=1, group_id=3)]), True),
        (pb.BatchReply(sequence=7, outcomes=[pb.Outcome()]), False),
    ],
)
def test_what_a_replay_must_repeat(second: pb.BatchReply, agrees: bool) -> None:
    """A second answer must equal the first one in all but its notices, which are hints."""
    first = pb.BatchReply(sequence=7, notices=[pb.Notice(session_id=1, group_id=2)])
    entry = LoggedBatch(7, b"")
    assert settle(entry, first)
    if agrees:
        assert not settle(entry, second)
    else:
        with pytest.raises(ReplayDivergedError, match="batch 7"):
            settle(entry, second)
