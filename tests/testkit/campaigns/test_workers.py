"""Processes that run seeds: none outlives its campaign."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

CAMPAIGN = """
import os, time
from testkit.campaigns.workers import pool

if __name__ == "__main__":
    with pool(1) as workers:
        pid = workers.submit(os.getpid).result()
        workers.submit(time.sleep, 3600)
        print(pid, flush=True)
"""
TIMEOUT_S = 60


def test_a_killed_campaign_leaves_nobody_behind(tmp_path: Path) -> None:
    """A worker in the middle of a seed ends when its campaign is killed."""
    script = tmp_path / "campaign.py"
    script.write_text(CAMPAIGN)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment
    ) as campaign:
        assert campaign.stdout is not None
        worker = psutil.Process(int(campaign.stdout.readline()))
        campaign.kill()

    _, alive = psutil.wait_procs([worker], timeout=TIMEOUT_S)

    assert alive == []
