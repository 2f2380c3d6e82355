"""One bug for each known pitfall of the protocol: its guard, taken out.

The numbers P1 to P21 are those of the list of pitfalls that `docs/simulation.md` repeats. A bug is
put in place of a function or a rule of the core, while a seed runs. Where the core's own invariants
would see it at once, they look away (`unseen`), so that it is left to what clients and disks show.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from coordinator import vsr
from testkit.plants.core_guards import (
    act_before_log_view_is_durable,
    ask_once,
    cut_at_the_chosen_head,
    deny_what_is_damaged,
    exchange_by_op,
    go_on_counting,
    ignore_later_views,
    leave_alone,
    never_abdicate,
    never_forfeit,
    pre_vote_once,
    question_the_commit_point,
    register_twice,
    take_any_log,
    take_hearsay_for_held,
    take_holed_logs,
    truncate_when_behind,
    vote_before_durable,
    vote_once,
    vote_with_hearsay,
    vote_without_memory,
    vouch_after_voting,
    vouch_before_durable,
    wait_for_a_primary,
)
from testkit.simulation.disk import SimulatedDisk
from testkit.simulation.figures import WHOLE_SEEDS
from testkit.simulation.machine import JOURNAL, SUPERBLOCK
from testkit.simulation.options import OF_STORED_DATA, FaultKind, Leaning, Options
from testkit.simulation.plant import Plant
from testkit.simulation.process import HANDLERS, Process
from testkit.simulation.simulation import PART_ALONE_SHARE, REST_SHAPES

Patch = pytest.MonkeyPatch


def keep_numbers_in_hand(patch: Patch) -> None:
    """A request counts as under way although the view that took it ended without it."""
    real = Process.status_changed

    def changed(self: Process, effect: Any) -> None:
        before = set(self._in_hand)
        real(self, effect)
        self._in_hand |= before

    patch.setitem(HANDLERS, vsr.StatusChanged, changed)


def fetch_by_op(patch: Patch) -> None:
    """Replicas exchange entries of a chosen log by op alone, whatever their checksum."""
    exchange_by_op(patch)

    def send_held(self: Process, effect: vsr.SendHeld) -> None:
        self.peer_reads.send_entry(effect, lambda _: True)

    patch.setitem(HANDLERS, vsr.SendHeld, send_held)


def count_snapshots_early(patch: Patch) -> None:
    """A replica restarts from a snapshot before the files of the snapshot are durable."""
    real = SimulatedDisk.sync_inode

    def sync(self: SimulatedDisk, path: str, inode: Any) -> None:
        if path.startswith((JOURNAL, SUPERBLOCK)):
            real(self, path, inode)

    patch.setattr(SimulatedDisk, "sync_inode", sync)


def cornered(fault: FaultKind) -> Callable[[Options], bool]:
    """The seeds that do this damage at the worst moment; see `Nemesis._corner`."""
    return lambda options: options.faults >= {fault, FaultKind.CRASH, FaultKind.PARTITION}


def leans(leaning: Leaning, *faults: FaultKind) -> Callable[[Options], bool]:
    """The seeds that lean on a rare moment, and have what makes it; see `moments.py`."""
    return lambda options: (
        leaning in options.leanings
        and options.faults.issuperset(faults)
        and options.replica_count > 1
    )


def is_of_many_with_returns(options: Options) -> bool:
    """The seeds in which an old primary returns to more than one who has the newer log."""
    returns = leans(Leaning.RETURN, FaultKind.PARTITION, FaultKind.CRASH)
    return returns(options) and options.replica_count > 3


def has_real_stages(options: Options) -> bool:
    """The seeds with sessions."""
    return options.application == "domains"


def has_snapshots_and_power_cuts(options: Options) -> bool:
    """The seeds that cut some, and lose what was not synced."""
    return options.snapshot_ops > 0 and FaultKind.POWER in options.faults


def has_holed_logs(options: Options) -> bool:
    """The seeds in which logs lose entries on their way."""
    return FaultKind.HOLED_LOG in options.faults


def has_part_alone(options: Options) -> bool:
    """The seeds that may cut a part of the cluster off for good."""
    is_sound = not (options.faults & OF_STORED_DATA or options.is_bootstrap_struck)
    return is_sound and options.replica_count > 2


def has_deaf_part(options: Options) -> bool:
    """The seeds that let a part of the cluster hear nothing any more; drawn as `_heal` does."""
    random = Random(f"{options.seed} heal")
    is_drawn = has_part_alone(options) and random.random() < PART_ALONE_SHARE
    random.sample(range(options.replica_count), options.replica_count)
    random.random()
    return is_drawn and random.choice(REST_SHAPES) == "deaf"


GUARDS: Final = (
    Plant("P1", truncate_when_behind, seed=1),
    Plant("P2", ignore_later_views),
    Plant("P3", pre_vote_once),
    Plant(
        "P3", vote_once, seeds_max=WHOLE_SEEDS, where=leans(Leaning.FORGOTTEN_VIEW, FaultKind.CRASH)
    ),
    Plant("P4", ask_once),
    Plant("P4", take_any_log, where=leans(Leaning.ECHOES, FaultKind.DUPLICATION)),
    Plant("P5", wait_for_a_primary, seed=1),
    Plant("P6", vouch_before_durable, seed=1),
    Plant("P7", go_on_counting, seed=1, where=has_real_stages),
    Plant("P8", keep_numbers_in_hand, where=leans(Leaning.PENDULUM)),
    Plant("P9", vote_before_durable),
    Plant("P10", act_before_log_view_is_durable),
    Plant("P11", vouch_after_voting, where=leans(Leaning.DOZING, FaultKind.PAUSE)),
    Plant("P12", take_hearsay_for_held, seed=1),
    Plant("P12", vote_with_hearsay, seed=4),
    Plant("P13", deny_what_is_damaged, seed=44, where=cornered(FaultKind.ROT)),
    Plant("P14", cut_at_the_chosen_head),
    Plant("P14", question_the_commit_point),
    Plant(
        "P15",
        never_forfeit,
        seeds_max=40,
        redundant="it only saves time; a story shows that it does",
        story="p15_far_behind_is_no_primary",
    ),
    Plant("P16", never_abdicate, where=has_deaf_part),
    Plant(
        "P16",
        leave_alone,
        seeds_max=WHOLE_SEEDS,
        where=has_part_alone,
        redundant=(
            "a replica that hears nobody disturbs the others, which continue in between; a story"
            " shows it"
        ),
        story="p16_isolated_backup_disturbs_nobody",
    ),
    Plant("P17", register_twice, seed=1, where=has_real_stages),
    Plant("P18", fetch_by_op, where=is_of_many_with_returns),
    Plant("P19", vote_without_memory, seeds_max=WHOLE_SEEDS, where=cornered(FaultKind.LOST_DISK)),
    Plant("P20", count_snapshots_early, where=has_snapshots_and_power_cuts),
    Plant("P21", take_holed_logs, seed=1, where=has_holed_logs),
)
