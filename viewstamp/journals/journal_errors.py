"""Errors of a journal that cannot be read, each with a reason and the next step."""

from __future__ import annotations


class JournalFilesError(Exception):
    """Nothing can be read: `reason` for programs, `message`, and what to do in `next_step`.

    `is_usage` says that the request was wrong.
    """

    reason = "BAD_JOURNAL"
    is_usage = False

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class NoJournal(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """The directory holds no journal."""

    reason = "NO_JOURNAL"
    is_usage = True


class NewerJournal(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """The files are intact, and of a format that this build does not know."""

    reason = "NEWER_FORMAT"


class UnknownMethod(JournalFilesError):  # noqa: N818 - reads as the sentence it is
    """No command has this name."""

    reason = "UNKNOWN_METHOD"
    is_usage = True
