"""A database that takes one transaction at a time, with a defect where one is planted."""

from __future__ import annotations

import copy
from random import Random
from typing import Final

from testkit.oracles.transactions import (
    ReadList,
    ReadVersion,
    Transaction,
    TransactionOutcome,
    Written,
)

REGISTERS: Final = ("r0", "r1", "r2", "r3")
LISTS: Final = ("l0", "l1")
COUNT: Final = 450
CLIENTS: Final = 5
# The defect is made at the first transaction after this one that gives it the chance.
DEFECT_FROM: Final = 200
# So many transactions are lost, or come between a request and its second application.
DEFECT_SPAN: Final = 40
# Each defect, and whether cycles alone show it; revisions show all.
DEFECTS: Final = {
    "loses what it acknowledged": True,
    "applies a request twice": True,
    "applies half a transaction": True,
    "reads from a copy that lags": True,
    "keeps what it refused": False,
}


class SerialDatabase:
    """Registers and lists; each version has the revision that made it."""

    def __init__(self, seed: int, defect: str = "") -> None:
        self.revision = 0
        self._state: dict[str, list[tuple[str, int]]] = {}
        self._random = Random(seed)
        self._defect = defect
        self._past: list[dict[str, list[tuple[str, int]]]] = []
        self._written: list[tuple[Written, ...]] = []

    def write(self, writes: tuple[Written, ...], *, refused: bool) -> TransactionOutcome:
        """Take in a transaction that writes; return what becomes of it."""
        self._remember()
        self.revision += 1
        if self._is_due("loses what it acknowledged"):
            self._state = copy.deepcopy(self._past[-DEFECT_SPAN])
        if self._is_due("applies a request twice"):
            self._apply(self._written[-DEFECT_SPAN])
            self.revision += 1
        if refused:
            if self._is_due("keeps what it refused"):
                self._apply(writes)
            return TransactionOutcome.ABORTED
        is_torn = len(writes) > 1 and self._is_due("applies half a transaction")
        self._apply(writes[:1] if is_torn else writes)
        self._written.append(writes)
        return TransactionOutcome.COMMITTED

    def read(self, keys: list[str]) -> tuple[int, tuple[ReadVersion, ...], tuple[ReadList, ...]]:
        """Return the revision that the read shows, and what it saw."""
        self._remember()
        state = self._state
        if self._is_due("reads from a copy that lags"):
            state = self._past[-DEFECT_SPAN]
        registers = tuple(ReadVersion(key, *state[key][-1]) for key in keys if key in REGISTERS)
        lists = tuple(ReadList(key, tuple(state.get(key, ()))) for key in keys if key in LISTS)
        return self.revision, registers, lists

    def _apply(self, writes: tuple[Written, ...]) -> None:
        for key, version in writes:
            self._state.setdefault(key, []).append((version, self.revision))

    def _remember(self) -> None:
        self._past.append(copy.deepcopy(self._state))

    def _is_due(self, defect: str) -> bool:
        """Whether the planted defect is to be made now, which is once."""
        if self._defect != defect or len(self._past) < DEFECT_FROM:
            return False
        self._defect = ""
        return True


def recorded(database: SerialDatabase, seed: int) -> list[Transaction]:
    """Let clients write and read; each transaction takes place while its client waits for it."""
    random = Random(seed)
    every = [Written(key, f"{key}-first") for key in REGISTERS]
    database.write(tuple(every), refused=False)
    history = [Transaction("first", -2, -1, TransactionOutcome.COMMITTED, 1, tuple(every))]
    for number, (called, returned) in enumerate(_times(random)):
        keys = random.sample((*REGISTERS, *LISTS), random.randint(1, 4))
        history.append(_one(database, random, f"T{number}", (called, returned), keys))
    end = max(each.returned_at or 0 for each in history) + 1
    history.append(_read(database, "last", (end, end + 1), [*REGISTERS, *LISTS]))
    return history


def _times(random: Random) -> list[tuple[int, int]]:
    """Return when each transaction was called and answered, in the order in which they happen."""
    free_at = [0] * CLIENTS
    plans = []
    for _ in range(COUNT):
        client = random.randrange(CLIENTS)
        called = free_at[client] + random.randrange(1, 5)
        happens = called + random.randrange(1, 10)
        free_at[client] = happens + random.randrange(1, 10)
        plans.append((happens, random.random(), called, free_at[client]))
    return [(called, returned) for _, _, called, returned in sorted(plans)]


def _one(
    database: SerialDatabase, random: Random, name: str, times: tuple[int, int], keys: list[str]
) -> Transaction:
    if random.random() < 0.5:
        return _read(database, name, times, keys)
    writes = tuple(Written(key, f"{key}-{name}") for key in keys)
    outcome = database.write(writes, refused=random.random() < 0.1)
    is_committed = outcome is TransactionOutcome.COMMITTED
    revision = database.revision if is_committed else None
    if is_committed and random.random() < 0.05:
        return Transaction(name, times[0], None, TransactionOutcome.UNKNOWN, None, writes)
    return Transaction(name, *times, outcome, revision, writes)


def _read(
    database: SerialDatabase, name: str, times: tuple[int, int], keys: list[str]
) -> Transaction:
    revision, registers, lists = database.read(keys)
    return Transaction(name, *times, TransactionOutcome.COMMITTED, revision, (), registers, lists)
