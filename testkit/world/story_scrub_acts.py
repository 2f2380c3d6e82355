"""What the steps of a story do about scrubbers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.snapshot.layout import LAYERS, MANIFESTS
from testkit.checkers.checker import Broken
from testkit.world.scrub_judge import damaged, let_pass
from testkit.world.snapshot_copies import copies_of, whole_names
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica
    from testkit.world.story_stage import StoryStage

_FOLDERS: Final = {"layers": LAYERS, "manifests": MANIFESTS}


class StoryScrubActs:
    """Each method is one step; its arguments are the words of the line."""

    def __init__(self, stage: StoryStage) -> None:
        self._stage = stage
        self._random = Random(f"scrub {stage.world.seed}")
        self._noted: dict[int, WorldProcess | None] = {}

    def scrub(self) -> None:
        """Let time pass until every scrubber has read everything."""
        if not let_pass(self._stage.world, self._stage.run.replicas):
            raise Broken("Liveness", "a scrubber does not come to the end of its pass")

    def spoil_files(self, folder: str, who: str, copies: str) -> None:
        """Spoil the layers or manifests of a replica that are whole, in one copy or in all."""
        disk = self._stage.who(who).machine.disk
        names = [name for name in whole_names(disk) if name.startswith(_FOLDERS[folder])]
        for name in names:
            paths = copies_of(disk, name)
            for path in paths if copies == "all" else [paths[int(copies)]]:
                disk.rot(path, 0, len(disk.content(path)), self._random)
        self._expect(bool(names), f"{who} has no {folder}")

    def note_process(self, who: str) -> None:
        """Remember which process a replica has."""
        replica = self._stage.who(who)
        self._noted[replica.number] = replica.process

    def expect_same_process(self, who: str) -> None:
        """That a replica was not restarted since."""
        replica = self._stage.who(who)
        is_same = self._noted[replica.number] is replica.process
        self._expect(is_same, f"{who} was restarted")

    def expect_damage(self, who: str) -> None:
        """That something on a disk is damaged."""
        self._expect(bool(damaged(self._stage.who(who))), f"nothing is damaged on {who}")

    def expect_whole(self, who: str) -> None:
        """That nothing on a disk is damaged."""
        found = damaged(self._stage.who(who))
        self._expect(not found, f"{found} are damaged on {who}")

    def expect_alarm(self, word: str | None, kind: str, who: str) -> None:
        """That a replica has an alarm of a kind, or none."""
        number = cluster_pb2.AlarmKind.Value(f"ALARM_KIND_{kind}")
        found = [each.message for each in self._alarms(who) if each.kind == number]
        self._expect(bool(found) == (word is None), f"{who} has alarms {found}")

    def _alarms(self, who: str) -> list[cluster_pb2.Alarm]:
        coordinator = self._running(who).coordinator
        return [] if coordinator is None else coordinator.alarms.all()

    def expect_mended(self, part: str, who: str) -> None:
        """That a scrubber has mended something."""
        coordinator = self._running(who).coordinator
        scrubber = None if coordinator is None else coordinator.scrubber
        tally = {} if scrubber is None else {p.value: n for p, n in scrubber.tally.mended.items()}
        self._expect(tally.get(part, 0) > 0, f"{who} has mended {tally}")

    def _running(self, who: str) -> WorldReplica:
        replica = self._stage.who(who)
        self._expect(replica.coordinator is not None, f"{who} is down")
        return replica

    def _expect(self, holds: bool, found: str) -> None:
        if not holds:
            raise Broken("the story", found)
