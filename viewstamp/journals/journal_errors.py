"""Errors of a journal that cannot be read, each with a reason and the next step."""

from __future__ import annotations

from viewstamp.files_error import FilesError


class JournalFilesError(FilesError):
    """Nothing can be read of a journal."""

    reason = "BAD_JOURNAL"


class NoJournal(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """The directory holds no journal."""

    reason = "NO_JOURNAL"
    is_usage = True


class RingNotRead(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """The journal is a ring, which only its replica reads."""

    reason = "RING_JOURNAL"
    is_usage = True


class NewerJournal(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """The files are intact, and of a format that this build does not know."""

    reason = "NEWER_FORMAT"


class UnknownMethod(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """No command has this name."""

    reason = "UNKNOWN_METHOD"
    is_usage = True
