"""Where the console may listen, and what its cookie says with and without TLS."""

from __future__ import annotations

import argparse

import pytest

from coordinator.console.console_cookie import ConsoleCookie
from coordinator.console.settings import add_arguments, settings_of


def listening(*arguments: str) -> str | None:
    """Return where the console listens with some flags."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--tls-certificate")
    settings = settings_of(parser.parse_args(arguments))
    return None if settings is None else settings.listen


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:0", "127.9.9.9:7480", "localhost:7480", "[::1]:7480"]
)
def test_loopback_needs_no_tls(listen: str) -> None:
    """An address of this machine alone is served in clear text."""
    assert listening("--console-listen", listen) == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:7480", "[::]:7480", "10.0.0.1:7480", "example:7480"])
def test_other_addresses_need_tls_or_consent(listen: str) -> None:
    """Passwords cross no network in clear text unless somebody says so."""
    with pytest.raises(ValueError, match="clear text: give --tls-certificate and --tls-key"):
        listening("--console-listen", listen)
    assert listening("--console-listen", listen, "--console-plaintext") == listen
    assert listening("--console-listen", listen, "--tls-certificate", "a.pem") == listen


@pytest.mark.parametrize("listen", ["", "7480", ":7480", "host:", "host:a", "unix:7", "host:70000"])
def test_malformed_address_is_named(listen: str) -> None:
    """What is no HOST:PORT is refused with what would be one."""
    with pytest.raises(ValueError, match="give HOST:PORT"):
        listening(f"--console-listen={listen}")


def test_consent_without_a_console_is_refused() -> None:
    """A flag that would do nothing is not taken in silence; without flags there is no console."""
    assert listening() is None
    with pytest.raises(ValueError, match="give both, or neither"):
        listening("--console-plaintext")


def test_cookie_is_for_tls_alone_where_there_is_tls() -> None:
    """With TLS the browser sends the cookie to this host over TLS alone; replicas differ."""
    plain, secure = (ConsoleCookie(bytes(16), 1, has_tls) for has_tls in (False, True))
    assert "Secure" not in plain.setting("a", 5)
    assert secure.setting("a", 5).startswith("__Host-viewstamp-00000000-1=a; Path=/; HttpOnly;")
    assert secure.setting("a", 5).endswith("; Secure")
    assert ConsoleCookie(bytes(16), 2, has_tls=False).name != plain.name
