"""The example of brokers keeps its promises, and its judge finds each that is broken."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, cast

import pytest

from examples.broker.broker import ExampleBroker
from examples.broker.follower import Replica
from examples.broker.judging import Judgement
from tests.tidy.tree import ROOT
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client, TimedOut
from viewstamp.client.broker_replicas import HeldReplica, TopicPartition
from viewstamp.client.broker_session import BrokerSession
from viewstamp.errors import Refusal

LIMIT_S: Final = 180
# Two messages of partition 0, in epochs 5 and 7.
LOG: Final = [[5, "a"], [7, "b"]]
LEADERS: Final = [
    {"broker": 1, "leads": 0, "epoch": 5},
    {"broker": 2, "leads": 0, "epoch": 7},
]
FIRST: Final[list[dict[str, Any]]] = [
    {"owns": 0, "at_s": 1.0},
    {"partition": 0, "offset": 0, "text": "a"},
    {"gave_up": 0, "at_s": 2.0},
]
SECOND: Final[list[dict[str, Any]]] = [
    {"owns": 0, "at_s": 3.0},
    {"partition": 0, "offset": 0, "text": "a"},
    {"partition": 0, "offset": 1, "text": "b"},
]


def faults(
    directory: Path,
    *,
    acknowledged: dict[int, str] | None = None,
    log: list[list[Any]] | None = None,
    leaders: list[dict[str, Any]] | None = None,
    second: list[dict[str, Any]] | None = None,
) -> str:
    """Return what the judge says of a run that was in order, but for what is given."""
    for name, lines in (("one", LOG), ("two", LOG if log is None else log)):
        (directory / name).mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / name / "1-1-0.log").write_text(text)
    judge = Judgement(directory)
    told = acknowledged or {0: "a", 1: "b"}
    judge.acknowledged.update({(0, offset): text for offset, text in told.items()})
    judge.judge([FIRST, SECOND if second is None else second], leaders or LEADERS)
    return "\n".join(judge.faults)


def test_a_run_in_order_has_no_faults(tmp_path: Path) -> None:
    """What was read twice, and what was moved between brokers and consumers, is no fault."""
    assert faults(tmp_path) == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"acknowledged": {2: "c"}}, "(0, 2) was lost"),
        ({"acknowledged": {0: "x"}}, "different messages were read or acknowledged at (0, 0)"),
        ({"second": [{"partition": 0, "offset": 0, "text": "x"}]}, "different messages"),
        ({"log": [[5, "a"]]}, "a file of partition 0 lacks messages"),
        ({"log": [[7, "a"], [5, "b"]]}, "the epochs of partition 0 go back"),
        ({"log": [[5, "a"], [6, "b"]]}, "nobody led partition 0 in epoch 6"),
        ({"leaders": [*LEADERS, {"broker": 3, "leads": 0, "epoch": 7}]}, "brokers [2, 3] led"),
        ({"second": [{"owns": 0, "at_s": 1.5}, *SECOND[1:]]}, "two consumers owned partition 0"),
    ],
)
def test_each_broken_promise_is_found(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    """What was lost, changed, led twice or owned twice is named."""
    assert says in faults(tmp_path, **given)


@pytest.mark.exhaustive
def test_nothing_is_lost_when_a_broker_and_the_primary_die() -> None:
    """Brokers and consumers keep every promise while both are killed, and the broker comes back."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.broker.run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.endswith("every promise was kept\n"), done.stdout + done.stderr
    assert done.returncode == 0


PLACE: Final = TopicPartition(1, 2, 0)


class LateSession:
    """A session that leads alone, and learns late that its follower was put in sync."""

    broker_id = 1

    def __init__(self) -> None:
        self.epoch = 5
        self.replicas = {PLACE: HeldReplica(1, 5, (1, 2), (1,))}
        self.answers: list[Exception] = [
            TimedOut("no answer"),
            Refusal(Reason.REASON_NOT_LEADER, "it has not seen what was decided"),
        ]
        self.asked = asyncio.Event()

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the epoch that it has seen."""
        return self.epoch

    async def update_in_sync(self, partition: TopicPartition, in_sync: tuple[int, ...]) -> None:
        """Give no answer, and then only refusals."""
        if len(self.answers) == 1:
            self.asked.set()
        raise self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_a_leader_acknowledges_nothing_without_whom_it_may_have_added(tmp_path: Path) -> None:
    """An addition whose outcome is not known holds all writes until a new epoch is seen."""
    session = LateSession()
    broker = ExampleBroker(cast(Client, None), cast(BrokerSession, session), tmp_path)
    place, fetch = list(PLACE), {"do": "fetch", "by": 2, "from": 0, "last": 0}
    broker.replicas[PLACE] = Replica(tmp_path / "log")
    fetching = asyncio.ensure_future(broker.answer({**fetch, "place": place, "epoch": 5}))
    await session.asked.wait()
    writing = asyncio.ensure_future(broker.answer({"do": "append", "place": place, "text": "a"}))
    await asyncio.sleep(0)
    session.epoch, session.replicas = 6, {PLACE: HeldReplica(1, 6, (1, 2), (1, 2))}
    await asyncio.gather(fetching, return_exceptions=True)
    await asyncio.sleep(0)
    assert not writing.done(), "the follower has not fetched in the new epoch"
    await broker.answer({**fetch, "place": place, "epoch": 6})
    await broker.answer({**fetch, "place": place, "epoch": 6, "from": 1, "last": 6})
    assert await writing == {"offset": 0}


class CalmSession:
    """A session that leads everything, and in which nothing changes."""

    broker_id = 1
    stamp = None

    def __init__(self) -> None:
        self.replicas: dict[TopicPartition, HeldReplica] = {}

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return that it leads."""
        return 5

    def __aiter__(self) -> CalmSession:
        return self

    async def __anext__(self) -> None:
        await asyncio.Event().wait()


class GrowingTopics:
    """Topics of a cluster that places one more partition at the broker during its first report."""

    def __init__(self) -> None:
        self.topics = self
        self.broker: ExampleBroker | None = None
        self.reported: list[int] = []
        self.all_reported = asyncio.Event()

    async def report_partition_ends(
        self, stream_id: int, topic_id: int, ends: dict[int, int], *, broker: object
    ) -> None:
        """Note the partition, and place the next one."""
        assert self.broker is not None
        first = self.broker.replicas[PLACE]
        self.broker.replicas.setdefault(TopicPartition(1, 2, 1), first)
        self.reported += ends
        first.committed += 1
        if {0, 1} <= {*self.reported}:
            self.all_reported.set()


async def test_partitions_may_come_while_a_report_is_on_its_way(tmp_path: Path) -> None:
    """The broker goes on, and reports the end of the new partition, too."""
    topics = GrowingTopics()
    client, session = cast(Client, topics), cast(BrokerSession, CalmSession())
    broker = topics.broker = ExampleBroker(client, session, tmp_path)
    broker.replicas[PLACE] = Replica(tmp_path / "log")
    broker.replicas[PLACE].committed = 1
    running = asyncio.ensure_future(broker.run())
    reporting = asyncio.ensure_future(topics.all_reported.wait())
    done, _ = await asyncio.wait([running, reporting], return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    reporting.cancel()
    await asyncio.gather(running, reporting, return_exceptions=True)
    assert done == {reporting}
