"""The cookie that stands for a session, and the checks that a request comes from the page itself.

Browsers keep cookies by host and not by port, so the name tells replicas of one machine apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from coordinator.console.http_messages import JSON_TYPE, HttpRefused, HttpRequest

_SECRET_CHARACTERS_MAX: Final = 64
_SAME: Final = frozenset({"same-origin", "none"})


@dataclass(frozen=True, slots=True)
class ConsoleCookie:
    """Named by cluster and replica; with TLS, a browser sends it over TLS alone."""

    cluster_id: bytes
    replica_id: int
    has_tls: bool

    @property
    def name(self) -> str:
        """What the browser keeps it under."""
        prefix = "__Host-" if self.has_tls else ""
        return f"{prefix}viewstamp-{self.cluster_id.hex()[:8]}-{self.replica_id}"

    def secret_in(self, request: HttpRequest) -> str:
        """Return the secret that a request shows, empty for none."""
        for each in request.headers.get("cookie", "").split(";"):
            name, _, value = each.strip().partition("=")
            if name == self.name and len(value) <= _SECRET_CHARACTERS_MAX:
                return value
        return ""

    def setting(self, secret: str, lasts_s: int) -> str:
        """Return the header's value that has the browser keep a secret, or with 0 s forget it."""
        secure = "; Secure" if self.has_tls else ""
        attributes = f"Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts_s}{secure}"
        return f"{self.name}={secret}; {attributes}"


def check_from_page(request: HttpRequest) -> None:
    """Check that a request which changes a session was sent by the page. Raises HttpRefused.

    A page from elsewhere cannot send this type without being asked for, and its browser says where
    it is from.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON_TYPE:
        raise HttpRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {JSON_TYPE}")
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if not origin or urlsplit(origin).netloc.lower() != host.lower():
        raise HttpRefused(HTTPStatus.FORBIDDEN, "log in and out on the console's own page")
    check_same_site(request)


def check_same_site(request: HttpRequest) -> None:
    """Refuse what a browser says another site has asked for. Raises HttpRefused."""
    if request.headers.get("sec-fetch-site", "none") not in _SAME:
        raise HttpRefused(HTTPStatus.FORBIDDEN, "another site asks for this")
