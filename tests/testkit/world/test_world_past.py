"""Visitors that ask a world for its past: what they send, what comes of it, who judges it.

Method: whole runs without faults, in which visitors do nothing else; then single answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from coordinator.history import turns
from coordinator.history.messages import BeginState, StatePlace
from coordinator.history.process import PastEndedError
from testkit.world import (
    operator_acts,
    past_states,
    short_turns,
    wanderer_acts,
    wanderer_past,
)
from testkit.world.clients import Access
from testkit.world.options import WorldOptions
from testkit.world.seeds import run_seed
from testkit.world.wanderers import Wanderer
from viewstamp.api.common.v1.common_pb2 import ResponseHeader
from viewstamp.api.history.v1 import history_service_pb2 as history_pb2

QUIET = WorldOptions(seconds=4, clients=1, callers=1, faults=())
HAS_SHORT_TURNS = next(seed for seed in range(1, 100) if short_turns.has_short_turns(seed))


@pytest.mark.long
def test_crowds_come_to_the_ends_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a crowd some are answered and some are too many, and nothing fails beside changes."""
    by_users = ((1, wanderer_past.blame), (1, wanderer_acts.change_streams))
    monkeypatch.setattr(wanderer_acts, "ACTS", by_users)
    monkeypatch.setattr(operator_acts, "ACTS", ((1, wanderer_past.crowd),))
    outcome = run_seed(HAS_SHORT_TURNS, replace(QUIET, wanderers=1, operators=1))
    assert outcome.violations == []
    for told in ("done", "OVERLOADED"):
        assert outcome.marks[f"visitors: crowd: {told}"]


def test_half_of_the_seeds_have_short_turns() -> None:
    """Turns are short in some runs, and as long as ever in the others and after each run."""
    before, seen = turns.PAST_TURN_MS_MAX, Counter[bool]()
    for seed in range(100):
        with short_turns.short_turns(seed):
            seen[before == turns.PAST_TURN_MS_MAX] += 1
    assert min(seen[True], seen[False]) > 30
    assert before == turns.PAST_TURN_MS_MAX


def test_a_process_of_the_past_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers as often as the run says, and ends at the next question."""
    monkeypatch.setattr(past_states, "LAST_ANSWER", 2)

    async def ask_often() -> None:
        past = await past_states.launch_world_past()
        for _ in range(2):
            assert isinstance(await past.ask(BeginState(None)), StatePlace)
        with pytest.raises(PastEndedError, match="was killed"):
            await past.ask(BeginState(None))

    asyncio.run(ask_often())


def visitor(told: list[str]) -> Wanderer:
    """Return a visitor that tells what fails."""
    access = Access(["10.0.0.1:1"], "")
    return Wanderer("wander0", 1, access, told.append, Counter(), is_root=False)


def test_requests_for_changes_are_of_everything() -> None:
    """Every kind of entity comes, by name and id, with each part, and some requests are wrong."""
    w = visitor([])
    w.random = Random(1)
    made = [wanderer_past.blamed(w) for _ in range(2_000)]
    named = {tuple(f.name for f, _ in each.ListFields() if f.message_type) for each in made}
    assert {("user",), ("broker",), ("stream",), ("stream", "topic")} < named
    assert len(named) == 5
    assert {each.part for each in made} == {*history_pb2.BlamedPart.values(), 9}
    assert any(each.stream.id for each in made) and any(each.ids for each in made)
    assert any(each.HasField("partition") for each in made)


def test_a_state_that_shows_what_came_later_is_found() -> None:
    """A stream that was changed behind the revision that was asked for fails a run."""
    told: list[str] = []
    for modified_revision in (6, 7, 8):
        streams = [SimpleNamespace(modified_revision=modified_revision)]
        wanderer_past.judge_streams(visitor(told), 7, streams)
    assert told == ["revision 7 shows what came later"]


@pytest.mark.parametrize(
    ("revisions", "is_right"),
    [((), True), ((1, 2, 2, 9), True), ((2, 1), False), ((1, 10), False)],
)
def test_changes_out_of_order_are_found(revisions: tuple[int, ...], *, is_right: bool) -> None:
    """Changes come in their order, and none is later than the answer."""
    told: list[str] = []
    changes = [history_pb2.EntityChange(revision=revision) for revision in revisions]
    page = history_pb2.BlameEntityResponse(header=ResponseHeader(revision=9), changes=changes)
    wanderer_past.judge_page(visitor(told), page)
    assert bool(told) is not is_right


def test_a_revision_that_changes_a_stream_twice_is_found() -> None:
    """Each revision is told once of what has no parts, where two changes of one revision may be
    of two parts otherwise."""
    told: list[str] = []
    changes = [history_pb2.EntityChange(revision=revision) for revision in (3, 3)]
    page = history_pb2.BlameEntityResponse(header=ResponseHeader(revision=9), changes=changes)
    wanderer_past.judge_page(visitor(told), page)
    assert told == []
    wanderer_past.judge_page(visitor(told), page, is_lone=True)
    assert told == ["changes of one entity are at revisions [3, 3]"]
