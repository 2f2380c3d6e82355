"""The process is stopped before every write, sync, rename, unlink, create and directory sync.

The script writes seven generations, of which one fails and one gives up the reserve of a full disk,
with compaction, retention, journal truncation, and a restart on damaged copies. At each point a
copy of the disk goes through a crash; then the script runs to its end on the remains.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest

from coordinator.snapshot import section_writer
from testkit.generation_builders import COPY_DIRECTORIES, RESERVE_BYTES_MIN, reserves, scrubbed
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from tests.coordinator.snapshot.files.scripted_life import SnapshotLife, Witness
from tests.coordinator.snapshot.files.scripted_machine import RESTART_OP, SCRIPT, machine_at
from viewstamp.format.manifest import layer_name, sections

LAST_GENERATION = 7
# A first generation has 15 layers of at least 6 steps each, and there are seven.
POINTS_MIN = 1000
PARTS = 4
KINDS = {"write", "sync", "rename", "unlink", "create", "sync_directory"}
# The sample: the first of each shape, and every so-many-th step.
SAMPLE = 199
# Most layers of the script are larger, and written piece by piece; the others in one go.
HELD_BYTES_MAX = 1000
# Losses of power with unsynced writes dropped, kept and partly kept; and the process killed alone,
# after which power is lost at the end.
Mode = Callable[[MemoryStorage, int], None]
MODES: dict[str, Mode] = {
    "dropped": lambda storage, step: storage.crash(Loss.DROP),
    "kept": lambda storage, step: storage.crash(Loss.KEEP),
    "partly kept": lambda storage, step: storage.crash(Loss.PARTLY, step),
    "killed": lambda storage, step: storage.restart_process(),
}


@pytest.fixture(autouse=True)
def held_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both ways of writing a layer in the script."""
    monkeypatch.setattr(section_writer, "HELD_BYTES_MAX", HELD_BYTES_MAX)


def damage(storage: MemoryStorage) -> None:
    """Spoil the second copy of every manifest, and lose the third one of every layer."""
    for name in storage.names(f"{COPY_DIRECTORIES[1]}/manifests"):
        storage.replace(f"{COPY_DIRECTORIES[1]}/manifests/{name}", b"rot")
    for name in storage.names(f"{COPY_DIRECTORIES[2]}/layers"):
        storage.remove(f"{COPY_DIRECTORIES[2]}/layers/{name}")


def go_through(storage: MemoryStorage, witness: Witness) -> SnapshotLife:
    """Live through the script, or the rest of it, with a restart in the middle."""
    life = settled(storage, witness)
    life.run_to(RESTART_OP)
    life.close()
    damage(storage)
    life = settled(storage, witness)
    life.run_to(len(SCRIPT))
    life.collect()
    return life


def settled(storage: MemoryStorage, witness: Witness) -> SnapshotLife:
    """Start, which checks what was recovered; scrub every generation and collect garbage."""
    life = SnapshotLife(storage, witness)
    life.collect()
    for generation in life.files.generations():
        assert all(each.is_intact for each in scrubbed(life.files, generation))
    check_no_garbage(life)
    check_durable(storage)
    return life


def check_durable(storage: MemoryStorage) -> None:
    """Check that a loss of power takes nothing away: what was seen was made durable before.

    The reserve has no content; a shorter one is noticed and restored.
    """
    unplugged = storage.copy()
    unplugged.crash(Loss.DROP)
    after = unplugged.snapshot()
    for path, content in storage.snapshot().items():
        assert path.endswith("/reserve") or after.get(path) == content, path
    back = after.keys() - set(storage.paths())
    # A temporary file that comes back is removed at the next start.
    assert all(path.endswith(".tmp") for path in back), back


def named_files(life: SnapshotLife) -> set[str]:
    """Return the layers and manifests that should be in each directory."""
    names = {f"layers/{layer_name(digest)}" for digest in life.files.pins.digests()}
    for generation in life.files.generations():
        manifest = life.files.stored_manifest(generation)
        assert manifest is not None
        names.add(f"manifests/{generation:020d}.manifest")
        for _, section in sections(manifest):
            names |= {f"layers/{layer_name(each.digest)}" for each in section.layers}
    return names


def stored_files(storage: MemoryStorage, directory: str) -> dict[str, bytes]:
    """Return layers and manifests in one directory, and whatever else lies there."""
    return {
        path.removeprefix(f"{directory}/"): content
        for path, content in storage.snapshot().items()
        if path.startswith(f"{directory}/") and not path.endswith(("/IDENTITY", "/reserve"))
    }


def check_no_garbage(life: SnapshotLife) -> None:
    """Check that every directory has exactly the named files."""
    named = named_files(life)
    for directory in COPY_DIRECTORIES:
        assert stored_files(life.storage, directory).keys() == named


def check_end(life: SnapshotLife) -> dict[str, bytes]:
    """Check that the script came to its end, and does so after one more loss of power. Return
    the files."""
    storage, witness = life.storage, life.witness
    assert life.superblock.state.generation == LAST_GENERATION
    assert life.machine.state == machine_at(len(SCRIPT)).state
    assert life.files.generations() == life.machine.completed
    assert life.files.collect_garbage(life.machine.completed, LAST_GENERATION).layers == ()
    check_no_garbage(life)
    assert all(each >= RESERVE_BYTES_MIN for each in reserves(life.files))
    life.close()
    check_durable(storage)
    storage.crash(Loss.DROP)
    again = SnapshotLife(storage, witness)
    assert again.machine.op == len(SCRIPT)
    check_no_garbage(again)
    again.close()
    files = stored_files(storage, COPY_DIRECTORIES[0])
    assert all(stored_files(storage, each) == files for each in COPY_DIRECTORIES)
    return files


# Whether to stop at a step, given its number and how many of its shape came so far.
Choice = Callable[[int, int], bool]


def chosen(number: int, occurrence: int) -> bool:
    """Choose the first step of each shape, and some of all."""
    return occurrence == 1 or number % SAMPLE == 0


def shape(name: str) -> str:
    """Return a step without its numbers, digests and directories."""
    return re.sub(r"copies/[abc]|[0-9a-f]{64}|\d+", "#", name)


class CrashPoints:
    """Stops copies of a life at chosen steps."""

    def __init__(self, choice: Choice, *, is_twice: bool = False) -> None:
        self.storage = MemoryStorage()
        self.witness = Witness()
        self.points = 0
        self.stops = 0
        self.crashes = 0
        self.shapes: Counter[str] = Counter()
        self._choice = choice
        self._is_twice = is_twice
        self._expected = check_end(go_through(MemoryStorage(), Witness()))

    def run(self) -> None:
        """Go through the script, with crashes at each chosen step."""
        self.storage.before_step = self._stop
        life = go_through(self.storage, self.witness)
        self.storage.before_step = None
        assert check_end(life) == self._expected

    def _stop(self, name: str) -> None:
        self.shapes[shape(name)] += 1
        self.points += 1
        if self._choice(self.points, self.shapes[shape(name)]):
            self.stops += 1
            for mode in MODES:
                self._crash(mode, name)

    def _crash(self, mode: str, name: str) -> None:
        storage, witness = self.storage.copy(), deepcopy(self.witness)
        MODES[mode](storage, self.points)
        try:
            if self._is_twice:
                self._crash_again(storage, witness)
            assert check_end(go_through(storage, witness)) == self._expected
        except BaseException as error:
            error.add_note(f"point {self.points}, before `{name}`, {mode}")
            raise
        self.crashes += 1

    def _crash_again(self, storage: MemoryStorage, witness: Witness) -> None:
        """Lose power once more, soon: recovery has some hundred steps."""
        storage.crash_at = storage.steps + random.Random(self.points).randrange(150)
        with contextlib.suppress(SimulatedCrash):
            go_through(storage, witness)
        storage.crash(Loss.PARTLY, self.points)

    def summary(self) -> str:
        """Counts what was tried."""
        kinds = ", ".join(sorted({name.partition(" ")[0] for name in self.shapes}))
        return (
            f"{self.points} points ({kinds}) of {len(self.shapes)} shapes; stopped at {self.stops} "
            f"of them in {len(MODES)} modes ({', '.join(MODES)}): {self.crashes} crashes"
        )


def check_counts(points: CrashPoints, stops_min: int) -> None:
    """Check that enough of every kind was tried."""
    print(points.summary())
    kinds = {name.partition(" ")[0] for name in points.shapes}
    assert points.points >= POINTS_MIN, points.summary()
    assert kinds >= KINDS, points.summary()
    assert points.shapes["unlink #/reserve"], points.summary()
    assert points.stops >= stops_min, points.summary()
    assert points.crashes == points.stops * len(MODES), points.summary()


@pytest.mark.long
def test_a_sample_of_crash_points_recovers() -> None:
    """A crash at steps of each shape, in every mode, recovers and ends with the same files."""
    points = CrashPoints(chosen)
    points.run()
    check_counts(points, len(points.shapes))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_every_crash_point_recovers(part: int) -> None:
    """A crash at each step, in every mode, recovers and ends with the same files."""
    points = CrashPoints(lambda number, _: number % PARTS == part)
    points.run()
    check_counts(points, points.points // PARTS)


@pytest.mark.exhaustive
def test_a_second_crash_while_recovering_recovers() -> None:
    """A second crash during recovery from a crash, restoring included, does no more harm than
    one."""
    points = CrashPoints(lambda number, _: number % PARTS == 0, is_twice=True)
    points.run()
    check_counts(points, points.points // PARTS)
