"""What clients saw of transactions: the versions that each read and wrote, and when.

Every write makes a version of its key, and no two writes make the same one. A key is a register, of
which a read sees the last version, or a list, of which a read sees every version so far. The
cluster tells the revision that made a version, and so the order of a register's versions. A list
tells its order itself. Times are those of one clock, in any unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class TransactionOutcome(StrEnum):
    """What its client knows of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Written(NamedTuple):
    """A write: the version that it made of a key."""

    key: str
    version: str


class ReadVersion(NamedTuple):
    """A read of a register: the version that it saw, and the revision that made the version."""

    key: str
    version: str
    revision: int


class ReadList(NamedTuple):
    """A read of a list: all versions that it saw in order, each with the revision that made it."""

    key: str
    versions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """One transaction of one client; a single command, and reads at one revision, are some, too.

    `revision` is its own if it wrote; otherwise its reads show every command up to there. It must
    be `at_least` what the caller asked for. A read that is not `is_current` may show the past.
    """

    name: str
    called_at: int
    returned_at: int | None
    outcome: TransactionOutcome
    revision: int | None = None
    writes: tuple[Written, ...] = ()
    reads: tuple[ReadVersion, ...] = ()
    lists: tuple[ReadList, ...] = ()
    is_current: bool = True
    at_least: int = 0

    def precedes(self, other: Transaction) -> bool:
        """Whether this one had returned before the other was called."""
        return self.returned_at is not None and self.returned_at < other.called_at

    def __str__(self) -> str:
        at = "" if self.revision is None else f" at revision {self.revision}"
        until = "never answered" if self.returned_at is None else f"answered {self.returned_at}"
        done = [f"wrote {key} = {version}" for key, version in self.writes]
        done += [f"read {key} = {version} (revision {at})" for key, version, at in self.reads]
        done += [f"listed {key}, {len(versions)} versions" for key, versions in self.lists]
        return f"{self.name} ({self.outcome}{at}, called {self.called_at}, {until}): " + "; ".join(
            done
        )


@dataclass(frozen=True, slots=True)
class VersionOrders:
    """The versions of each key in order, who wrote each, and at which revision it was made."""

    orders: Mapping[str, Sequence[str]]
    writers: Mapping[Written, Transaction]
    revisions: Mapping[Written, int]


def version_orders(transactions: Iterable[Transaction]) -> VersionOrders:
    """Return the order of every key's versions.

    Versions of a register are in the order of the revisions that made them. For a list the longest
    read tells the order, and versions that no read saw come last. An unanswered write that nobody
    saw is left out: nobody can say whether it took place.
    """
    transactions = list(transactions)
    writers = {
        written: each
        for each in transactions
        if each.outcome is not TransactionOutcome.ABORTED
        for written in each.writes
    }
    seen = dict(versions_seen(transactions))
    revisions = dict(seen)
    for written, writer in writers.items():
        revision = _revision_of(writer, seen)
        if revision is not None:
            revisions[written] = revision
    orders: dict[str, list[str]] = _longest_lists(transactions)
    listed = {Written(key, version) for key, versions in orders.items() for version in versions}
    for written in sorted(revisions, key=lambda each: (revisions[each], each)):
        if written not in listed:
            orders.setdefault(written.key, []).append(written.version)
    return VersionOrders(orders, writers, revisions)


def versions_seen(transactions: Iterable[Transaction]) -> Iterator[tuple[Written, int]]:
    """Yield every version that a read saw, with the revision that the read tells."""
    for each in transactions:
        for key, version, revision in each.reads:
            yield Written(key, version), revision
        for key, versions in each.lists:
            for version, revision in versions:
                yield Written(key, version), revision


def _longest_lists(transactions: Iterable[Transaction]) -> dict[str, list[str]]:
    longest: dict[str, list[str]] = {}
    for each in transactions:
        for key, versions in each.lists:
            if len(versions) > len(longest.get(key, ())):
                longest[key] = [version for version, _ in versions]
    return longest


def _revision_of(writer: Transaction, seen: Mapping[Written, int]) -> int | None:
    """Return the revision of a writer: by its answer, or by what others saw of it."""
    if writer.outcome is TransactionOutcome.COMMITTED:
        return writer.revision
    found = [seen[written] for written in writer.writes if written in seen]
    return min(found, default=None)
