"""A process that does not belong to the cluster is refused with a reason, and does no harm."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.replicas import odd_coordinator
from tests.replicas.snapshotting import DEADLINE_S
from tests.replicas.trial import ReplicasTrial, agree, lead, trial, under_load
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.cluster import ClusterFailed, Program
from viewstamp.cluster.local import COORDINATOR

pytestmark = pytest.mark.long

OPERATIONS: Final = 50
ODD: Final = 2  # the replica that strangers replace
OTHER_CLUSTER: Final = "0123456789abcdef" * 2
MODULE: Final = "coordinator"


@dataclass(frozen=True)
class Stranger:
    """A foreign process in the place of a replica, with its difference.

    `link` is the state of the primary's link to it in the status; `said` is the reason of the
    refusal in its own log.
    """

    name: str
    link: str
    said: str
    flags: tuple[str, ...] = ()
    build: str = ""
    has_own_directory: bool = False


STRANGERS: Final = (
    Stranger(
        "of another cluster",
        "refused: other_cluster",
        "other_cluster",
        flags=("--cluster-id", OTHER_CLUSTER),
        has_own_directory=True,
    ),
    Stranger(
        "told of five replicas",
        "refused: other_replica_count",
        "other_replica_count",
        flags=("--replica-count", "5", "--peer", "3=127.0.0.1:1", "--peer", "4=127.0.0.1:1"),
        has_own_directory=True,
    ),
    Stranger(
        "with the id of another replica",
        "refused: wrong_addressee",
        "duplicate_replica",
        flags=("--replica-id", "1"),
        has_own_directory=True,
    ),
    Stranger("newer", "refused: other_wire_version", "other_wire_version", build="newer_wire"),
    Stranger("older", "refused: other_wire_version", "other_wire_version", build="older_wire"),
    Stranger(
        "with other limits",
        "refused: other_configuration",
        "other_configuration",
        build="other_limits",
    ),
)


class Place:
    """The process in the place of the replica: its own, or a stranger."""

    def __init__(self, directory: Path) -> None:
        self.stranger: Stranger | None = None
        self.build = ""
        self._directory = directory

    def adapt(self, replica: int, program: Program) -> Program:
        """Return the program that must run now."""
        if (replica, program.name) != (ODD, COORDINATOR):
            return program
        build = self.stranger.build if self.stranger else self.build
        words = list(program.command)
        if build:
            at = words.index(MODULE)
            words[at : at + 1] = [odd_coordinator.__name__, build]
        if self.stranger is not None:
            words += self.stranger.flags
            if self.stranger.has_own_directory:
                words += ["--data-directory", str(self.own_directory(self.stranger))]
                words += self._reachable(words)
        return replace(program, command=tuple(words))

    def own_directory(self, stranger: Stranger) -> Path:
        """Return the directory of a stranger, which is empty at first."""
        path = self._directory / stranger.name.replace(" ", "-")
        path.mkdir(exist_ok=True)
        return path

    def _reachable(self, words: list[str]) -> list[str]:
        """Return the address of the replaced replica, if the stranger has another id.

        A coordinator needs the addresses of all other replicas.
        """
        if self.stranger and "--replica-id" in self.stranger.flags:
            own = words[words.index("--peer-listen") + 1]
            return ["--peer", f"{ODD}={own}"]
        return []


async def test_strangers_are_refused(tmp_path: Path) -> None:
    """Status, alarm and log have the reason of a refusal; callers notice nothing."""
    place = Place(tmp_path)
    async with trial(tmp_path / "data", callers=2, adapt=place.adapt) as made:
        async with under_load(made):
            for stranger in STRANGERS:
                await lead(made, ODD, leads=False)
                await made.replicas.replicas[ODD].stop()
                place.stranger = stranger
                await made.replicas.replicas[ODD].start()
                await refused(made, stranger)
                await made.until_answered(OPERATIONS)
                await made.replicas.replicas[ODD].stop()
            place.stranger = None
            await made.replicas.replicas[ODD].start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_directory_of_strangers_is_refused(tmp_path: Path) -> None:
    """A directory of another cluster or replica is refused, and stays unchanged."""
    place = Place(tmp_path)
    async with trial(tmp_path / "data", callers=0, adapt=place.adapt) as made:
        odd = made.replicas.replicas[ODD]
        await odd.stop()
        before = content(odd.data_directory)
        for flags, says in (
            (("--cluster-id", OTHER_CLUSTER), "belongs to cluster [0-9a-f]{32}, not 0123"),
            (("--replica-id", "1", "--peer", f"{ODD}=127.0.0.1:1"), "belongs to replica 2, not 1"),
        ):
            place.stranger = Stranger("", "", "", flags=flags)
            await odd.start()
            with pytest.raises(ClusterFailed, match=says):
                await odd.wait_ready()
            await odd.stop()
        assert content(odd.data_directory) == before
        place.stranger = None
        await odd.start()
        await made.replicas.wait_ready()
        await agree(made)


@pytest.mark.exhaustive
async def test_corrupted_prepares_are_dropped(tmp_path: Path) -> None:
    """Prepares with a flipped bit are dropped, counted and sent again."""
    place = Place(tmp_path)
    place.build = odd_coordinator.corrupting.__name__
    async with trial(tmp_path / "data", callers=3, adapt=place.adapt) as made:
        async with under_load(made):
            await lead(made, ODD, leads=True)
            await made.until_answered(4 * OPERATIONS)
        await agree(made)
        for replica in range(ODD):
            dropped = logged(made, replica, "a peer's message was dropped")
            assert {line["rule"] for line in dropped} == {"corrupt_prepare"}


async def refused(made: ReplicasTrial, stranger: Stranger) -> None:
    """Wait until the status, the alarm and the stranger's log have the reason."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await made.admin.status()
            said = {
                line["refusal"]
                for line in logged(made, ODD, "link to peer changed", since_start=True)
            }
            if found.replicas[ODD].link == stranger.link and stranger.said in said:
                break
            await asyncio.sleep(0.1)
    alarms = [alarm for alarm in found.alarms if alarm.kind == cluster_pb2.ALARM_KIND_PEER_REFUSED]
    assert [f"replica {ODD} at" in alarm.message for alarm in alarms] == [True], stranger


def logged(
    made: ReplicasTrial, replica: int, message: str, *, since_start: bool = False
) -> list[dict[str, Any]]:
    """Return the fields of a replica's log lines whose message begins with the given one."""
    text = made.replicas.replicas[replica].log_path(COORDINATOR).read_text()
    if since_start:
        text = text.rpartition('"message": "directory opened"')[2]
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    return [line["fields"] for line in lines if line["message"].startswith(message)]


def content(directory: Path) -> dict[str, bytes]:
    """Return the files of the replica that must stay as they are."""
    names = ("superblock", "journal")
    paths = [path for name in names for path in (directory / name, *(directory / name).glob("*"))]
    return {str(path): path.read_bytes() for path in paths if path.is_file()}
