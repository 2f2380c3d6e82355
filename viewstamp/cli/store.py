"""Earlier logins, by cluster, in a file that only its owner may read.

A login belongs to a cluster. Each address of a login leads to it, however the list of replicas is
written. Another address gets no token, because anybody may listen there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from viewstamp.cli.private_files import private_path, write_private

FILE_NAME: Final = "tokens.json"
# Names of this machine: a login at one of them counts at all of them.
LOOPBACK: Final = "127.0.0.1"
LOOPBACK_NAMES: Final = frozenset(("localhost", "[::1]", LOOPBACK))


@dataclass(frozen=True, slots=True)
class StoredToken:
    """One login. `expires_at` is in microseconds since 1970; `tls_ca` is a path or None."""

    access_token: str
    username: str
    expires_at: int
    tls_ca: str | None = None


@dataclass(slots=True)
class _Kept:
    """The content of the file: logins by cluster id (hexadecimal), cluster ids by address."""

    logins: dict[str, StoredToken] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def cluster_of(self, addresses: Iterable[str]) -> str | None:
        """Return the cluster of the first address with a login."""
        known = (self.addresses.get(_canonical(address)) for address in addresses)
        return next((cluster for cluster in known if cluster in self.logins), None)


class TokenStore:
    """The logins in $XDG_CONFIG_HOME/viewstamp/tokens.json (~/.config if that is not set)."""

    def __init__(self) -> None:
        self.path = private_path(FILE_NAME)

    def get(self, addresses: Iterable[str]) -> StoredToken | None:
        """Return the login at the cluster of these addresses, if any.

        Raises ValueError if the file is damaged.
        """
        kept = self._load()
        cluster = kept.cluster_of(addresses)
        return kept.logins[cluster] if cluster is not None else None

    def put(self, addresses: Iterable[str], cluster: str, token: StoredToken) -> None:
        """Keep a login at a cluster instead of an earlier one, and add these addresses to it."""
        kept = self._load()
        kept.logins[cluster] = token
        kept.addresses |= dict.fromkeys(map(_canonical, addresses), cluster)
        self._save(kept)

    def remove(self, addresses: Iterable[str]) -> bool:
        """Forget the login at the cluster of these addresses; return whether there was one."""
        kept = self._load()
        cluster = kept.cluster_of(addresses)
        if cluster is None:
            return False
        del kept.logins[cluster]
        kept.addresses = {at: other for at, other in kept.addresses.items() if other != cluster}
        self._save(kept)
        return True

    def _load(self) -> _Kept:
        try:
            document = json.loads(self.path.read_text())
            logins = {cluster: StoredToken(**kept) for cluster, kept in document["logins"].items()}
            return _Kept(logins, dict(document["addresses"]))
        except FileNotFoundError:
            return _Kept()
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            text = "is damaged, or of an earlier version: delete it and log in again"
            raise ValueError(f"{self.path} {text}") from error

    def _save(self, kept: _Kept) -> None:
        write_private(self.path, _document(kept))


def _document(kept: _Kept) -> dict[str, Any]:
    return {"logins": {c: asdict(t) for c, t in kept.logins.items()}, "addresses": kept.addresses}


def _canonical(address: str) -> str:
    host, separator, port = address.lower().rpartition(":")
    return f"{LOOPBACK if host in LOOPBACK_NAMES else host}{separator}{port}"
