"""Clusters on this machine: four supervised processes, and a data directory, per replica."""

from __future__ import annotations

from viewstamp.cluster.errors import ClusterError, ClusterFailed, PreflightError, StartRefused
from viewstamp.cluster.local import LocalCluster
from viewstamp.cluster.passthrough_flags import check_passed_on
from viewstamp.cluster.process import Program
from viewstamp.cluster.replicas import LocalReplicas

__all__ = [
    "LocalCluster",
    "LocalReplicas",
    "Program",
    "check_passed_on",
    "ClusterError",
    "ClusterFailed",
    "StartRefused",
    "PreflightError",
]
