"""A short soak on real processes loses nothing, and finds a leak that was planted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testkit.soak.__main__ import EXIT_BROKEN, main
from testkit.soak.process_samples import RESIDENT
from viewstamp.limits import MIB

pytestmark = pytest.mark.long

# Percent per hour. A new process still takes memory in the first minutes, but not as fast as this.
LIMIT = 1_500
LEAK_BYTES_PER_S = 4 * MIB
FLAGS = (
    *("--hours", "0.05", "--round-seconds", "10", "--warm-up-minutes", "0.3"),
    *("--limit", str(LIMIT), "--plant-leak", str(LEAK_BYTES_PER_S)),
)


@pytest.mark.exhaustive
def test_a_planted_leak_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes die, nothing is lost, and the growth is found where it is and nowhere else."""
    record = tmp_path / "soak.json"
    code = main([*FLAGS, "--record", str(record), "--directory", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == EXIT_BROKEN
    assert not [text for text in found["findings"] if text.startswith("seed")]
    assert found["kills"] >= 1
    assert found["counts"]["offsets committed"] > 0
    memory = {
        one["process"]: one["verdict"] for one in found["growth"] if one["figure"] == RESIDENT
    }
    assert memory["coordinator of replica 0"] == "above the limit"
    assert {memory[f"{name} of replica 0"] for name in ("users", "streams", "consumer_groups")} <= {
        "below the limit",
        "not sure",
    }
    assert list(tmp_path.iterdir()) == [record]
