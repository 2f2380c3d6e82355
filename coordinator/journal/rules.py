"""The rules of what may be appended. Recovery relies on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from viewstamp.format.prepare import NO_PARENT, SealedHeader, SealedPrepare


@dataclass(frozen=True, slots=True)
class LogBase:
    """The entry before the first one of the log: a snapshot's cut, or none.

    `checksum` is None if it is unknown; then the parent of the first entry is not checked.
    """

    op: int = 0
    checksum: bytes | None = NO_PARENT


@dataclass(frozen=True, slots=True)
class Log:
    """The part of the log's state that the rules use."""

    cluster_id: bytes
    single: bool
    base: LogBase
    head_op: int
    header: Callable[[int], SealedHeader | None]


def check_group(log: Log, group: Sequence[SealedPrepare]) -> None:
    """Raise ValueError for a group that must not be appended.

    A single replica's log only grows. A member may write an op again to repair it. It never writes
    another entry in an op's place before `discard_after` removed that, and never leaves out an op:
    a restart must find one chain.
    """
    appended: dict[int, SealedHeader] = {}

    def held(op: int) -> SealedHeader | None:
        return appended.get(op) or log.header(op)

    head_op = log.head_op
    for prepare in group:
        if prepare.header.cluster_id != log.cluster_id:
            raise ValueError(f"op {prepare.op} is of another cluster")
        end_op = max(head_op, log.base.op)
        if prepare.op > end_op + 1 or (log.single and prepare.op != end_op + 1):
            raise ValueError(
                f"op {prepare.op} does not continue the log, which ends with op {end_op}"
            )
        if prepare.op == log.base.op and log.base.checksum not in (None, prepare.checksum):
            raise ValueError(
                f"op {prepare.op} is {prepare.checksum.hex()}, but the snapshot was cut at another"
            )
        _check_chain(
            prepare, _parent(log, held, prepare.op), held(prepare.op), held(prepare.op + 1)
        )
        appended[prepare.op] = prepare.header
        head_op = max(head_op, prepare.op)


def _parent(log: Log, held: Callable[[int], SealedHeader | None], op: int) -> bytes | None:
    """Return the checksum of the preceding entry, or None where it is unknown."""
    before = held(op - 1)
    if before is not None:
        return before.checksum
    return log.base.checksum if op == log.base.op + 1 else None


def _check_chain(
    prepare: SealedPrepare,
    parent: bytes | None,
    replaced: SealedHeader | None,
    following: SealedHeader | None,
) -> None:
    if parent not in (None, prepare.parent):
        assert parent is not None
        raise ValueError(
            f"op {prepare.op} with parent {prepare.parent.hex()} does not continue the log, in "
            f"which op {prepare.op - 1} is {parent.hex()}"
        )
    differs = replaced is not None and replaced.checksum != prepare.checksum
    if differs or (following is not None and following.parent != prepare.checksum):
        raise ValueError(
            f"op {prepare.op} {prepare.checksum.hex()} would replace another entry of the log: "
            f"discard that one and all after it first"
        )
