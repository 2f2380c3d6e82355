"""Evidence about a cluster of three replicas with which nothing is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from viewstamp.doctor.evidence import DoctorEvidence, MetricSample

NOW_S: Final = 1_800_000_000.0
PAGE: Final = "a:9464"
DIRECTORY: Final = "data/replica-0"
PLACE: Final = "s3://bucket/cluster"


def moment(seconds_ago: float) -> str:
    """Return a time before now as the command line prints it."""
    return datetime.fromtimestamp(NOW_S - seconds_ago, UTC).isoformat()


def snapshot(generation: int, state: str = "completed", **changed: Any) -> dict[str, Any]:
    """Return a row of the catalog of snapshots."""
    row = {"generation": generation, "state": state, "created_at": moment(600)}
    return {**row, "cut_revision": 90, "failure": "", **changed}


def replica(own: int, number: int) -> dict[str, Any]:
    """Return what replica `own` tells of a replica."""
    return {
        "replica_id": number,
        "status": "normal",
        "role": "primary" if number == 0 else "backup",
        "address": f"{'abc'[number]}:7400",
        "link": "" if number == own else "connected",
        "lag": 0,
        "unfit": "",
        "feature_level_max": 8,
    }


def status(own: int) -> dict[str, Any]:
    """Return the status by replica `own`."""
    stages = ("users", "streams", "consumer_groups")
    return {
        "cluster": "c1",
        "primary": 0,
        "revision": 100,
        "feature_level": 8,
        "replicas": [replica(own, number) for number in range(3)],
        "services": [{"stage": stage, "connected": True} for stage in stages],
        "alarms": [],
    }


def samples() -> list[MetricSample]:
    """Return the numbers of a page that checks look at."""
    plain = {
        "viewstamp_build_info": ({"version": "0.1.0", "service": "coordinator"}, 1.0),
        "viewstamp_clock_offset_seconds": ({"replica": "1"}, -0.2),
        "viewstamp_certificate_expiry_timestamp_seconds": (
            {"flag": "--tls-certificate"},
            NOW_S + 40 * 86_400,
        ),
        "viewstamp_filesystem_size_bytes": ({"directory": "data"}, 100.0),
        "viewstamp_filesystem_free_bytes": ({"directory": "data"}, 60.0),
        "viewstamp_archive_lag_seconds": ({}, 9.0),
        "viewstamp_archive_gaps": ({}, 0.0),
        "process_open_fds": ({}, 60.0),
        "process_max_fds": ({}, 1000.0),
    }
    return [MetricSample(name, labels, value) for name, (labels, value) in plain.items()]


def healthy() -> DoctorEvidence:
    """Return such evidence."""
    files = {"cluster.key": "-rw-------", "root_password": "-rw-------", "superblock": "-rw-------"}
    evidence = DoctorEvidence(NOW_S, {"libraries": {"viewstamp": "0.1.0"}})
    evidence.statuses = {f"{'abc'[own]}:7400": status(own) for own in range(3)}
    evidence.snapshots = [snapshot(1)]
    evidence.certificate_ends_s = {"a:7400": NOW_S + 30 * 86_400}
    evidence.metrics = {PAGE: samples()}
    evidence.directories = {
        DIRECTORY: {
            "is_replica": True,
            "free_bytes": 50,
            "size_bytes": 100,
            "files": {name: {"mode": mode, "bytes": 1} for name, mode in files.items()},
            "process": {"pid": 1, "arguments": [], "variables": []},
        }
    }
    evidence.configurations = {"viewstamp.yaml": {"settings": [], "problems": []}}
    evidence.archives = {
        PLACE: {
            "unreadable": "",
            "cluster": "c1",
            "manifest": 9,
            "snapshots": 1,
            "gaps": [],
            "last_revision": 100,
            "last_time_s": NOW_S - 3600,
        }
    }
    evidence.logs = {"coordinator.log": '"level": "error"}\n{"level": "info", "message": "a"}\nb\n'}
    return evidence
