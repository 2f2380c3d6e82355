"""The state of an earlier revision, built from the log, or from a snapshot and the log after it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.history.messages import ApplyEntries, StateFailed, StatePlace
from coordinator.mux.types import Read, ReadAnswered, ReadSpan
from past.conversation import PastConversation
from past.state import PastState
from testkit.composite.model import METHODS
from tests.composite.trial import CompositeTrial
from tests.past.past_histories import history, sealed, state_of_cut
from viewstamp.api.errors.v1.errors_pb2 import Error, Reason
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import CHANGES_KEPT_BYTES_MAX

SHORT_PREPARES = 10
LONG_PREPARES = 20


def is_of_the_past(read: Read) -> bool:
    """Whether a read asks for nothing but state; signs of life are for the present."""
    return not any(METHODS[span.code].at_primary for span in read.spans)


def check_reads(trial: CompositeTrial, state: PastState) -> int:
    """Fail unless each read of this position is answered as it was when it was the present."""
    checked = 0
    for read in filter(is_of_the_past, trial.reads.get(state.op, ())):
        then = trial.replica.reads[read.token]
        if then.error is None:  # no service died
            assert state.read(read) == then
            checked += 1
    return checked


def check_whole_history(trial: CompositeTrial) -> None:
    """Fail unless all reads, from the log and from each cut, are answered as they were."""
    entries = sealed(trial)
    origins = [
        PastState(),
        *(state_of_cut(trial.replica.cuts, g, entries) for g in trial.replica.cuts.taken),
    ]
    for state in origins:
        check_reads(trial, state)
        for entry in entries[state.op :]:
            state.apply(entry)
            check_reads(trial, state)
        assert state.digests() == trial.replica.digests()
        assert state.revision == trial.replica.mux.revision


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random=st.randoms(use_true_random=False))
def test_short_histories_are_read_as_they_were(random: Random) -> None:
    """A read at an earlier revision has the answer that it had when this was the present."""
    check_whole_history(history(random, SHORT_PREPARES))


@pytest.mark.parametrize("seed", range(2))
def test_long_histories_are_read_as_they_were(seed: int) -> None:
    """The same holds of long histories, with cuts and restored snapshots."""
    check_whole_history(history(Random(seed), LONG_PREPARES))


def changes_of(state: PastState) -> list[Change]:
    """Return what was changed since changes were forgotten, in the order of revisions."""
    found = [
        change
        for machine in state.machines.values()
        for kind in machine.domain.watched
        for change, _ in machine.changes.told_with_old({kind.entity_type})
        if kind.entity_type
    ]
    return sorted(found, key=lambda change: change.revision)


def at(entries: list[SealedPrepare], revision: int) -> PastState:
    """Return the state of a revision, in the midst of the last entry or at its end."""
    state = PastState()
    for entry in entries:
        if entry.last_revision >= revision:
            state.forget_changes(CHANGES_KEPT_BYTES_MAX)
            state.apply(entry, revision)
            return state
        state.apply(entry)
    raise AssertionError(f"revision {revision} is not in the log")


@pytest.mark.parametrize("seed", range(1))
def test_an_entry_is_applied_up_to_any_of_its_commands(seed: int) -> None:
    """The beginning of an entry changes what its commands changed up to there, and no more."""
    entries = sealed(history(Random(seed), SHORT_PREPARES))
    for entry in [each for each in entries if each.command_count > 1][:4]:
        whole = changes_of(at(entries, entry.last_revision))
        for revision in range(entry.first_revision, entry.last_revision):
            state = at(entries, revision)
            assert (state.op, state.revision, state.is_partial) == (entry.op, revision, True)
            assert changes_of(state) == [each for each in whole if each.revision <= revision]


def test_a_read_changes_nothing() -> None:
    """The state goes on as if nobody had read."""
    trial = history(Random(5), SHORT_PREPARES)
    read, quiet = PastState(), PastState()
    answers: list[ReadAnswered] = []
    for entry in sealed(trial):
        for state in (read, quiet):
            state.apply(entry)
        answers += [
            read.read(each) for each in trial.reads.get(read.op, ()) if is_of_the_past(each)
        ]
    assert answers
    assert read.digests() == quiet.digests()


def test_an_entry_of_another_log_is_refused() -> None:
    """An entry whose parent is not the last one, as a discarded view left it, changes nothing."""
    first, second, *_ = sealed(history(Random(1), 4))
    conversation = PastConversation()
    conversation.answer(ApplyEntries([first], first.last_revision))
    foreign = replace(second, header=replace(second.header, parent=bytes(16)))
    failed = conversation.answer(ApplyEntries([foreign], second.last_revision))
    assert isinstance(failed, StateFailed)
    assert "op 2 of view 1 follows another entry" in failed.problem
    assert conversation.answer(ApplyEntries([], 0)) == StatePlace(
        1, first.last_revision, False, at([first], first.last_revision).digest()
    )


def test_a_method_of_a_later_build_is_refused() -> None:
    """A read that only a newer service knows is refused, and ends nothing."""
    state = PastState()
    read = Read(1, (ReadSpan(code=9_999, count=1, items=b""),), 0, 1)
    error = Error.FromString(state.read(read).error or b"")
    assert error.reason == Reason.REASON_UNIMPLEMENTED
