"""Worlds whose journals are rings: small ones, which go round often and are full now and then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.journal.ring_rewriting import OtherSide
from coordinator.journal.ring_table import PlaceState, RingVerdict, SlotState, ring_verdict
from testkit.memory_storage import SimulatedCrash
from testkit.world.options import WorldOptions, draw
from testkit.world.run import WorldOutcome, WorldRun
from testkit.world.seeds import run_seed
from testkit.world.stories import WorldStory
from testkit.world.story import story_of
from viewstamp.limits import NAME_BYTES_MAX

STORIES = Path(__file__).parent / "stories"
SMALL = WorldOptions(clients=2, callers=2, keys=2, seconds=4, every_ms=(50, 600), is_ring=True)
# Power fails everywhere while entries of some size are written, and few snapshots are taken.
STRUCK = replace(
    SMALL, faults=("blackout", "power_in_io"), name_bytes=NAME_BYTES_MAX, seconds=6, clients=3
)
# What a primary admits is discarded, the others lead in turn, and it leads again.
DEPOSED = """
call old primary
mute old
ask 8
run 1500
mend
answers
resign primary
run 600
resign primary
run 600
"""
SEEDS_MAX = 10
IS_FULL = "alarm raised: ALARM_KIND_NO_SPACE"
# So large that a story does not fill it, unless it wants to.
SECTORS = 4_000
PLAYED = (
    *("crash_between_persist_and_send", "damage_behind_which_the_log_goes_on"),
    *("failed_sync_ends_the_process", "head_that_went_astray", "older_superblock_is_refused"),
    *("p5_power_of_the_whole_cluster", "p13_damaged_entry_is_no_vote_against_it"),
    *("p18_new_primary_fetches_what_it_lacks", "p19_lost_disk_comes_back_as_no_voter"),
    *("p20_transfer_is_no_acknowledgement", "lost_disk_and_then_the_primary", "diverged_behind"),
)


def run_with_ring(seed: int, options: WorldOptions = SMALL) -> WorldOutcome:
    """Run one seed with rings."""
    return run_seed(seed, replace(options, is_ring=True, is_on_files=False))


def test_faults_of_disks_meet_a_ring() -> None:
    """Rot, lost writes, torn ends and lost power cost no entry, and none is taken for another."""
    faults = ("rot", "lost_write", "misdirected", "power_in_io", "unreadable")
    outcome = WorldRun(3, replace(SMALL, faults=faults)).run()
    assert outcome.violations == []
    assert sum(outcome.faults.values()) > 0


@pytest.mark.long
def test_a_full_ring_lets_snapshots_complete() -> None:
    """Rings that fill up before a snapshot is due by the count of commands go on."""
    full = 0
    for seed in range(6):
        options = replace(SMALL, faults=("kill", "power"), ring_bytes=120 * 4_096, clients=4)
        outcome = run_with_ring(seed, options)
        assert outcome.violations == [], f"seed {seed}"
        full += outcome.marks[IS_FULL]
    assert full > 0


@pytest.mark.long
def test_what_a_primary_has_admitted_has_room_in_every_ring() -> None:
    """Here a primary has more room than the others, and the command that completes the snapshot
    lies behind an entry that the full ones would refuse."""
    outcome = run_with_ring(26, draw(26))
    assert outcome.violations == []
    assert outcome.marks[IS_FULL] > 0


@pytest.mark.long
def test_a_ring_that_view_changes_have_filled_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A primary that nobody hears admits entries which nobody follows, again and again, until its
    ring has no room for others. The first copy of its log ends with its process."""
    sequences: list[int] = []
    turn = OtherSide.turn

    def counted(side: OtherSide, first_sequence: int) -> None:
        sequences.append(first_sequence)
        if len(sequences) == 1:
            raise SimulatedCrash("before the floor names the other side")
        turn(side, first_sequence)

    monkeypatch.setattr(OtherSide, "turn", counted)
    outcome = WorldStory(f"ring 160\nclients 6\nwrite 5\n{DEPOSED * 20}settle\n").play()
    assert outcome.violations == []
    assert outcome.is_good
    assert len(sequences) > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 30, 5))
def test_drawn_seeds_keep_all_promises_with_rings(first: int) -> None:
    """What a campaign draws happens to replicas with rings, too."""
    for seed in range(first, first + 5):
        outcome = run_with_ring(seed, draw(seed))
        assert outcome.violations == [], f"seed {seed}"


@pytest.mark.long
@pytest.mark.parametrize("name", PLAYED)
def test_story_with_rings(name: str) -> None:
    """A story of segments ends with rings as its file says."""
    story = WorldStory(f"ring {SECTORS}\n{(STORIES / f'{name}.txt').read_text()}")
    outcome = story.play()
    told = story_of(story.run.world, story.run.heard, outcome.violations)
    assert outcome.is_good, "\n".join([*told, name, *outcome.violations])


# --- A planted bug ---


def tell_torn_for_rotten(patch: pytest.MonkeyPatch) -> None:
    """Records that no slot names are taken for records that have rotted."""

    def verdict(slot: SlotState, place: PlaceState, *, is_mark: bool) -> RingVerdict:
        found = ring_verdict(slot, place, is_mark=is_mark)
        return RingVerdict.UNSURE if found is RingVerdict.TORN else found

    patch.setattr("coordinator.journal.ring_scan.ring_verdict", verdict)


@pytest.mark.long
def test_torn_records_that_are_told_for_rotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bug, some of a few seeds break a promise."""
    tell_torn_for_rotten(monkeypatch)
    assert any(run_with_ring(seed, STRUCK).violations for seed in range(SEEDS_MAX))
