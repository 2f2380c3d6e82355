"""One bug for each known pitfall of the protocol, planted in the shipped programs.

Most bugs are those of `testkit.plants.core_guards`. Where a pitfall lies in the shell, the bug
takes the place of a function of the coordinator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from coordinator.mux.deduplication import Admission
from coordinator.replica import intake
from coordinator.replica.data_directory import SUPERBLOCK_FILE
from coordinator.replica.journal_opening import JOURNAL_DIRECTORY
from coordinator.replica.writer import JournalWriter
from testkit.memory_storage import Inode, MemoryStorage
from testkit.plants.core_guards import (
    Patch,
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
from testkit.world.options import WorldOptions
from testkit.world.plant import WorldPlant
from testkit.world.replica import DIRECTORY

# Faults that come often and end soon, so that the cluster is at work when the next one strikes.
OFTEN_MS: Final = (100, 600)
SHORT_MS: Final = 1_200
# Faults that outlive every connection, and meet others: what is sent meanwhile is lost.
LONG: Final = {"lasts_ms_max": 8_000}
# A moment is over before the next one begins.
SELDOM_MS: Final = (1_500, 3_000)
QUIET: Final = WorldOptions(seconds=2, faults=())


def under(*faults: str, **sizes: Any) -> WorldOptions:
    """Return options of a run that has these faults often, and, unless `sizes` say more, not for
    long."""
    options = WorldOptions(
        seconds=8, clients=2, callers=8, faults=faults, every_ms=OFTEN_MS, lasts_ms_max=SHORT_MS
    )
    return replace(options, **sizes)


def keep_callers_waiting(patch: Patch) -> None:
    """A request counts as under way although the view that took it ended without it."""
    patch.setattr(intake, "fail", lambda batch, refusal: None)
    patch.setattr(Admission, "reset", lambda self: None)


def fetch_by_op(patch: Patch) -> None:
    """Replicas exchange entries of a chosen log by op alone, whatever their checksum."""
    exchange_by_op(patch)

    async def read_held(self: JournalWriter[Any], op: int, checksum: bytes) -> Any:
        return await self.read(op)

    patch.setattr(JournalWriter, "read_held", read_held)


def count_snapshots_early(patch: Patch) -> None:
    """A replica restarts from a snapshot before the files of the snapshot are durable."""
    real = MemoryStorage.sync_inode
    synced = (f"{DIRECTORY}/{JOURNAL_DIRECTORY}", f"{DIRECTORY}/{SUPERBLOCK_FILE}")

    def sync(self: MemoryStorage, path: str, inode: Inode) -> None:
        if path.startswith(synced):
            real(self, path, inode)

    patch.setattr(MemoryStorage, "sync_inode", sync)


MOVES: Final = ("isolate", "step_down", "kill")
LOSSES: Final = ("lost_messages", "poorly_carried", "lose")
STRUCK: Final = ("forgotten_view", "ambush", "kill_in_step", "slow", "step_down")

# Clients come anew all the time, while what they ask for is lost or the primary hands over.
REGISTERING: Final = under(
    *("kill_client", "kill_client", "kill_client", "step_down", "lost_messages"),
    clients=8, callers=1, seconds=6, every_ms=(50, 300),
)  # fmt: skip

GUARDS: Final = (
    WorldPlant("P1", truncate_when_behind, under(*MOVES, **LONG)),
    WorldPlant("P2", ignore_later_views, under(*MOVES)),
    WorldPlant(
        "P3",
        pre_vote_once,
        under("poorly_carried", "kill", replicas=2, seconds=6, every_ms=(50, 300), **LONG),
    ),
    WorldPlant(
        "P3",
        vote_once,
        under("forgotten_view", "step_down", "isolate", *LOSSES),
        seeds_max=3,
        redundant=(
            "it only saves time: who was not heard votes again in the next view (not in 120"
            " seeds); a story shows it"
        ),
        story="p3_first_votes_are_lost",
    ),
    WorldPlant("P4", ask_once, under("kill", "poorly_carried", "partition", **LONG)),
    WorldPlant("P4", take_any_log, under("kill", "echoes", "late_messages", "repeated_messages")),
    WorldPlant("P5", wait_for_a_primary, under("blackout", seconds=3)),
    WorldPlant("P6", vouch_before_durable, QUIET, seed=1),
    WorldPlant("P7", go_on_counting, under("kill_client", seconds=3)),
    WorldPlant("P8", keep_callers_waiting, under("pendulum", "isolate")),
    WorldPlant("P9", vote_before_durable, under(*STRUCK)),
    WorldPlant(
        "P10",
        act_before_log_view_is_durable,
        under("kill_in_io", "kill_in_step", "step_down", "slow"),
    ),
    WorldPlant("P11", vouch_after_voting, under("dozing", "dozing", "ambush")),
    WorldPlant("P12", take_hearsay_for_held, under(*MOVES, "pause")),
    WorldPlant("P12", vote_with_hearsay, under(*MOVES, "pause")),
    WorldPlant("P13", deny_what_is_damaged, under("cornered", "cornered", "rot")),
    WorldPlant("P14", cut_at_the_chosen_head, under(*MOVES, "pause")),
    WorldPlant(
        "P14",
        question_the_commit_point,
        under("kill", "slow", "late_messages", callers=12, keys=24, seconds=4),
        seeds_max=3,
        redundant=(
            "the old primary's pipeline has to be full when it dies, and the next one must have"
            " heard of none of it (not in 270 seeds); a story brings both"
        ),
        story="p14_last_commit_of_a_vote_counts",
    ),
    WorldPlant(
        "P15",
        never_forfeit,
        under("away", "isolate"),
        seeds_max=3,
        redundant="it only saves time; a story shows that it does",
        story="p15_far_behind_is_no_primary",
    ),
    WorldPlant(
        "P16",
        never_abdicate,
        under("isolate"),
        seeds_max=3,
        redundant="the world heals every link in the end; a story shows the use of it",
        story="p16_deaf_primary_gives_up",
    ),
    WorldPlant(
        "P16",
        leave_alone,
        under("isolate"),
        seeds_max=3,
        redundant=(
            "a replica that hears nobody disturbs the others, which continue in between; a story"
            " shows it"
        ),
        story="p16_isolated_backup_disturbs_nobody",
    ),
    WorldPlant("P17", register_twice, REGISTERING),
    WorldPlant("P18", fetch_by_op, under("return", "return", "rot", replicas=5)),
    WorldPlant("P19", vote_without_memory, under("cornered", seconds=12, every_ms=SELDOM_MS)),
    WorldPlant("P20", count_snapshots_early, under("blackout", "power")),
    WorldPlant("P21", take_holed_logs, under("holed_log", "step_down", "isolate")),
)
