"""OTLP JSON lines as a cluster of ours would write them, for tests and for load.

    python -m testkit.generators.spans --spans 10000000 --seed 1 DIRECTORY

The same load (`SpanLoad`) gives the same bytes. Commands come from a few methods of very different
frequency; latencies have a long tail; every 16 commands share a prepare, whose trace links to them.
On demand clocks differ, commands fail, exporters retry, lines are cut, and other systems write
beside ours. One core makes several hundred thousand spans a second.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from testkit.generators.span_files import Files, Resource

COMMANDS_PER_PREPARE: Final = 16
PREPARES_PER_SNAPSHOT: Final = 1000
PREPARES_PER_VIEW: Final = 4000
REPLICAS: Final = 3
VIEW_CHANGE_NS: Final = 400_000_000

# 2026-11-20 00:00 UTC.
START_NS: Final = 1_795_132_800_000_000_000
SAMPLES: Final = 1 << 14

CLIENT: Final = "viewstamp-client"
COORDINATOR: Final = "viewstamp-coordinator"
INTERNAL_KIND, SERVER_KIND, CLIENT_KIND = 1, 2, 3
ERROR_STATUS: Final = '{"code":2,"message":"the service does not answer"}'


@dataclass(frozen=True, slots=True)
class SpanMethod:
    """A method: its service and name, the stages it visits, and how often it is called."""

    service: str
    name: str
    stages: tuple[str, ...]
    weight: int


METHODS: Final = (
    SpanMethod("ConsumerGroupsService", "JoinConsumerGroup", ("streams", "consumer_groups"), 60),
    SpanMethod("StreamsService", "CreateTopic", ("streams",), 25),
    SpanMethod("StreamsService", "DeleteTopic", ("streams", "consumer_groups", "users"), 8),
    SpanMethod("UsersService", "UpdatePermissions", ("streams", "users"), 5),
    SpanMethod("UsersService", "CreateUser", ("users", "streams"), 2),
)
# Mean time in nanoseconds of what a command goes through.
MEAN_NS: Final = {
    "network": 80_000,
    "queue": 60_000,
    "journal": 900_000,
    "replicate": 700_000,
    "commit": 20_000,
    "users": 150_000,
    "streams": 250_000,
    "consumer_groups": 400_000,
    "apply": 50_000,
}


@dataclass(frozen=True, slots=True)
class SpanLoad:
    """What to generate. Rates are parts of one; a rate of lines counts lines, not spans."""

    spans: int
    seed: int = 1
    commands_per_s: int = 1000
    error_rate: float = 0.01
    # How far the clock of the service `streams` is ahead of the others; negative: behind.
    skew_us: int = 0
    duplicate_line_rate: float = 0.0
    cut_line_rate: float = 0.0
    # Of the traces, so many are a web shop's, with none of our attributes.
    foreign_rate: float = 0.0
    spans_per_line: int = 256
    rotate_bytes: int = 100 * 1000 * 1000


@dataclass(frozen=True, slots=True)
class Generated:
    """Counts of the output: distinct spans, spans lost in cut lines, lines, files and bytes."""

    spans: int
    spans_cut: int
    spans_repeated: int
    lines: int
    lines_cut: int
    files: int
    size_bytes: int


def generate(directory: Path, load: SpanLoad) -> Generated:
    """Write the load below `<directory>/telemetry/<service>`, at least `load.spans` spans.

    The last trace is written to its end, so there may be some spans more than asked for.
    """
    writer = _Writer(directory, load)
    while writer.files.spans < load.spans:
        writer.prepare()
    return Generated(**dataclasses.asdict(writer.files.close()))


class _Writer:
    """Makes traces one prepare after the other; the order of its random draws is the format."""

    def __init__(self, directory: Path, load: SpanLoad) -> None:
        self._load = load
        self._random = random.Random(load.seed)
        self.files = Files(
            directory,
            self._random,
            load.spans_per_line,
            load.rotate_bytes,
            load.duplicate_line_rate,
            load.cut_line_rate,
        )
        self._samples = {name: self._tail(mean_ns) for name, mean_ns in MEAN_NS.items()}
        self._weights = list(accumulate(method.weight for method in METHODS))
        self._gap_ns = 1_000_000_000 // load.commands_per_s
        self._now_ns = START_NS
        self._op = 0
        self._revision = 0
        self._view = 1

    def prepare(self) -> None:
        """Write one prepare with its commands, and whatever else is due by then."""
        self._op += 1
        first_ns = self._now_ns
        links = []
        for _ in range(COMMANDS_PER_PREPARE):
            self._now_ns += int(self._random.random() * 2 * self._gap_ns)
            if self._random.random() < self._load.foreign_rate:
                self._foreign()
            else:
                links.append(self._command())
        self._prepare_span(first_ns, links)
        if self._op % PREPARES_PER_SNAPSHOT == 0:
            self._snapshot()
        if self._op % PREPARES_PER_VIEW == 0:
            self._view_change()

    def _command(self) -> str:
        """Write the trace of a command; return the link to it."""
        method = self._random.choices(METHODS, cum_weights=self._weights)[0]
        self._revision += 1
        trace, base = self._ids()
        is_failed = self._random.random() < self._load.error_rate
        common = _number("viewstamp.op", self._op) + ","
        common += _number("viewstamp.revision", self._revision)
        network_ns = self._draw("network")
        start_ns = self._now_ns + network_ns
        at_ns = self._logged(trace, base, start_ns, common)
        at_ns = self._stages(trace, base, method, at_ns, common, is_failed)
        end_ns = at_ns + self._draw("apply")
        number = 6 + 2 * len(method.stages)
        self._resource(COORDINATOR).append(
            _span(trace, base, number, 1, "apply", INTERNAL_KIND, at_ns, end_ns, common)
        )
        self._entry(trace, base, method, (start_ns, end_ns, network_ns), common, is_failed)
        return f'{{"traceId":"{trace}","spanId":"{base}0001"}}'

    def _logged(self, trace: str, base: str, start_ns: int, common: str) -> int:
        """Write a command's way through the log; return when the mux has it."""
        queued_ns = start_ns + self._draw("queue")
        # The write to the disk and the way to the backups begin together.
        written_ns = queued_ns + self._draw("journal")
        replicated_ns = queued_ns + self._draw("replicate")
        decided_ns = max(written_ns, replicated_ns)
        committed_ns = decided_ns + self._draw("commit")
        add = self._resource(COORDINATOR).append
        for number, name, from_ns, to_ns in (
            (2, "queue", start_ns, queued_ns),
            (3, "journal", queued_ns, written_ns),
            (4, "replicate", queued_ns, replicated_ns),
            (5, "commit", decided_ns, committed_ns),
        ):
            add(_span(trace, base, number, 1, name, INTERNAL_KIND, from_ns, to_ns, common))
        return committed_ns

    def _stages(
        self, trace: str, base: str, method: SpanMethod, at_ns: int, common: str, is_failed: bool
    ) -> int:
        """Write the stages of a command, each with its service's span; return their end."""
        add = self._resource(COORDINATOR).append
        for place, stage in enumerate(method.stages):
            way_ns, work_ns = self._draw("network") >> 1, self._draw(stage)
            # A failure is the last stage's, and what called it fails with it.
            is_here = is_failed and place == len(method.stages) - 1
            status = ERROR_STATUS if is_here else "{}"
            words = f"{common},{_text('viewstamp.stage', stage)}"
            number, end_ns = 6 + 2 * place, at_ns + work_ns + 2 * way_ns
            name = f"stage {stage}"
            add(_span(trace, base, number, 1, name, CLIENT_KIND, at_ns, end_ns, words, status))
            skew_ns = self._load.skew_us * 1000 if stage == "streams" else 0
            start_ns = at_ns + way_ns + skew_ns
            served = self._resource(f"viewstamp-{stage.replace('_', '-')}")
            served.append(
                _span(
                    trace, base, number + 1, number, f"apply {stage}", SERVER_KIND,
                    start_ns, start_ns + work_ns, words, status,
                )
            )  # fmt: skip
            at_ns = end_ns
        return at_ns

    def _entry(
        self,
        trace: str,
        base: str,
        method: SpanMethod,
        times_ns: tuple[int, int, int],
        common: str,
        is_failed: bool,
    ) -> None:
        """Write the spans of client and gateway: start, end and way between them in `times_ns`."""
        start_ns, end_ns, network_ns = times_ns
        name = f"{method.service}/{method.name}"
        words = (
            f"{_text('rpc.system', 'grpc')},{_text('rpc.service', method.service)},"
            f"{_text('rpc.method', method.name)},"
            f"{_number('viewstamp.user_id', self._random.getrandbits(6))},{common},"
        )
        status = ERROR_STATUS if is_failed else "{}"
        words += _text("viewstamp.outcome", "UNAVAILABLE" if is_failed else "ok")
        words += "," + _text("viewstamp.reason", "UNAVAILABLE") if is_failed else ""
        for resource, number, kind, way_ns in (
            (COORDINATOR, 1, SERVER_KIND, 0),
            (CLIENT, 0, CLIENT_KIND, network_ns),
        ):
            text = _span(
                trace, base, number, number - 1, name, kind,
                start_ns - way_ns, end_ns + way_ns, words, status,
            )  # fmt: skip
            self._resource(resource).append(text)

    def _prepare_span(self, first_ns: int, links: Sequence[str]) -> None:
        """Write the trace of a prepare, which links to its commands."""
        trace, base = self._ids()
        words = (
            f"{_number('viewstamp.op', self._op)},{_number('viewstamp.view', self._view)},"
            f"{_number('viewstamp.commands', len(links))},"
            f"{_number('viewstamp.bytes', 200 * len(links))}"
        )
        end_ns = self._now_ns + self._draw("journal")
        text = _span(trace, base, 0, -1, "prepare", INTERNAL_KIND, first_ns, end_ns, words)
        self._resource(COORDINATOR).append(f'{text[:-1]},"links":[{",".join(links)}]}}')

    def _snapshot(self) -> None:
        """Write the trace of a snapshot: its phases, one after the other."""
        trace, base = self._ids()
        at_ns = self._now_ns
        generation = self._op // PREPARES_PER_SNAPSHOT
        words = _number("viewstamp.generation", generation)
        add = self._resource(COORDINATOR).append
        sections = ("section users", "section streams", "section consumer_groups")
        names = ("cut", *sections, "manifest", "decide", "adopt", "compact streams")
        for number, name in enumerate(names, start=1):
            end_ns = at_ns + 20 * self._draw("journal")
            more = f"{words},{_number('viewstamp.bytes', 1000 * generation * number)},"
            more += _number("viewstamp.entities", 10 * generation * number)
            add(_span(trace, base, number, 0, name, INTERNAL_KIND, at_ns, end_ns, more))
            at_ns = end_ns
        add(_span(trace, base, 0, -1, "snapshot", INTERNAL_KIND, self._now_ns, at_ns, words))

    def _view_change(self) -> None:
        """Write a view change: nothing is served while it lasts, then another replica leads."""
        self._view += 1
        trace, base = self._ids()
        words = _number("viewstamp.view", self._view)
        start_ns, self._now_ns = self._now_ns, self._now_ns + VIEW_CHANGE_NS
        text = _span(
            trace, base, 0, -1, "view change", INTERNAL_KIND, start_ns, self._now_ns, words
        )
        self._resource(COORDINATOR).append(text)

    def _foreign(self) -> None:
        """Write a trace of another system: three services that call each other over HTTP."""
        trace, base = self._ids()
        at_ns, length_ns = self._now_ns, self._draw("journal") * 4
        words = (
            f"{_text('http.request.method', 'POST')},{_number('http.response.status_code', 200)}"
        )
        for number, name in enumerate(("shop", "cart", "payment")):
            start_ns, end_ns = at_ns + number * 1000, at_ns + length_ns - number * 1000
            kind = SERVER_KIND
            text = _span(trace, base, number, number - 1, "POST", kind, start_ns, end_ns, words)
            self.files.buffer(Resource(name, None)).append(text)

    def _resource(self, service: str) -> list[str]:
        """Return the buffer of a service; beside the primary, only the client writes."""
        replica = None if service == CLIENT else self._view % REPLICAS
        return self.files.buffer(Resource(service, replica))

    def _ids(self) -> tuple[str, str]:
        """Return a new trace id, and the beginning of its spans' ids."""
        bits = self._random.getrandbits(176) | 1
        return f"{bits >> 48 | 1 << 127:032x}", f"{bits & (1 << 48) - 1:012x}"

    def _draw(self, name: str) -> int:
        """Return a random time in nanoseconds for one part of a command's way."""
        return self._samples[name][self._random.getrandbits(14)]

    def _tail(self, mean_ns: int) -> list[int]:
        """Return times that are log-normal, one in a hundred of them ten times as long."""
        sigma = 0.5
        times = (
            self._random.lognormvariate(math.log(mean_ns) - sigma**2 / 2, sigma)
            for _ in range(SAMPLES)
        )
        return [int(time * (10 if number % 100 == 0 else 1)) for number, time in enumerate(times)]


def _span(
    trace: str, base: str, number: int, parent: int, name: str, kind: int,
    start_ns: int, end_ns: int, attributes: str, status: str = "{}",
) -> str:  # fmt: skip
    """Return a span as OTLP JSON; its id is `base` and its number, a parent of -1 is none."""
    parent_id = f"{base}{parent:04x}" if parent >= 0 else ""
    return (
        f'{{"traceId":"{trace}","spanId":"{base}{number:04x}","parentSpanId":"{parent_id}",'
        f'"flags":257,"name":"{name}","kind":{kind},"startTimeUnixNano":"{start_ns}",'
        f'"endTimeUnixNano":"{end_ns}","attributes":[{attributes}],"status":{status}}}'
    )


def _number(key: str, value: int) -> str:
    """Return an attribute that is a whole number; OTLP has 64-bit ones in quotes."""
    return f'{{"key":"{key}","value":{{"intValue":"{value}"}}}}'


def _text(key: str, value: str) -> str:
    """Return an attribute that is text without anything that JSON would escape."""
    return f'{{"key":"{key}","value":{{"stringValue":"{value}"}}}}'


def main(arguments: Sequence[str]) -> int:
    """Generate what the arguments say; print what was written."""
    parser = argparse.ArgumentParser(prog="testkit.generators.spans", description=__doc__)
    parser.add_argument("directory", type=Path)
    for field in dataclasses.fields(SpanLoad):
        kind = float if field.type == "float" else int
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, required=required, default=default)
    options = vars(parser.parse_args(arguments))
    done = generate(options.pop("directory"), SpanLoad(**options))
    sys.stdout.write(f"{done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
