"""One bug for each checker, which it alone finds: every checker can fail.

A bug is put in place of a function of the core, the journal or the stages, while a seed runs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Final

import pytest

from coordinator import vsr
from testkit.plants.core_bugs import (
    commit_without_quorum,
    discard_too_much,
    forget_the_head,
    keep_the_first_superblock,
    let_standbys_vouch,
    never_repeat,
    read_behind_the_primary,
    read_without_asking,
    sequence_anew,
    stamp_before_others_are_heard,
    stamp_with_the_own_clock,
    start_with_any_superblock,
    vote_with_a_hole,
    write_without_sync,
)
from testkit.simulation.chain import ChainApplication
from testkit.simulation.clients import Answer
from testkit.simulation.options import FaultKind, Options
from testkit.simulation.plant import Plant
from testkit.simulation.process import HANDLERS, Process
from viewstamp.limits import FEATURE_LEVEL_MAX


def hand_over_twice(patch: pytest.MonkeyPatch) -> None:
    """The stages get every tenth entry twice."""

    def committed(self: Process, effect: vsr.Commit) -> None:
        times = 2 if effect.op % 10 == 0 else 1
        self._commits.extend([effect] * times)
        self._hand_over()

    patch.setitem(HANDLERS, vsr.Commit, committed)


def differ_between_processes(patch: pytest.MonkeyPatch) -> None:
    """The effect of an entry depends on the process that executes it."""
    real, serials = ChainApplication.__init__, count()

    def begin(self: ChainApplication, random: Any, state: bytes | None = None) -> None:
        real(self, random, state)
        self.state.digest = bytes([next(serials) % 251]) + self.state.digest[1:]

    patch.setattr(ChainApplication, "__init__", begin)


def forget_numbers(patch: pytest.MonkeyPatch) -> None:
    """A request that arrives twice takes effect twice."""
    real = ChainApplication.execute

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        self.state.replies.pop(request.client, None)
        done: list[Any] = []
        reply = real(self, replace(request, number=1), done)
        effective.append(request.id)
        return reply

    patch.setattr(ChainApplication, "execute", execute)


def add_wrongly(patch: pytest.MonkeyPatch) -> None:
    """One counter counts one too many, on every replica alike."""
    real = ChainApplication.execute

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        self.state.counters[3] = self.state.counters.get(3, 0) + 1
        return real(self, request, effective)

    patch.setattr(ChainApplication, "execute", execute)


def answer_early(patch: pytest.MonkeyPatch) -> None:
    """A reply leaves as soon as the entry is admitted."""
    real = Process.admitted

    def admitted(self: Process, effect: vsr.Admitted) -> None:
        batch = list(self._batch)
        real(self, effect)
        for request in batch:
            self._reply(request.client, Answer(request.number, None, effect.op))

    patch.setitem(HANDLERS, vsr.Admitted, admitted)
    patch.setattr("testkit.simulation.chain.ChainModel.wrong_reply", lambda *_: None)


def differ_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """The content of a snapshot depends on the process that makes it."""
    real, serials = ChainApplication.save, count()
    patch.setattr(ChainApplication, "save", lambda self: real(self) + b" " * (next(serials) % 97))


def answer_by_process(patch: pytest.MonkeyPatch) -> None:
    """The answers to an entry depend on the process that executes it."""
    real, serials = ChainApplication.execute, count()

    def execute(self: ChainApplication, request: Any, effective: Any) -> Any:
        serial = self.__dict__.setdefault("serial", next(serials))
        return replace(real(self, request, effective), refusal=f"process {serial}")

    patch.setattr(ChainApplication, "execute", execute)


def lead_at_the_level_of_the_build(patch: pytest.MonkeyPatch) -> None:
    """A primary gives entries the highest level that its build knows, decided or not."""
    patch.setattr(Process, "feature_level", FEATURE_LEVEL_MAX)


def has_chain(options: Options) -> bool:
    """The seeds with the compact application, which some bugs are planted in."""
    return options.application == "chain"


def has_snapshots(options: Options) -> bool:
    """The seeds that cut any."""
    return options.snapshot_ops > 0


def has_standbys(options: Options) -> bool:
    """The seeds with replicas that only follow."""
    return options.standby_count > 0


def has_older_superblocks(options: Options) -> bool:
    """The seeds in which somebody puts an older superblock back."""
    return FaultKind.OLDER_SUPERBLOCK in options.faults


def has_wrong_clocks(options: Options) -> bool:
    """The seeds in which clocks jump."""
    return FaultKind.CLOCK_JUMP in options.faults


PLANTS: Final = (
    Plant("OneHistory", commit_without_quorum, seed=1),
    Plant("ExecutedInOrder", hand_over_twice, seed=1),
    Plant("CommittedOnQuorum", commit_without_quorum, seed=1),
    Plant("CommittedOnQuorum", let_standbys_vouch, seed=4, where=has_standbys),
    Plant("StandbysOnlyFollow", let_standbys_vouch, seed=4, where=has_standbys),
    Plant("DurableIsDurable", write_without_sync, seed=1),
    Plant("RestartKeeps", forget_the_head, seed=1),
    Plant(
        "OlderSuperblocksAreRefused",
        start_with_any_superblock,
        seed=7,
        where=has_older_superblocks,
    ),
    Plant("ViewsMonotonic", keep_the_first_superblock, seed=1),
    Plant("OneLogPerView", sequence_anew, seed=1),
    Plant("LogsAreWhole", vote_with_a_hole, seed=1),
    Plant("NothingCommittedDiscarded", discard_too_much, seed=1),
    Plant("LevelsAscend", lead_at_the_level_of_the_build, seed=1),
    Plant("DigestsEqual", differ_between_processes, where=has_chain),
    Plant("ExactlyOnce", forget_numbers, where=has_chain),
    Plant("RepliesAreTheModels", add_wrongly, where=has_chain),
    Plant("AcknowledgedIsKept", answer_early, seed=1),
    Plant("ReadsAreLinearizable", read_without_asking, seed=137, where=has_chain),
    Plant("ReadsAreLinearizable", read_behind_the_primary, where=has_chain),
    Plant("LogTimeIsNotAhead", stamp_with_the_own_clock, seed=23, where=has_wrong_clocks),
    Plant("LogTimeIsNotAhead", stamp_before_others_are_heard, seed=35, where=has_wrong_clocks),
    Plant("Liveness", never_repeat, seed=1),
    Plant("AnswersAgree", answer_by_process, seed=2, where=has_chain),
    Plant("SnapshotsAgree", differ_in_snapshots, seed=4, where=has_snapshots),
)
