"""`python -m testkit.world.stories FILE ...`: stories about a cluster, told in text files.

A story says what is done to a cluster, and what must come of it.

The world runs as always, with all its checkers and judges, but nothing goes wrong unless the story
says so. One step stands on each line; `#` begins a comment. WHO is `r0`, `primary`, `backup` (the
first one), or a name given by `call NAME WHO`. See `STEPS` for the steps. What comes before a line
`start` is done before any process runs. A story that does not `settle` may end in trouble.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from testkit.world.faults import Faults
from testkit.world.options import SNAPSHOT_NEVER, WorldOptions, flags
from testkit.world.run import WorldOutcome, WorldRun
from testkit.world.story import story_of
from testkit.world.story_acts import StoryActs
from testkit.world.story_broker_acts import StoryBrokerActs
from testkit.world.story_member_acts import StoryMemberActs
from testkit.world.story_scrub_acts import StoryScrubActs
from testkit.world.story_stage import StoryStage
from testkit.world.workload import Demands
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.transports import WIRE

START: Final = "start"
SETTLE: Final = "settle"
SETTINGS: Final = (
    *("seed", "replicas", "standbys", "clients", "readers", "snapshots", "retain"),
    *("deadline", "brokers", "scrub", "changing", "ring", "throttle"),
)
# Longer than any story: no snapshot fails because it took too long.
_DEADLINE_MS: Final = 600_000


class WorldStory:
    """One story, which is played once."""

    def __init__(self, text: str) -> None:
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        numbered = [(number, line) for number, line in enumerate(lines, start=1) if line]
        settings = dict(line.split() for _, line in numbered if line.split()[0] in SETTINGS)
        self._steps = [step for step in numbered if step[1].split()[0] not in SETTINGS]
        self._before = _before_start(self._steps)
        self._demands = Demands()
        seed = int(settings.pop("seed", "1"))
        self.run = WorldRun(seed, _options(settings), self, self._demands)
        self._acts: StoryActs | None = None

    def play(self) -> WorldOutcome:
        """Take every step, and return what came of it."""
        return self.run.run()

    def before_start(self, run: WorldRun, faults: Faults) -> None:
        """Take the steps before `start`."""
        self._acts = StoryActs(StoryStage(run, faults, self._demands))
        self._take(self._steps[: self._before])

    def go(self, run: WorldRun, faults: Faults) -> bool:
        """Take the other steps; return whether the story ends at rest."""
        self._take(self._steps[self._before :])
        return any(line == SETTLE for _, line in self._steps)

    def _take(self, steps: list[tuple[int, str]]) -> None:
        for number, line in steps:
            self.run.world.schedule.note("story", f"line {number}: {line}")
            if line != START:
                self._step(line)

    def _step(self, line: str) -> None:
        assert self._acts is not None, "the story has begun"
        for pattern, step in STEPS:
            match = re.fullmatch(pattern, line)
            if match is not None:
                step(self._acts, *match.groups())
                return
        raise ValueError(f"no step reads {line!r}; see STEPS in {__name__}")


def _before_start(steps: list[tuple[int, str]]) -> int:
    """Return how many steps come before the processes run."""
    return next((index for index, (_, line) in enumerate(steps) if line == START), 0)


def _of_brokers(step: Callable[..., None]) -> Callable[..., None]:
    """Return a step about brokers."""
    return lambda acts, *words: step(acts.brokers, *words)


def _of_scrubber(step: Callable[..., None]) -> Callable[..., None]:
    """Return a step about scrubbers."""
    return lambda acts, *words: step(acts.scrubbers, *words)


def _of_members(step: Callable[..., None]) -> Callable[..., None]:
    """Return a step about members."""
    return lambda acts, *words: step(acts.members, *words)


def _options(settings: dict[str, str]) -> WorldOptions:
    """Return a run without any fault, on the transport that ships."""
    numbers = {name: int(value) for name, value in settings.items()}
    snapshot_commands = numbers.get("snapshots", SNAPSHOT_NEVER)
    return WorldOptions(
        transport=WIRE,
        replicas=numbers.get("replicas", 3),
        standbys=numbers.get("standbys", 0),
        clients=numbers.get("clients", 3),
        readers=numbers.get("readers", 1),
        brokers=numbers.get("brokers", 0),
        is_changing=bool(numbers.get("changing", 0)),
        is_ring=bool(numbers.get("ring", 0)),
        ring_bytes=numbers.get("ring", 0) * SECTOR_BYTES,
        faults=(),
        flags=(
            *flags(snapshot_commands, numbers.get("retain", 0), numbers.get("scrub", 0)),
            f"--snapshot-deadline-ms={numbers.get('deadline', _DEADLINE_MS)}",
            f"--peer-snapshot-bytes-per-s={numbers.get('throttle', 0)}",
        ),
    )


# What a line reads, and what it does.
STEPS: Final[tuple[tuple[str, Callable[..., None]], ...]] = (
    (r"call (\w+) (\w+)", StoryActs.call),
    (r"ask (\d+)", StoryActs.ask),
    (r"answers", StoryActs.answers),
    (r"write (\d+)", StoryActs.write),
    (r"run (\d+)", StoryActs.run),
    (SETTLE, StoryActs.settle),
    (r"stop (\w+)", StoryActs.stop),
    (r"crash (\w+)", StoryActs.crash),
    (r"crash (\w+) within (\d+) effects", StoryActs.crash_within),
    (r"power (\w+)", StoryActs.power),
    (r"(crash|power) (\w+) after (\d+) steps of its disk", StoryActs.end_after_steps),
    (r"(crash|power) (\w+) after (\d+) steps of its state transfer", StoryActs.end_in_transfer),
    (r"boot (\w+)", StoryActs.boot),
    (r"pause (\w+) (\d+)", StoryActs.pause),
    (r"hang services of (\w+)", StoryActs.hang),
    (r"resign (\w+)", StoryActs.resign),
    (r"clock (\w+) (ahead|behind) by (\d+)", StoryActs.clock),
    (r"slow disk (\w+)", StoryActs.slow_disk),
    (r"stall disk of (\w+) for (\d+)", StoryActs.stall_disk),
    (r"alone (\w+)", StoryActs.alone),
    (r"fail (\d+) syncs of (\w+)", StoryActs.fail_syncs),
    (r"fill disk (\w+)", StoryActs.fill_disk),
    (r"lose disk (\w+)", StoryActs.lose_disk),
    (r"copy superblock of (\w+)", StoryActs.copy_superblock),
    (r"put superblock of (\w+) back", StoryActs.put_superblock_back),
    (r"copy volume of (\w+)", StoryActs.copy_volume),
    (r"put volume of (\w+) back", StoryActs.put_volume_back),
    (r"rot (\w+) on (\w+)", StoryActs.rot),
    (r"rot superblock of (\w+)", StoryActs.rot_superblock),
    (r"make op (\w+) on (\w+) unreadable", StoryActs.make_unreadable),
    (r"make a header of (\w+) unreadable", StoryActs.make_header_unreadable),
    (r"spoil (one copy|all copies) of (\w+)", StoryActs.spoil),
    (r"lose copies of (\w+) at (\d)", StoryActs.lose_copies),
    (r"strike (\w+) in the next transfer of (\w+)", StoryActs.strike_transfer),
    (r"misdirect (\w+) by (\d+)", StoryActs.misdirect),
    (r"(isolate|deaf|mute|bridge) (\w+)", StoryActs.cut),
    (r"cut ([\w,]+) from ([\w,]+)", StoryActs.cut_between),
    (r"swallow messages to (\w+)", StoryActs.swallow),
    (r"swallow votes to (\w+) for (\d+)", StoryActs.swallow_votes),
    (r"swallow entries of (\w+) for (\d+)", StoryActs.swallow_entries),
    (r"mend", StoryActs.mend),
    (r"diverge (\w+)", StoryActs.diverge),
    (r"diverge (\w+) in snapshots", StoryActs.diverge_in_snapshots),
    (r"expect primary (not )?(\w+)", StoryActs.expect_primary),
    (r"expect view (above )?(\d+)", StoryActs.expect_view),
    (r"expect (\w+) is (\w+)", StoryActs.expect_status),
    (r"expect snapshots on (\w+)", StoryActs.expect_snapshots),
    (r"let scrubbers pass", _of_scrubber(StoryScrubActs.scrub)),
    (r"expect damage on (\w+)", _of_scrubber(StoryScrubActs.expect_damage)),
    (r"expect whole (\w+)", _of_scrubber(StoryScrubActs.expect_whole)),
    (r"expect (no )?alarm (\w+) on (\w+)", _of_scrubber(StoryScrubActs.expect_alarm)),
    (r"expect (\w+) mended on (\w+)", _of_scrubber(StoryScrubActs.expect_mended)),
    (r"note process of (\w+)", _of_scrubber(StoryScrubActs.note_process)),
    (r"expect same process of (\w+)", _of_scrubber(StoryScrubActs.expect_same_process)),
    (r"spoil (\w+) of (\w+) in (\d|all)", _of_scrubber(StoryScrubActs.spoil_files)),
    (r"expect log time within (\d+)", StoryActs.expect_log_time),
    (r"expect (no )?mark (.+)", StoryActs.expect_mark),
    (r"place (\d+) partitions on (\d+) brokers", _of_brokers(StoryBrokerActs.place)),
    (r"records (\d+)", _of_brokers(StoryBrokerActs.records)),
    (r"call broker (\w+) (leader|follower)", _of_brokers(StoryBrokerActs.call)),
    (r"kill broker (\w+)", _of_brokers(StoryBrokerActs.kill)),
    (r"boot broker (\w+)", _of_brokers(StoryBrokerActs.boot)),
    (r"pause broker (\w+) (\d+)", _of_brokers(StoryBrokerActs.pause)),
    (r"lose disk of broker (\w+)", _of_brokers(StoryBrokerActs.lose_disk)),
    (r"(un)?drain broker (\w+)", _of_brokers(StoryBrokerActs.drain)),
    (r"wait until broker (\w+) (.+)", _of_brokers(StoryBrokerActs.wait_until)),
    (r"expect broker (\w+) (.+)", _of_brokers(StoryBrokerActs.expect)),
    (r"expect refusals of broker (\w+)", _of_brokers(StoryBrokerActs.expect_refusals)),
    (r"add replica( that is down)?", _of_members(StoryMemberActs.add)),
    (r"let (\w+) try to add (\S+)", _of_members(StoryMemberActs.try_to_add)),
    (r"promote (\w+)", _of_members(StoryMemberActs.promote)),
    (r"begin to promote (\w+)", _of_members(StoryMemberActs.begin_promotion)),
    (r"remove (\w+)", _of_members(StoryMemberActs.remove)),
    (r"begin to remove (\w+)", _of_members(StoryMemberActs.begin_removal)),
    (r"finish changes", _of_members(StoryMemberActs.finish)),
    (r"retire (\w+)", _of_members(StoryMemberActs.retire)),
    (r"revive (\w+)", _of_members(StoryMemberActs.revive)),
    (r"crash (\w+) before (recording|telling) an epoch", _of_members(StoryMemberActs.crash_before)),
    (
        r"expect voters ([\d,]+)(?: and standbys ([\d,]+))?",
        _of_members(StoryMemberActs.expect_members),
    ),
    (r"expect no change refused", _of_members(StoryMemberActs.expect_no_refusal)),
    (r"expect changes refused for (\w+)", _of_members(StoryMemberActs.expect_refused)),
    (r"expect no fenced broker", _of_brokers(StoryBrokerActs.expect_none_fenced)),
)


def main(arguments: Sequence[str]) -> int:
    """Play stories, and print the transcript of each that ends badly; return 1 if one does."""
    if not arguments:
        print(__doc__)
        return 2
    bad = 0
    for path in map(Path, arguments):
        story = WorldStory(path.read_text())
        outcome = story.play()
        bad += not outcome.is_good
        if not outcome.is_good:
            print("\n".join(story_of(story.run.world, story.run.heard, outcome.violations)))
        print(f"{path.stem}: {'; '.join(outcome.violations) or 'ends well'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
