"""Passwords of new users, kept in a file for its owner alone."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.names import check_length

PASSWORD_RANDOM_BYTES: Final = 24


class PasswordFileError(Exception):
    """The password file cannot be read or written; the message says why."""


class PasswordFile:
    """A JSON object of usernames and passwords, mode 0600. Never printed, never logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def passwords_for(self, usernames: Iterable[str]) -> dict[str, str]:
        """Return the password of each user: the one in the file, else a new one.

        New ones are on disk before anybody uses them. Raises PasswordFileError.
        """
        names = list(usernames)
        if not names:
            return {}
        try:
            kept = self._read()
            new = {name: secrets.token_urlsafe(PASSWORD_RANDOM_BYTES) for name in names}
            passwords = {**new, **{name: kept[name] for name in names if name in kept}}
            self._check(passwords)
            if not kept.keys() >= passwords.keys():
                self._write({**kept, **passwords})
        except (OSError, ValueError) as error:
            raise PasswordFileError(f"passwords cannot be kept in {self.path}: {error}") from error
        return passwords

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if not isinstance(kept, dict):
            raise ValueError("it must hold a JSON object of usernames and passwords")
        return kept

    def _check(self, passwords: dict[str, Any]) -> None:
        """Raise ValueError for what the cluster would refuse, without the password."""
        for name, password in passwords.items():
            if not isinstance(password, str):
                raise ValueError(f"the password of {name} must be text")
            try:
                check_length(
                    password,
                    reason=Reason.REASON_INVALID_PASSWORD,
                    bytes_min=limits.PASSWORD_BYTES_MIN,
                    bytes_max=limits.PASSWORD_BYTES_MAX,
                )
            except Refusal as refusal:
                raise ValueError(f"that of {name} is of no use: {refusal.message}") from refusal

    def _write(self, passwords: dict[str, str]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(passwords, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
