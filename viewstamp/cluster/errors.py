"""Why a local cluster cannot start or go on."""

from __future__ import annotations


class ClusterError(Exception):
    """The base class of the supervisor's errors."""


class PreflightError(ClusterError):
    """The environment does not allow a start; one line says what to change."""


class ClusterFailed(ClusterError):  # noqa: N818 - reads as the sentence it is
    """A process was given up, or not all became ready in time; the message ends with its log."""


class StartRefused(ClusterFailed):
    """A process refuses to start; its last line says what to change."""
