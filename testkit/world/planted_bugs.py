"""One bug for each checker and judge, planted in the shipped programs, which it alone finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any, Final

from coordinator.app import core
from coordinator.gateway.change_feed import FeedFollower
from coordinator.gateway.kept_changes import FeedChange
from coordinator.gateway.watch_filters import WatchFilter
from coordinator.mux.applied_digests import AppliedDigests
from coordinator.mux.deduplication import Admission, New
from coordinator.mux.mux import Mux
from coordinator.mux.replies import ReplyTable
from coordinator.mux.sessions import HeaderVerdict, SessionsMachine
from coordinator.mux.types import LoggedRequest, RequestReply
from coordinator.replica import cluster_clock
from coordinator.replica.apply_queue import ApplyQueue, ApplyQueuePorts
from coordinator.replica.ports import Progress
from coordinator.snapshot.generation_writer import GenerationWriter, StoredGenerations
from coordinator.snapshot.work import LocalCut
from coordinator.vsr import Prepare
from services.consumer_groups import offsets
from services.consumer_groups.model import GroupsState, Member
from services.runtime.changes import RecentChanges, Touched
from services.runtime.liveness import Liveness
from services.streams.model import Topic, TopicKey, TopicTable
from testkit.plants.core_bugs import (
    Patch,
    commit_without_quorum,
    discard_too_much,
    forget_the_head,
    keep_the_first_superblock,
    let_standbys_vouch,
    never_repeat,
    read_behind_the_primary,
    read_without_asking,
    sequence_anew,
    stamp_with_the_own_clock,
    start_with_any_superblock,
    vote_with_a_hole,
    write_without_sync,
)
from testkit.world.plant import ANSWERS, JUDGES, LIVENESS, MEMBERS, OFFSETS, WATCHES, WorldPlant
from testkit.world.planted_broker_bugs import BROKER_PLANTS, read_unheard
from testkit.world.planted_epoch_bugs import EPOCH_CHECKER_PLANTS
from testkit.world.planted_guards import MOVES, QUIET, under
from testkit.world.planted_scrub_bugs import SCRUB_PLANTS
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.limits import FEATURE_LEVEL_MAX


def hand_over_twice(patch: Patch) -> None:
    """The stages get every tenth entry twice."""
    real = ApplyQueue.__init__

    def begin(self: ApplyQueue, ports: ApplyQueuePorts, progress: Progress) -> None:
        def twice(prepare: Prepare, taken_apart: Any) -> None:
            for _ in range(2 if prepare.op % 10 == 0 else 1):
                ports.hand_over(prepare, taken_apart)

        real(self, replace(ports, hand_over=twice), progress)

    patch.setattr(ApplyQueue, "__init__", begin)


def answer_by_process(patch: Patch) -> None:
    """The answers to an entry depend on the process that applies it."""
    begin, add, serials = AppliedDigests.__init__, AppliedDigests.add, count()
    known: dict[int, bytes] = {}

    def begun(self: AppliedDigests, *arguments: Any) -> None:
        begin(self, *arguments)
        known[id(self)] = bytes([next(serials) % 251])

    def added(self: AppliedDigests, op: int, answer: bytes | bytearray) -> None:
        add(self, op, bytes(answer) + known[id(self)])

    patch.setattr(AppliedDigests, "__init__", begun)
    patch.setattr(AppliedDigests, "add", added)


def forget_numbers(patch: Patch) -> None:
    """A request that arrives twice takes effect twice."""
    real, store = SessionsMachine.check_header, ReplyTable.store

    def check(self: SessionsMachine, request: LoggedRequest) -> Any:
        verdict = real(self, request)
        return HeaderVerdict.APPLY if verdict is HeaderVerdict.DUPLICATE else verdict

    def stored(self: ReplyTable, reply: RequestReply) -> None:
        window = self.window(reply.session_id)
        if window is None or reply.number > window.last_applied:
            store(self, reply)

    patch.setattr(SessionsMachine, "check_header", check)
    patch.setattr(ReplyTable, "store", stored)
    patch.setattr(Admission, "lookup", lambda *_: New())


def keep_some_topics(patch: Patch) -> None:
    """A deleted topic stays where its id is a multiple of three, on every replica alike."""
    real = TopicTable.delete

    def delete(self: TopicTable, key: TopicKey) -> Topic:
        return self.rows[key] if key[1] % 3 == 0 else real(self, key)

    patch.setattr(TopicTable, "delete", delete)


def lead_at_the_level_of_the_build(patch: Patch) -> None:
    """A primary gives entries the highest level that its build knows, decided or not."""
    patch.setattr(core, "FEATURE_LEVEL_MAX", FEATURE_LEVEL_MAX - 1)
    patch.setattr(Mux, "feature_level", FEATURE_LEVEL_MAX)


def follow_the_own_clock(patch: Patch) -> None:
    """A primary gives entries the time of its own clock, and believes its jumps at once."""
    patch.setattr(cluster_clock, "CLOCK_STEP_MS", 0)
    stamp_with_the_own_clock(patch)


def differ_in_snapshots(patch: Patch) -> None:
    """The time in a snapshot depends on the process that makes it."""
    real, serials = StoredGenerations.begin, count()

    def begin(self: StoredGenerations, cut: LocalCut) -> GenerationWriter:
        taken = replace(cut.taken, timestamp=cut.taken.timestamp + next(serials))
        return real(self, replace(cut, taken=taken))

    patch.setattr(StoredGenerations, "begin", begin)


def note_every_fourth_change_late(patch: Patch) -> None:
    """A service tells watchers some changes one revision later than they were."""
    real = RecentChanges.note

    def note(self: RecentChanges[Any], revision: int, entries: Iterable[Touched]) -> None:
        real(self, revision + (revision % 4 == 0), entries)

    patch.setattr(RecentChanges, "note", note)


def follow_without_catching_up(patch: Patch) -> None:
    """A watch that begins in the past follows the feed at once."""

    def follow_from(self: FeedFollower, revision: int) -> bool:
        self.wake(0, revision - 1)
        self.start = None
        return True

    patch.setattr(FeedFollower, "follow_from", follow_from)


def leave_out_of_parts(patch: Patch) -> None:
    """A watch of a part leaves out every fourth revision."""
    real = WatchFilter.matches

    def matches(self: WatchFilter, change: Change) -> bool:
        return real(self, change) and not (self.stream_id and change.revision % 4 == 0)

    patch.setattr(WatchFilter, "matches", matches)


def watch_without_grants(patch: Patch) -> None:
    """A watch goes on when what its user may do has changed."""
    patch.setattr(FeedChange, "is_access", False)


def remove_the_living(patch: Patch) -> None:
    """A service takes members for silent after a quarter of their timeout."""
    real = Liveness.is_silent

    def is_silent(self: Liveness[Any, Any], row: Any) -> bool:
        is_member = isinstance(row, Member)
        return real(self, row._replace(member_timeout_ms=row.timeout_ms // 4) if is_member else row)

    patch.setattr(Liveness, "is_silent", is_silent)


def forget_with_members(patch: Patch) -> None:
    """A group forgets its offsets when a member ends."""
    remove = GroupsState.remove_member

    def forget(self: GroupsState, member: Member) -> None:
        remove(self, member)
        self.drop_offsets(self.groups.rows[member.group_id])

    patch.setattr(GroupsState, "remove_member", forget)


def take_from_everybody(patch: Patch) -> None:
    """Whoever is a member may commit every partition, at any epoch."""
    patch.setattr(offsets, "contains", lambda *_: True)
    patch.setattr(offsets, "check_present_epoch", lambda *_: None)


# Members hear nobody for longer than their timeout, or stand still.
APART: Final = under("pause_client", "cut_client", members=3, seconds=6, lasts_ms_max=3_000)
# Watchers of parts, of which one may see a single stream.
PARTS: Final = replace(QUIET, narrow_watchers=2, seconds=6)
# An old primary is cut off so long that some clients write elsewhere, and others stay with it.
PARTED: Final = under(
    *("isolate", "cut_client"), clients=4, callers=2, keys=1, lasts_ms_max=5_000, pauses_ms=(10, 30)
)

# Whether anybody reads at an old primary what another one has changed is chance.
RARELY_SEEN: Final = 200

PLANTS: Final = (
    WorldPlant("OneHistory", commit_without_quorum, under(*MOVES)),
    WorldPlant("ExecutedInOrder", hand_over_twice, QUIET, seed=1),
    WorldPlant("CommittedOnQuorum", commit_without_quorum, QUIET, seed=1),
    WorldPlant("StandbysOnlyFollow", let_standbys_vouch, replace(QUIET, standbys=1), seed=1),
    WorldPlant("DurableIsDurable", write_without_sync, QUIET, seed=1),
    WorldPlant("RestartKeeps", forget_the_head, under("kill"), seed=1),
    WorldPlant(
        "OlderSuperblocksAreRefused",
        start_with_any_superblock,
        under("older_superblock", "step_down"),
    ),
    WorldPlant("ViewsMonotonic", keep_the_first_superblock, under("kill", "step_down"), seed=1),
    WorldPlant("OneLogPerView", sequence_anew, under("lose", "kill")),
    WorldPlant("LogsAreWhole", vote_with_a_hole, under("step_down", "kill")),
    WorldPlant("NothingCommittedDiscarded", discard_too_much, under(*MOVES)),
    WorldPlant("LevelsAscend", lead_at_the_level_of_the_build, QUIET, seed=1),
    WorldPlant("DigestsEqual", answer_by_process, QUIET, seed=1),
    # What succeeds twice is a creation that another caller has undone in between.
    WorldPlant(
        "ExactlyOnce",
        forget_numbers,
        under("lose", "cut_client", "kill", clients=3, callers=4, keys=1, seconds=6),
        seed=1,
    ),
    WorldPlant(JUDGES, keep_some_topics, QUIET, seed=1),
    WorldPlant("AcknowledgedIsKept", commit_without_quorum, under("isolate")),
    WorldPlant("ReadsAreLinearizable", read_without_asking, PARTED, seeds_max=RARELY_SEEN),
    WorldPlant("ReadsAreLinearizable", read_behind_the_primary, under("isolate"), seed=1),
    WorldPlant("LogTimeIsNotAhead", follow_the_own_clock, under("clock", "clock", "step_down")),
    WorldPlant(LIVENESS, never_repeat, under(*MOVES)),
    WorldPlant(ANSWERS, answer_by_process, QUIET, seed=1),
    WorldPlant(WATCHES, note_every_fourth_change_late, replace(QUIET, watchers=1), seed=1),
    WorldPlant(WATCHES, follow_without_catching_up, under("kill", watchers=2), seed=1),
    WorldPlant(WATCHES, leave_out_of_parts, PARTS, seed=1),
    WorldPlant(WATCHES, watch_without_grants, PARTS),
    WorldPlant(MEMBERS, read_unheard, APART, seed=2),
    WorldPlant(MEMBERS, remove_the_living, APART),
    WorldPlant(OFFSETS, forget_with_members, APART, seed=1),
    WorldPlant(OFFSETS, take_from_everybody, APART, seed=1),
    *BROKER_PLANTS,
    *SCRUB_PLANTS,
    *EPOCH_CHECKER_PLANTS,
    WorldPlant("SnapshotsAgree", differ_in_snapshots, replace(QUIET, seconds=4), seed=1),
)
