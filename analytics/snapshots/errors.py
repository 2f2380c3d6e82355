"""Errors for unreadable snapshots, and the warning for a copy that was passed over."""

from __future__ import annotations

from analytics.session import AnalyticsError


class SnapshotError(AnalyticsError):
    """A snapshot or an export cannot be read. The message names it, the reason and what to do."""


class NewerSnapshotError(SnapshotError):
    """Intact files of a format version that this program does not know."""


class SnapshotCopyWarning(UserWarning):
    """A copy of a file cannot be used; another copy was read in its place."""
