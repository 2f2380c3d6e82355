"""Access tokens of earlier logins, by address, in a file that only its owner may read."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

DIRECTORY_MODE: Final = 0o700
FILE_NAME: Final = "tokens.json"


@dataclass(frozen=True, slots=True)
class StoredToken:
    """One login. `expires_at` is in microseconds since 1970."""

    access_token: str
    username: str
    expires_at: int


class TokenStore:
    """The logins in $XDG_CONFIG_HOME/viewstamp/tokens.json (~/.config if that is not set)."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CONFIG_HOME")
        root = Path(base) if base else Path.home() / ".config"
        self.path = root / "viewstamp" / FILE_NAME

    def get(self, address: str) -> StoredToken | None:
        """Return the login at an address, if any. Raises ValueError if the file is damaged."""
        entry = self._load().get(address)
        return StoredToken(**entry) if entry is not None else None

    def put(self, address: str, token: StoredToken) -> None:
        """Keep a login, in place of an earlier one at that address."""
        self._save({**self._load(), address: asdict(token)})

    def remove(self, address: str) -> bool:
        """Forget the login at an address; return whether there was one."""
        entries = self._load()
        if address not in entries:
            return False
        del entries[address]
        self._save(entries)
        return True

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            entries = json.loads(self.path.read_text())
            for entry in entries.values():
                StoredToken(**entry)
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} is damaged: delete it and log in again") from error
        return dict(entries)

    def _save(self, entries: dict[str, dict[str, Any]]) -> None:
        self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        # mkstemp creates the file with mode 0600, and the rename never shows half of it.
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".tokens-")
        try:
            with open(descriptor, "w") as file:
                json.dump(entries, file, indent=2)
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
