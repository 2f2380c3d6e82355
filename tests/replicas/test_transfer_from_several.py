"""A snapshot of real replicas comes from both others at once, as fast as these may send."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.replicas.snapshotting import (
    ARGUMENTS,
    FILLER,
    empty,
    many_topics,
    several_generations,
    transfers,
)
from tests.replicas.test_metrics_of_replicas import fetched, pages
from tests.replicas.trial import agree, trial_of, under_load
from viewstamp.cluster import LocalReplicas
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import MIB
from viewstamp.telemetry.settings import TelemetrySettings

pytestmark = pytest.mark.long

OPERATIONS: Final = 50
# A layer of more than 7 MiB, which is fetched in three parts.
TOPIC_REQUESTS: Final = 13
BYTES_PER_S: Final = 8 * MIB


async def test_a_lost_disk_is_made_good_by_both_others(tmp_path: Path) -> None:
    """Both others have sent parts of the large layer, by their own counters and by what came."""
    made = LocalReplicas(
        tmp_path / "data",
        3,
        "127.0.0.1:0",
        telemetry=TelemetrySettings(metrics_listen="127.0.0.1:0"),
        service_arguments=["--metrics-listen=127.0.0.1:0"],
        coordinator_arguments=[*ARGUMENTS, f"--peer-snapshot-bytes-per-s={BYTES_PER_S}"],
    )
    async with trial_of(made) as running:
        await running.admin.users.create(FILLER, "a password of a filler")
        await many_topics(running.admin, TOPIC_REQUESTS)
        async with under_load(running):
            await running.until_answered(OPERATIONS)
            primary = await running.primary()
            lost = (primary + 1) % 3
            await made.replicas[lost].stop()
            empty(made.replica_directory(lost))
            await several_generations(running)
            await made.replicas[lost].start()
            await made.wait_ready()
            await running.until_answered(OPERATIONS)
        await agree(running)
        (done,) = transfers(running, lost)
        print(f"state transfer from both: {done}")
        sent = {
            number: sent_to(lost, fetched(pages(made)[f"{number} {COORDINATOR}"]))
            for number in range(3)
            if number != lost
        }
    came = {int(number): count for number, count in done["fetched_from"].items()}
    assert came.keys() == sent.keys()
    assert min(came.values()) > 2 * MIB
    # What was on its way when a fetch ended counts as sent.
    assert all(sent[number] >= came[number] for number in came), (sent, came)


def sent_to(replica: int, page: str) -> float:
    """Return how many bytes of snapshots a replica was sent, by a page of metrics."""
    name = f'viewstamp_peer_snapshot_bytes_total{{replica="{replica}"}} '
    (line,) = [each for each in page.splitlines() if each.startswith(name)]
    return float(line.removeprefix(name))
