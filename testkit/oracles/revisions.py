"""Judges transactions by the revisions that the cluster tells: each must mean what it promises.

A revision is the place of a command in one order. So it must agree with real time, belong to one
command, and every read must show the state at its revision. `cycles` takes from here only the order
of versions of one key; these checks hold the cluster to all that it says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from testkit.oracles.transactions import (
    Transaction,
    TransactionOutcome,
    VersionOrders,
    Written,
    version_orders,
    versions_seen,
)


def contradictions(transactions: Iterable[Transaction]) -> list[str]:
    """Return a sentence for each contradiction between what the cluster told."""
    history = list(transactions)
    orders = version_orders(history)
    return [
        *_versions_from_nowhere(history),
        *_changed_revisions(history, orders),
        *_shared_revisions(history),
        *_against_time(history),
        *_wrong_states(history, orders),
        *_too_old(history),
    ]


class _Place(NamedTuple):
    """A place in the order of revisions: reads come after the command whose revision they show."""

    revision: int
    is_read: bool


def _place(transaction: Transaction) -> _Place | None:
    if transaction.revision is None or transaction.outcome is not TransactionOutcome.COMMITTED:
        return None
    return _Place(transaction.revision, not transaction.writes)


def _versions_from_nowhere(history: Sequence[Transaction]) -> Iterator[str]:
    """G1a of Adya, and worse: a version that an aborted transaction wrote, or nobody."""
    outcomes = {written: each.outcome for each in history for written in each.writes}
    for each in history:
        for written, _ in versions_seen([each]):
            if written not in outcomes:
                yield f"nobody wrote {written.key} = {written.version}: {each}"
            elif outcomes[written] is TransactionOutcome.ABORTED:
                yield f"{written.key} = {written.version} was read, its writer aborted: {each}"


def _changed_revisions(history: Sequence[Transaction], orders: VersionOrders) -> Iterator[str]:
    """A version that was made twice: a read tells another revision than the answer or a read."""
    for each in history:
        for written, revision in versions_seen([each]):
            made = orders.revisions.get(written, revision)
            if made != revision:
                text = f"{written.key} = {written.version} was made at revision {made}"
                yield f"{text}, and at {revision} by {each}"
        for key, versions in each.lists:
            names = [version for version, _ in versions]
            if len(set(names)) < len(names):
                yield f"a version stands twice in {key}: {each}"
            if names != list(orders.orders.get(key, ())[: len(names)]):
                yield f"{key} does not begin as a longer read of it does: {each}"
            if any(earlier >= later for (_, earlier), (_, later) in pairwise(versions)):
                yield f"the list {key} is not in the order of revisions: {each}"


def _shared_revisions(history: Sequence[Transaction]) -> Iterator[str]:
    owners: dict[int, Transaction] = {}
    for each in history:
        place = _place(each)
        if place is None or place.is_read:
            continue
        if place.revision in owners:
            other = owners[place.revision]
            yield f"revision {place.revision} was given to {other.name} and to {each.name}"
        owners[place.revision] = each


def _against_time(history: Sequence[Transaction]) -> Iterator[str]:
    """A transaction that had returned before another was called has the later place."""
    placed = [(each, place) for each in history if (place := _place(each)) is not None]
    by_return = sorted(
        (each.returned_at, place, number)
        for number, (each, place) in enumerate(placed)
        if each.returned_at is not None
    )
    position, latest = 0, None
    for each, place in sorted(placed, key=lambda one: one[0].called_at):
        while position < len(by_return) and by_return[position][0] < each.called_at:
            returned = by_return[position]
            if latest is None or returned[1] > latest[1]:
                latest = returned
            position += 1
        if each.is_current and latest is not None and place < latest[1]:
            returned_name = placed[latest[2]][0].name
            text = f"{returned_name} (revision {latest[1].revision}) had returned before"
            yield f"{text} {each.name} (revision {place.revision}) was called"


def _wrong_states(history: Sequence[Transaction], orders: VersionOrders) -> Iterator[str]:
    """A read at a revision sees the last version that was made up to there."""
    made = {
        key: [orders.revisions[Written(key, version)] for version in versions]
        for key, versions in orders.orders.items()
    }
    for each in history:
        place = _place(each)
        if place is None or not place.is_read:
            continue
        for key, version, _ in each.reads:
            count = bisect_right(made.get(key, ()), place.revision)
            expected = orders.orders[key][count - 1] if count else ""
            if version != expected:
                yield f"{key} was {expected} at revision {place.revision}: {each}"
        for key, versions in each.lists:
            count = bisect_right(made.get(key, ()), place.revision)
            missing = set(orders.orders.get(key, ())[:count]) ^ {name for name, _ in versions}
            if missing:
                yield f"{key} differs at revision {place.revision} by {sorted(missing)}: {each}"


def _too_old(history: Sequence[Transaction]) -> Iterator[str]:
    for each in history:
        if each.revision is not None and each.revision < each.at_least:
            yield f"revision {each.at_least} was asked for: {each}"
