"""Generated passwords of imported users, kept in a file for its owner alone."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PASSWORD_RANDOM_BYTES: Final = 24


class PasswordFileError(Exception):
    """The password file cannot be read or written; the message says why."""


class PasswordFile:
    """A JSON object of usernames and passwords, mode 0600. Never printed, never logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def generate(self, usernames: Iterable[str]) -> dict[str, str]:
        """Return a new password for each user, on disk before anybody uses it.

        Users of earlier imports keep theirs in the file. Raises PasswordFileError.
        """
        passwords = {name: secrets.token_urlsafe(PASSWORD_RANDOM_BYTES) for name in usernames}
        if passwords:
            try:
                self._write({**self._read(), **passwords})
            except (OSError, ValueError) as error:
                raise PasswordFileError(f"passwords cannot be kept in {self.path}: {error}") from (
                    error
                )
        return passwords

    def _read(self) -> dict[str, str]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if not isinstance(kept, dict):
            raise ValueError("it must hold a JSON object of usernames and passwords")
        return kept

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
