"""The files of the generator: lines gathered for each resource, rotated, repeated, cut."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

NAME: Final = "traces.jsonl"
SCOPE: Final = '"scope":{"name":"viewstamp.generator","version":"1"}'
CLUSTER_ID: Final = "5eed0000000000000000000000000001"
# A retry comes a few lines after the export that it repeats.
RETRY_LINES: Final = 3


class Resource(NamedTuple):
    """The writer of spans: a service, and the number of its replica; None outside the cluster."""

    service: str
    replica: int | None


@dataclass(slots=True)
class WrittenSpans:
    """The content of the files so far; the fields of `generate.Generated`."""

    spans: int = 0
    spans_cut: int = 0
    spans_repeated: int = 0
    lines: int = 0
    lines_cut: int = 0
    files: int = 0
    size_bytes: int = 0


class Files:
    """One growing file for each service, with one line for so many spans of a resource."""

    def __init__(
        self,
        directory: Path,
        source: random.Random,
        spans_per_line: int,
        rotate_bytes: int,
        duplicate_rate: float,
        cut_rate: float,
    ) -> None:
        """Write below the directory; `source` decides which lines are repeated or cut."""
        self._directory = directory
        self._random = source
        self._spans_per_line = spans_per_line
        self._rotate_bytes = rotate_bytes
        self._duplicate_rate = duplicate_rate
        self._cut_rate = cut_rate
        self._buffers: dict[Resource, list[str]] = {}
        self._open: dict[str, BinaryIO] = {}
        self._retries: deque[tuple[int, Resource, str, int]] = deque()
        self._written = WrittenSpans()

    @property
    def spans(self) -> int:
        """Return how many distinct spans there are by now, in files and in buffers."""
        return self._written.spans + sum(map(len, self._buffers.values()))

    def buffer(self, resource: Resource) -> list[str]:
        """Return where the next spans of the resource go; a full buffer is written before."""
        buffer = self._buffers.setdefault(resource, [])
        if len(buffer) >= self._spans_per_line:
            self._flush(resource, buffer)
        return buffer

    def close(self) -> WrittenSpans:
        """Write what is left, close the files, and return what was written."""
        for resource, buffer in self._buffers.items():
            if buffer:
                self._flush(resource, buffer)
        while self._retries:
            self._retry()
        for file in self._open.values():
            file.close()
        return self._written

    def _flush(self, resource: Resource, buffer: list[str]) -> None:
        """Write the buffer as one line, perhaps cut, perhaps to be repeated later."""
        count = len(buffer)
        line = _line(resource, buffer)
        buffer.clear()
        self._written.spans += count
        if self._cut_rate and self._random.random() < self._cut_rate:
            line = line[: self._random.randrange(1, len(line))]
            self._written.spans_cut += count
            self._written.lines_cut += 1
        elif self._duplicate_rate and self._random.random() < self._duplicate_rate:
            due = self._written.lines + RETRY_LINES
            self._retries.append((due, resource, line, count))
        self._write(resource.service, line)
        if self._retries and self._retries[0][0] <= self._written.lines:
            self._retry()

    def _retry(self) -> None:
        """Write again the oldest line that has to be repeated."""
        _, resource, line, count = self._retries.popleft()
        self._written.spans_repeated += count
        self._write(resource.service, line)

    def _write(self, service: str, line: str) -> None:
        """Append the line to the service's file, which is rotated when it is full."""
        data = line.encode() + b"\n"
        file = self._open.get(service)
        if file is not None and file.tell() + len(data) > self._rotate_bytes:
            file.close()
            path = self._directory / "telemetry" / service
            number = len(list(path.iterdir()))
            (path / NAME).rename(path / f"traces-20261120T{number:06}Z.jsonl")
            file = None
        if file is None:
            file = self._open[service] = self._create(service)
        file.write(data)
        self._written.lines += 1
        self._written.size_bytes += len(data)

    def _create(self, service: str) -> BinaryIO:
        """Return a new, empty file of the service. Raises FileExistsError if there is one."""
        path = self._directory / "telemetry" / service
        path.mkdir(parents=True, exist_ok=True)
        self._written.files += 1
        return (path / NAME).open("xb")


def _line(resource: Resource, spans: list[str]) -> str:
    """Return the spans of a resource as one line of OTLP JSON."""
    service, replica = resource
    about = {"service.name": service}
    if replica is not None:
        about |= {
            "service.instance.id": f"{service}-{replica}",
            "viewstamp.cluster_id": CLUSTER_ID,
            "viewstamp.replica_id": str(replica),
        }
    attributes = ",".join(
        f'{{"key":"{key}","value":{{"stringValue":"{value}"}}}}' for key, value in about.items()
    )
    return (
        f'{{"resourceSpans":[{{"resource":{{"attributes":[{attributes}]}},'
        f'"scopeSpans":[{{{SCOPE},"spans":[{",".join(spans)}]}}]}}]}}'
    )
