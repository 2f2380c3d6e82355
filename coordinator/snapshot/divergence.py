"""The reports when replicas' states differ, and the end of the replica that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coordinator.base.errors import HaltedError
from coordinator.mux.catalog_types import Snapshot, TaskSnapshot
from coordinator.snapshot.agreement import Disagreed, different_sections
from coordinator.snapshot.work import Durable


class DivergedError(HaltedError):
    """The replicas' states differ. The message says in what, and what to do."""


def check_root(durable: Durable, decided: Snapshot, tell_others: Callable[[Durable], None]) -> None:
    """Raise DivergedError if this replica has another root than was decided, after reporting that.

    The others can name the section in their alarms only if they know this replica's report, and
    decided generations are not reported otherwise.
    """
    if durable.root != decided.root:
        tell_others(durable)
        raise DivergedError(
            f"generation {decided.generation} was completed with the root {decided.root.hex()}, and"
            f" this replica has {durable.root.hex()}: {_words(durable.tasks, decided.tasks)}. It"
            " has diverged from the others and must not go on: keep its directory for whoever looks"
            " for the reason, and start it with an empty one"
        )


def nobody_is_right(generation: int, found: Disagreed) -> DivergedError:
    """Return the error that ends a primary with all reports and no majority among them."""
    roots = ", ".join(f"replica {replica}: {root.hex()}" for replica, root in found.roots)
    return DivergedError(
        f"generation {generation} has no root with a majority ({roots}): {_named(found.sections)}."
        " Nobody knows which replica is right: keep the directories of all for whoever looks for"
        " the reason, and restore a backup"
    )


def words_about(replica: int, tasks: Iterable[TaskSnapshot], decided: Snapshot) -> str:
    """Return the text of the alarm about another replica."""
    return (
        f"replica {replica} has diverged: its root of generation {decided.generation} is not that"
        f" of the majority; {_words(tasks, decided.tasks)}. It ends by itself; see its log"
    )


def contradicted_by_majority(
    replicas: Sequence[int], digest: bytes, own: bytes, op: int
) -> DivergedError:
    """Return the error that ends a replica which applied the log to another end than a majority."""
    names = " and ".join(map(str, replicas))
    return DivergedError(
        f"applying the log up to op {op} had the digest {digest.hex()} on replicas {names}, and"
        f" {own.hex()} on this one. It has diverged from the majority and must not go on: keep its"
        " directory for whoever looks for the reason, and start it with an empty one"
    )


def words_about_digests(one: tuple[int, bytes], other: tuple[int, bytes], op: int) -> str:
    """Return the text of the alarm about two replicas, each with its digest."""
    (replica, digest), (other_replica, other_digest) = one, other
    return (
        f"replicas {replica} and {other_replica} differ: applying the log up to op {op} had the"
        f" digest {digest.hex()} on replica {replica}, and {other_digest.hex()} on replica"
        f" {other_replica}. One of them has diverged. It ends by itself if a majority of replicas"
        " contradicts it; otherwise take a snapshot, which compares the states"
    )


def _words(ours: Iterable[TaskSnapshot], theirs: Iterable[TaskSnapshot]) -> str:
    return _named(different_sections(ours, theirs))


def _named(sections: tuple[str, ...]) -> str:
    if not sections:
        return "the cut itself or a section's version differs"
    return f"the state of {' and '.join(sections)} differs"
