"""Measures layers against one serialized state: prints one JSON object.

`python -m benchmarks.state_forms [--topics N] [--rounds N] [--directory D]`. The streams machine of
one process is filled with topics of ten partitions each. Then a part of the topics is changed, and
the state is written in each form, three copies with a sync, and so for several parts. At the end
each form is loaded by an empty machine, the layers as a base and several deltas.

- `layers` are what ships: the base is written once, then what changed.
- `entities` is one stream of all entities, compressed as a whole, as large as a base at each time.
- `rows` is the table of topics as Python's pickle writes it, compressed: the fastest serialization
  that this process has. It has no digest, no canonical bytes and no key, and another build may not
  read it.

Times are of the clock and of the processor; the latter tells more on a shared machine. Progress
goes to stderr.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import pickle
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import zstandard

from benchmarks.commands import machine as this_machine
from benchmarks.commands import portable
from benchmarks.machine_streams import PARTITIONS_PER_TOPIC
from benchmarks.snapshot_etcd import tell
from benchmarks.snapshot_state import chosen
from benchmarks.targets import Figures
from services.runtime.domain import Call, Domain
from services.runtime.installing import SectionInstallation
from services.runtime.machine import Machine
from services.streams.access import new_access
from services.streams.domain import DOMAIN
from services.streams.model import NEXT_TOPIC_ID, StreamsState, Topic
from services.streams.options import DEFAULT_OPTIONS
from services.streams.section import SECTION
from testkit.frozen import changes_of
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.format.block import ZSTD_LEVEL, compress, raw_blocks
from viewstamp.format.layer import LayerHeader, LayerWriter
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.limits import FEATURE_LEVEL_MAX, SNAPSHOT_COPIES, TOPICS_PER_STREAM_MAX
from viewstamp.machine.freezing import Entity
from viewstamp.machine.tables import UndoLog

TOPICS: Final = 1_000_000
TOPICS_PER_STREAM: Final = 4_000
ROUNDS: Final = 3
# The changed part of the topics, in hundredths of a percent.
RATES: Final = (1, 10, 100, 1_000, 5_000)
# The chain of a restart: a base, and deltas of this part each.
DELTAS: Final = 8
DELTA_RATE: Final = 100
STAGE_STREAMS: Final = 3
PIECE_BYTES: Final = 1 << 20

_ENTRY = struct.Struct("<IIH")


class StateForms:
    """A machine full of topics, and the forms of its state on a disk."""

    def __init__(self, topics: int, directory: Path) -> None:
        self.machine = filled(topics)
        self.topics = topics
        self.chain: list[list[bytes]] = []
        self.begin = pb.InstallBegin()
        self._directory = directory
        self._chance = random.Random(1)
        self._generation = 0
        self._keys = list(self.machine.state.topics.rows)

    def change(self, hundredths: int) -> int:
        """Change a part of all topics, drawn from all; return how many."""
        number = max(1, self.topics * hundredths // 10_000)
        table, revision = self.machine.state.topics, self._generation + 10
        for index in chosen(self.topics, number, clustered=False, chance=self._chance):
            key = self._keys[index]
            table.put(key, table.rows[key]._replace(modified_revision=revision + index))
        self.machine.undo.settle()
        return number

    def layers(self) -> Figures:
        """Freeze the state, and write what changed since the last time as a layer."""
        self._generation += 1
        freezer, figures = self.machine.freezer, dict[str, float]()
        with Timed("cut_", figures):
            freezer.freeze(self._generation, self._generation)
        frozen, tally = freezer.frozen, freezer.tally()
        assert frozen is not None
        entries = (entry for change in changes_of(frozen) if (entry := tally.add(change)))
        blocks: list[bytes] = []
        with Timed("", figures):
            figures["bytes"] = written(self._directory, "layer", self._layer(entries, blocks))
        freezer.counted(frozen, tally)
        released = freezer.release(self._generation)
        for _ in () if released is None else released.forget():
            pass
        self.chain.append(blocks)
        self.begin = self._begin(tally)
        return figures

    def _layer(self, entries: Iterable[Any], blocks: list[bytes]) -> Iterator[bytes]:
        base = self._generation - 1
        header = LayerHeader(
            b"c" * 16, STAGE_STREAMS, SECTION.version, self._generation, base, FEATURE_LEVEL_MAX
        )
        writer = LayerWriter(header)
        yield writer.begin()
        for raw in raw_blocks(entries):
            block = compress(raw)
            blocks.append(block.data)
            yield writer.add(block)
        yield writer.finish()

    def _begin(self, tally: SectionTally) -> pb.InstallBegin:
        return pb.InstallBegin(
            generation=self._generation,
            revision=1,
            sequence=1,
            section_version=SECTION.version,
            state_digest=tally.digest.to_bytes(),
            entities=tally.entities,
            layers=len(self.chain),
        )

    def entities(self) -> Figures:
        """Write all entities as one stream."""
        figures: dict[str, float] = {}
        with Timed("", figures):
            pieces = compressed(_encoded(SECTION.entities(self.machine.state)))
            figures["bytes"] = written(self._directory, "entities", pieces)
        return figures

    def rows(self) -> Figures:
        """Write the tables of topics as Python serializes them."""
        figures: dict[str, float] = {}
        with Timed("", figures):
            data = pickle.dumps(self.machine.state.topics.rows, pickle.HIGHEST_PROTOCOL)
            pieces = compressed(
                data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)
            )
            figures["bytes"] = written(self._directory, "rows", pieces)
        return figures

    # --- Loading ---

    def load_layers(self) -> Figures:
        """Load base and deltas, merged and checked as a service does it."""
        figures: dict[str, float] = {}
        self.begin.layers = len(self.chain)
        with Timed("", figures):
            installation = SectionInstallation(DOMAIN, self.begin)
            for layer, blocks in enumerate(self.chain):
                for data in blocks:
                    installation.add(pb.InstallBlock(layer=layer, data=data))
            for _ in installation.loading():
                pass
        assert installation.installed is not None
        self._check(installation.installed.state)
        return {**figures, "layers": len(self.chain)}

    def load_entities(self) -> Figures:
        """Load the stream of entities, and check the digest."""
        figures: dict[str, float] = {}
        undo = UndoLog()
        state = StreamsState(undo)
        with Timed("", figures):
            tally = SectionTally()
            data = decompressed(self._directory / "entities-0")
            for _ in SECTION.loading(state, _tallied(_decoded(data), tally)):
                undo.settle()
        assert tally.digest.to_bytes() == self.begin.state_digest
        self._check(state)
        return figures

    def load_rows(self) -> Figures:
        """Load the pickled rows into a table with its indexes; nothing is checked."""
        figures: dict[str, float] = {}
        undo = UndoLog()
        state = StreamsState(undo)
        prepare(state, undo, self.topics)
        with Timed("", figures):
            rows = pickle.loads(decompressed(self._directory / "rows-0"))
            for key, row in rows.items():
                state.topics.put(key, row)
                undo.settle()
        self._check(state)
        return figures

    def _check(self, state: StreamsState) -> None:
        assert state.topics.rows == self.machine.state.topics.rows


class Timed:
    """Adds seconds of the clock and of the processor to figures."""

    def __init__(self, prefix: str, figures: dict[str, float]) -> None:
        self._prefix = prefix
        self._figures = figures

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._began = (time.perf_counter(), time.process_time())

    def __exit__(self, *_: object) -> None:
        began_s, began_cpu_s = self._began
        self._figures[f"{self._prefix}seconds"] = round(time.perf_counter() - began_s, 4)
        self._figures[f"{self._prefix}processor_s"] = round(time.process_time() - began_cpu_s, 4)
        gc.enable()


def streams_of(topics: int) -> int:
    """Return how many streams have room for so many topics."""
    assert TOPICS_PER_STREAM <= TOPICS_PER_STREAM_MAX
    return -(-topics // TOPICS_PER_STREAM)


def prepare(state: StreamsState, undo: UndoLog, topics: int) -> None:
    """Fill a state with root and the streams."""
    state.access.put(0, new_access(0, 1))
    for number in range(streams_of(topics)):
        request = api.CreateStreamRequest(name=f"stream-{number:03}")
        DOMAIN.commands["CreateStream"](state, request, Call(1, 1_700_000_000_000_000, 0, 1, 0, 1))
    undo.settle()


def filled(topics: int, domain: Domain[StreamsState] = DOMAIN) -> Machine[StreamsState]:
    """Return a machine in whose tables all topics are new."""
    made: Machine[StreamsState] = Machine(domain)
    prepare(made.state, made.undo, topics)
    for number in range(topics):
        stream, id_ = number // TOPICS_PER_STREAM + 1, number + 1
        name = f"topic-{number:06}"
        row = Topic(
            id_, stream, name, PARTITIONS_PER_TOPIC, (), DEFAULT_OPTIONS, 1, number + 2, 1, 0
        )
        made.state.topics.put((stream, id_), row)
        made.undo.settle()
    made.state.counters.put(NEXT_TOPIC_ID, topics + 1)
    made.undo.settle()
    return made


def written(directory: Path, name: str, pieces: Iterable[bytes]) -> int:
    """Write a file in several copies, each synced; return the bytes of one."""
    files = [(directory / f"{name}-{copy}").open("wb") for copy in range(SNAPSHOT_COPIES)]
    size_bytes = 0
    for piece in pieces:
        size_bytes += len(piece)
        for file in files:
            file.write(piece)
    for file in files:
        file.flush()
        os.fsync(file.fileno())
        file.close()
    return size_bytes


def compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Compress one stream as layers are compressed."""
    made = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compressobj()
    for piece in pieces:
        if data := made.compress(piece):
            yield data
    yield made.flush()


def decompressed(path: Path) -> bytes:
    """Return the content of a compressed file."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        content = io.BytesIO()
        while piece := reader.read(PIECE_BYTES):
            content.write(piece)
        return content.getvalue()


def _encoded(entities: Iterable[Entity]) -> Iterator[bytes]:
    parts: list[bytes] = []
    size_bytes = 0
    for kind, key, canonical in entities:
        parts += (_ENTRY.pack(kind, len(canonical), len(key)), key, canonical)
        size_bytes += len(key) + len(canonical)
        if size_bytes >= PIECE_BYTES:
            yield b"".join(parts)
            parts, size_bytes = [], 0
    yield b"".join(parts)


def _decoded(data: bytes) -> Iterator[Entity]:
    offset = 0
    while offset < len(data):
        kind, canonical_bytes, key_bytes = _ENTRY.unpack_from(data, offset)
        key_at = offset + _ENTRY.size
        canonical_at = key_at + key_bytes
        offset = canonical_at + canonical_bytes
        yield kind, data[key_at:canonical_at], data[canonical_at:offset]


def _tallied(entities: Iterable[Entity], tally: SectionTally) -> Iterator[Entity]:
    for kind, key, canonical in entities:
        tally.add((kind, key, None, canonical))
        yield kind, key, canonical


def measure(options: argparse.Namespace, directory: Path) -> dict[str, list[Figures]]:
    """Measure all forms at all rates, in turns."""
    rounds: dict[str, list[Figures]] = {}

    def add(name: str, work: Callable[[], Figures]) -> None:
        figures = work()
        rounds.setdefault(name, []).append(figures)
        tell(name, figures)

    forms = StateForms(options.topics, directory)
    add("layers_first", forms.layers)
    for _ in range(options.rounds):
        for rate in RATES:
            forms.change(rate)
            for form in ("layers", "entities", "rows"):
                add(f"{form}_{rate / 100:g}_percent", getattr(forms, form))
    chain_of_restart(forms)
    for _ in range(options.rounds):
        for form in ("layers", "entities", "rows"):
            add(f"load_{form}", getattr(forms, f"load_{form}"))
    forms.chain = [merged_base(forms)]
    add("load_base_alone", forms.load_layers)
    return rounds


def chain_of_restart(forms: StateForms) -> None:
    """Leave a base and some deltas, and the other forms of the same state."""
    forms.chain = [merged_base(forms)]
    for _ in range(DELTAS):
        forms.change(DELTA_RATE)
        forms.layers()
    forms.entities()
    forms.rows()


def merged_base(forms: StateForms) -> list[bytes]:
    """Return the blocks of a base of the present state, as compaction would make them."""
    entries = (SectionEntry(*entity) for entity in SECTION.entities(forms.machine.state))
    return [compress(raw).data for raw in raw_blocks(entries)]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_forms", description=__doc__)
    add = parser.add_argument
    add("--topics", type=int, default=TOPICS, help=f"topics of ten partitions (default {TOPICS})")
    add("--rounds", type=int, default=ROUNDS, help=f"how often each is measured ({ROUNDS})")
    add("--directory", type=Path, help="where to write (default: a temporary directory)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and return the result."""
    with tempfile.TemporaryDirectory(
        prefix="viewstamp-benchmark-", dir=options.directory
    ) as directory:
        rounds = measure(options, Path(directory))
    medians = {
        name: {
            key: sorted(each[key] for each in measured)[len(measured) // 2] for key in measured[0]
        }
        for name, measured in rounds.items()
    }
    return {
        "topics": options.topics,
        "partitions": options.topics * PARTITIONS_PER_TOPIC,
        "medians": medians,
        "rounds": rounds,
        "machine": this_machine(),
        "benchmark": portable(sys.orig_argv),
    }


def main() -> int:
    """Measure and print."""
    print(json.dumps(run(parse()), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
