"""Why no new cluster can be founded from what is left, each with the next step."""

from __future__ import annotations

from viewstamp.files_error import FilesError


class UnusableRemains(FilesError):  # noqa: N818 - reads as the sentence it is
    """Nothing can be made of what was given."""

    reason = "UNUSABLE_SOURCE"

    def __init__(self, message: str, next_step: str, *, is_usage: bool = False) -> None:
        super().__init__(message, next_step)
        self.is_usage = is_usage


class LogLacksEntries(FilesError):  # noqa: N818 - reads as the sentence it is
    """The log of the surviving replica has holes, or ends before what is known to be committed."""

    reason = "LOG_LACKS_ENTRIES"


class DirectoryInUseError(FilesError):
    """A process has the source in use."""

    reason = "DIRECTORY_IN_USE"
    is_usage = True


class TargetNotEmpty(FilesError):  # noqa: N818 - reads as the sentence it is
    """The directory of the new cluster exists and holds something."""

    reason = "TARGET_NOT_EMPTY"
    is_usage = True


class UnequalRestore(FilesError):  # noqa: N818 - reads as the sentence it is
    """What was written does not lead to the state that it was written from."""

    reason = "UNEQUAL_RESTORE"
