"""What the load's file says must hold, and where it does not. Pure: records and states in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from testkit.load.commands import ID_FIELDS, CommandKind
from testkit.load.model import LoadModel
from testkit.load.records import Duplicate, LoadAnswer, Record
from testkit.load.state import LoadState


class Check(StrEnum):
    """The checks; the value is the name in a report."""

    ONCE = "every request was answered once, numbers have no gap"
    REVISIONS = "distinct commands have distinct revisions"
    SAME_BYTES = "a request sent again gets the same bytes"
    ORDER = "sessions and real time agree with the order of revisions"
    OUTCOMES = "answers are those of a sequential model"
    IDS = "no id is given twice"
    ENTITIES = "paged reads find what was acknowledged, and nothing else"
    KILLS = "every kill came with 100 commands or more in flight, and was recovered from"
    DIGESTS = "a replay from scratch has the same digests"
    RESTORED = "a restart goes from the last snapshot, to the same digests"
    SNAPSHOTS = "every snapshot was decided, and completed ones verify from their layers"
    LAYERS = "the layers of the last snapshot add up to the same digests"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, with the evidence."""

    check: Check
    evidence: str


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of every stage at a revision."""

    revision: int
    stages: Mapping[str, str]


def check_records(
    records: Sequence[Record], before: LoadState, after: LoadState
) -> list[Violation]:
    """Return every violation found in the records and in the states before and after the load.

    The model changes `before` into the state that it expects.
    """
    answers = [record for record in records if isinstance(record, LoadAnswer)]
    duplicates = [record for record in records if isinstance(record, Duplicate)]
    return [
        *_answered_once(answers),
        *_revisions(answers),
        *_same_bytes(answers, duplicates),
        *_order(answers),
        *_model(answers, before),
        *_entities(before, after),
    ]


def check_digests(
    live: Digests, replayed: Digests, check: Check = Check.DIGESTS
) -> list[Violation]:
    """Return every difference between the killed and restarted cluster and its replay.

    The replay may be some revisions ahead: a coordinator that starts proposes what machines asked
    for shortly before, and by contract a stale proposal changes nothing, so no digest either.
    """
    evidence = []
    if replayed.revision < live.revision:
        evidence.append(f"revision {live.revision} was reached, the replay has {replayed.revision}")
    for stage in sorted({*live.stages, *replayed.stages}):
        mine, other = live.stages.get(stage, ""), replayed.stages.get(stage, "")
        if mine != other or not mine:
            evidence.append(f"{stage}: {mine or 'no digest'} became {other or 'no digest'}")
    if not live.stages:
        evidence.append("no digests were reported")
    return [Violation(check, line) for line in evidence]


def _answered_once(answers: Iterable[LoadAnswer]) -> Iterator[Violation]:
    numbers: dict[int, list[int]] = {}
    for answer in answers:
        numbers.setdefault(answer.session, []).append(answer.number)
        if len(answer.commands) != len(answer.outcomes):
            text = f"{len(answer.outcomes)} outcomes answer {len(answer.commands)} commands"
            yield Violation(Check.ONCE, f"{_name(answer)}: {text}")
    for session, seen in numbers.items():
        twice = [number for number, count in Counter(seen).items() if count > 1]
        missing = sorted(set(range(1, max(seen) + 1)).difference(seen))
        if twice:
            yield Violation(Check.ONCE, f"session {session}: answered again: {twice[:10]}")
        if missing:
            yield Violation(Check.ONCE, f"session {session}: never answered: {missing[:10]}")


def _revisions(answers: Iterable[LoadAnswer]) -> Iterator[Violation]:
    # A session's id is the revision of its registration, so it is taken too.
    taken: dict[int, str] = {}
    for answer in answers:
        taken[answer.session] = f"the registration of session {answer.session}"
    for answer in answers:
        for index in range(len(answer.commands)):
            revision = answer.first_revision + index
            if revision in taken:
                text = f"revision {revision} is of {_name(answer)}, and of {taken[revision]}"
                yield Violation(Check.REVISIONS, text)
            taken[revision] = _name(answer)


def _same_bytes(
    answers: Sequence[LoadAnswer], duplicates: Sequence[Duplicate]
) -> Iterator[Violation]:
    compared = {(duplicate.session, duplicate.number) for duplicate in duplicates}
    for answer in answers:
        if answer.sends > 1 and (answer.session, answer.number) not in compared:
            text = f"{_name(answer)} was sent {answer.sends} times, and never compared"
            yield Violation(Check.SAME_BYTES, text)
    digests = {(answer.session, answer.number): answer.digest for answer in answers}
    for duplicate in duplicates:
        first = digests.get((duplicate.session, duplicate.number), "nothing")
        if duplicate.digest != first:
            yield Violation(
                Check.SAME_BYTES,
                f"session {duplicate.session}, request {duplicate.number}: first {first}, "
                f"then {duplicate.digest}",
            )


def _order(answers: Sequence[LoadAnswer]) -> Iterator[Violation]:
    last: dict[int, LoadAnswer] = {}
    for answer in sorted(answers, key=lambda one: (one.session, one.number)):
        previous = last.get(answer.session)
        if previous is not None and previous.first_revision >= answer.first_revision:
            yield Violation(Check.ORDER, f"{_name(previous)} comes after {_name(answer)}")
        last[answer.session] = answer
    # What was answered before another was sent must come before it.
    by_sent = sorted(answers, key=lambda one: one.sent_ns)
    by_answered = sorted(answers, key=lambda one: one.answered_ns)
    position, newest = 0, None
    for answer in by_sent:
        while by_answered[position].answered_ns < answer.sent_ns:
            finished = by_answered[position]
            if newest is None or finished.first_revision > newest.first_revision:
                newest = finished
            position += 1
        if newest is not None and newest.first_revision > answer.first_revision:
            text = f"{_name(answer)} was sent after the answer to {_name(newest)} arrived"
            yield Violation(Check.ORDER, f"{text}, and has the lower revision")


_ID_SCOPES: Final[Mapping[CommandKind, str]] = {
    kind: field.removesuffix("_id") for kind, field in ID_FIELDS.items()
}


def _model(answers: Sequence[LoadAnswer], before: LoadState) -> Iterator[Violation]:
    ids = _highest_ids(before)
    model = LoadModel(before)
    for answer in sorted(answers, key=lambda one: one.first_revision):
        pairs = zip(answer.commands, answer.outcomes, strict=False)
        for index, (command, outcome) in enumerate(pairs):
            revision = answer.first_revision + index
            expected = model.apply(command, answer.session, revision, outcome)
            if expected != outcome.reason:
                yield Violation(
                    Check.OUTCOMES,
                    f"{_name(answer)}, {command.to_json()}: answered "
                    f"{outcome.reason or 'success'}, the model says {expected or 'success'}",
                )
            scope = _ID_SCOPES.get(command.kind)
            if scope is None or outcome.reason:
                continue
            if outcome.entity_id <= ids[scope]:
                text = f"{scope} id {outcome.entity_id} at revision {revision}"
                yield Violation(Check.IDS, f"{text} is not above {ids[scope]}")
            ids[scope] = max(ids[scope], outcome.entity_id)


def _highest_ids(state: LoadState) -> dict[str, int]:
    topics = [topic for stream in state.streams.values() for topic in stream.topics.values()]
    groups = [group for topic in topics for group in topic.groups.values()]
    return {
        "stream": max((stream.id for stream in state.streams.values()), default=0),
        "topic": max((topic.id for topic in topics), default=0),
        "group": max((group.id for group in groups), default=0),
        "user": max((user.id for user in state.users.values()), default=0),
    }


def _entities(expected: LoadState, found: LoadState) -> Iterator[Violation]:
    wanted, present = expected.flat(), found.flat()
    for what in sorted({*wanted, *present}):
        if wanted.get(what) != present.get(what):
            text = f"{what}: acknowledged {wanted.get(what, 'gone')}"
            yield Violation(Check.ENTITIES, f"{text}, reads find {present.get(what, 'nothing')}")


def _name(answer: LoadAnswer) -> str:
    return f"request {answer.number} of session {answer.session} (revision {answer.first_revision})"
