"""What has to hold after all that was done to brokers, consumers and the cluster."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

# What a program has printed.
Lines = Sequence[dict[str, Any]]


class Judgement:
    """Compares what was acknowledged with what was read and stored.

    `acknowledged` are texts by partition and offset. `faults` is empty if all is well.
    """

    def __init__(self, directory: Path) -> None:
        self.acknowledged: dict[tuple[int, int], str] = {}
        self.faults: list[str] = []
        self._directory = directory
        self._counts: dict[str, int] = {}

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self._counts.items())
        return "\n".join([counts, *(self.faults or ["every promise was kept"])])

    def is_read(self, consumers: Sequence[Lines]) -> bool:
        """Whether consumers have read all that was acknowledged."""
        return self.acknowledged.keys() <= _read(consumers).keys()

    def judge(self, consumers: Sequence[Lines], brokers: Lines) -> None:
        """Look for faults in what consumers and brokers have printed and stored."""
        self._check_texts(consumers)
        self._check_files(self._check_leaders(brokers))
        self._check_owners(consumers)

    def _check_texts(self, consumers: Sequence[Lines]) -> None:
        """Everybody has read the same at an offset, and what was acknowledged there."""
        found = _read(consumers)
        self._counts["messages acknowledged"] = len(self.acknowledged)
        for place, texts in found.items():
            if len(texts | {self.acknowledged.get(place, min(texts))}) > 1:
                self.faults.append(f"different messages were read or acknowledged at {place}")
        self.faults += [f"{place} was lost" for place in self.acknowledged.keys() - found.keys()]

    def _check_leaders(self, brokers: Lines) -> set[tuple[int, int]]:
        """An epoch of a partition has one leader; return the epochs by partition."""
        leaders: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for line in brokers:
            leaders[line["leads"], line["epoch"]].add(line["broker"])
        self._counts["epochs of leaders"] = len(leaders)
        for place, found in leaders.items():
            if len(found) > 1:
                self.faults.append(f"brokers {sorted(found)} led partition and epoch {place}")
        return set(leaders)

    def _check_files(self, epochs: set[tuple[int, int]]) -> None:
        """The replicas are equal, and have what was acknowledged, written by leaders in turn."""
        files: defaultdict[int, list[Path]] = defaultdict(list)
        for path in sorted(self._directory.glob("*/*-*-*.log")):
            files[int(path.stem.rpartition("-")[2])].append(path)
        self._counts["files"] = sum(map(len, files.values()))
        for partition, paths in files.items():
            logs = [[json.loads(line) for line in path.open()] for path in paths]
            acknowledged = {o: text for (p, o), text in self.acknowledged.items() if p == partition}
            for log in logs:
                if any(len(log) <= o or log[o][1] != text for o, text in acknowledged.items()):
                    self.faults.append(f"a file of partition {partition} lacks messages")
                if any(a > b for (a, _), (b, _) in pairwise(log)):
                    self.faults.append(f"the epochs of partition {partition} go back")
                self.faults += [
                    f"nobody led partition {partition} in epoch {epoch}, and wrote in it"
                    for epoch in sorted({epoch for epoch, _ in log})
                    if (partition, epoch) not in epochs
                ]

    def _check_owners(self, consumers: Sequence[Lines]) -> None:
        """A consumer begins with a partition after the one before has given it up."""
        events = sorted(
            (line["at_s"], "owns" in line, line["owns" if "owns" in line else "gave_up"], consumer)
            for consumer, lines in enumerate(consumers)
            for line in lines
            if "at_s" in line
        )
        owners: dict[int, int] = {}
        self._counts["changes of owners"] = len(events)
        for _, is_begin, partition, consumer in events:
            if not is_begin:
                owners.pop(partition, None)
            elif owners.setdefault(partition, consumer) != consumer:
                self.faults.append(f"two consumers owned partition {partition}")


def _read(consumers: Sequence[Lines]) -> dict[tuple[int, int], set[str]]:
    """Return the texts that were read, by partition and offset."""
    found: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for lines in consumers:
        for line in lines:
            if "text" in line:
                found[line["partition"], line["offset"]].add(line["text"])
    return found
