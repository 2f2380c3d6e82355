"""The judge of the scrubber: damage that a pass can see is mended or told within a pass.

It looks at disks past the product, and repairs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from coordinator.journal.errors import CorruptRecord
from coordinator.scrub.journal_scrub import MEND_MS
from coordinator.scrub.slow_disk import RECHECK_MS
from coordinator.snapshot.layout import MANIFESTS, layer_file, manifest_file
from testkit.checkers.history import held_ops
from testkit.world.disk import WorldDisk
from testkit.world.replica import SUPERBLOCK, WorldReplica
from testkit.world.schedule import NS_PER_MS
from testkit.world.snapshot_copies import durable_files, name_of, whole_names
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.format import FormatError
from viewstamp.format.manifest import decode_manifest, sections
from viewstamp.format.superblock import COPIES, COPY_BYTES, decode_copy

if TYPE_CHECKING:
    from coordinator.app.scrubbing import RunningScrubber
    from testkit.world.world import World

# One may have begun before the damage was done.
PASSES: Final = 2
# A pass takes its interval, and as long again for the rests of a small machine; then the core has
# its time.
_PASS_LIMIT_MS: Final = 120_000
_AFTER_MS: Final = MEND_MS + 2 * RECHECK_MS
_LOOK_MS: Final = 1_000
NOT_SCRUBBED: Final = "is damaged, and nobody mends or tells it"


def judge_scrubbers(
    world: World, replicas: Sequence[WorldReplica], counts: Counter[str]
) -> list[str]:
    """Let the scrubbers of a cluster at rest read everything; return what is wrong then.

    `counts` is told what they have mended.
    """
    if not scrubbers_of(replicas):
        return []
    found = [] if let_pass(world, replicas) else ["a scrubber does not come to the end of a pass"]
    for _, scrubber in scrubbers_of(replicas):
        for part, count in scrubber.tally.mended.items():
            counts[f"mended while running: {part.value}"] += count
    return [*found, *unscrubbed(replicas)]


def scrubbers_of(replicas: Sequence[WorldReplica]) -> list[tuple[WorldReplica, RunningScrubber]]:
    """Return the scrubbers of the replicas that run one."""
    return [
        (replica, scrubber)
        for replica in replicas
        if replica.coordinator is not None
        and (scrubber := replica.coordinator.scrubber) is not None
    ]


def let_pass(world: World, replicas: Sequence[WorldReplica]) -> bool:
    """Let time pass until each scrubber has read everything; return whether they have.

    One whose process is restarted meanwhile begins anew.
    """
    begun: dict[RunningScrubber, int] = {}

    def is_over() -> bool:
        running = scrubbers_of(replicas)
        for _, scrubber in running:
            begun.setdefault(scrubber, scrubber.tally.passes)
        return all(each.tally.passes >= begun[each] + PASSES for _, each in running)

    done = world.run(is_over, _PASS_LIMIT_MS * NS_PER_MS)
    for _ in range(_AFTER_MS // _LOOK_MS):
        if not unscrubbed(replicas):
            break
        world.run(lambda: False, _LOOK_MS * NS_PER_MS)
    return done


def unscrubbed(replicas: Sequence[WorldReplica]) -> list[str]:
    """Return what is damaged on disks although scrubbers have read everything."""
    return [
        f"replica {replica.number}: {what} {NOT_SCRUBBED}"
        for replica, _ in scrubbers_of(replicas)
        if replica.file_disk is None
        for what in damaged(replica)
        if not _is_told(replica, what)
    ]


def damaged(replica: WorldReplica) -> list[str]:
    """Return the parts of a disk that are damaged: names of files, `superblock`, `journal`."""
    found: list[str] = []
    for look in _LOOKS:
        found += look(replica)
    return found


def _bad_files(replica: WorldReplica) -> Iterator[str]:
    disk = replica.machine.disk
    named = _named(disk)
    # What no manifest names is garbage, and a file that is being written is not whole yet.
    yield from sorted(named - set(whole_names(disk)))


def _named(disk: WorldDisk) -> set[str]:
    """Return the manifests of which any copy is here, and the layers that they name."""
    found: set[str] = set()
    for path in durable_files(disk):
        name = name_of(path)
        if not name.startswith(f"{MANIFESTS}/"):
            continue
        found.add(name)
        with suppress(FormatError):
            manifest = decode_manifest(disk.content(path))
            assert name == manifest_file(manifest.generation)
            layers = (each for _, section in sections(manifest) for each in section.layers)
            found.update(layer_file(each.digest) for each in layers)
    return found


def _bad_superblock(replica: WorldReplica) -> Iterator[str]:
    disk = replica.machine.disk
    content = disk.content(SUPERBLOCK)
    checksums: set[bytes] = set()
    for copy in range(COPIES):
        try:
            sector = content[copy * COPY_BYTES : (copy + 1) * COPY_BYTES]
            checksums.add(decode_copy(sector, copy).checksum)
        except FormatError:
            checksums.add(b"")
    if len(checksums) > 1 or not disk.is_readable(SUPERBLOCK):
        yield "superblock"


def _bad_records(replica: WorldReplica) -> Iterator[str]:
    assert replica.files is not None, "it runs"
    journal = replica.files.journal
    for op in held_ops(journal):
        try:
            journal.read(op)
        except CorruptRecord:
            yield "journal"
            return


_LOOKS: Final[tuple[Callable[[WorldReplica], Iterator[str]], ...]] = (
    _bad_files,
    _bad_superblock,
    _bad_records,
)
_KINDS: Final = {
    "superblock": cluster_pb2.ALARM_KIND_SUPERBLOCK_DAMAGED,
    "journal": cluster_pb2.ALARM_KIND_JOURNAL_DAMAGED,
}


def _is_told(replica: WorldReplica, what: str) -> bool:
    assert replica.coordinator is not None, "it runs"
    kind = _KINDS.get(what, cluster_pb2.ALARM_KIND_SNAPSHOT_COPY_BAD)
    texts = [each.message for each in replica.coordinator.alarms.all() if each.kind == kind]
    return any(what in _KINDS or what in text for text in texts)
