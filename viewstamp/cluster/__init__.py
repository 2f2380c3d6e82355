"""A cluster on this machine: four supervised processes and one data directory."""

from __future__ import annotations

from viewstamp.cluster.errors import ClusterError, ClusterFailed, PreflightError
from viewstamp.cluster.local import LocalCluster
from viewstamp.cluster.process import Program

__all__ = ["LocalCluster", "Program", "ClusterError", "ClusterFailed", "PreflightError"]
