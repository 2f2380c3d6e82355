"""The error of files that commands read without a cluster."""

from __future__ import annotations


class FilesError(Exception):
    """Files cannot be used: `reason` for programs, `message`, and what to do in `next_step`.

    `is_usage` says that the files are fine and the request was wrong.
    """

    reason = "BAD_FILES"
    is_usage = False

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
