"""The file of logins: by cluster, and found by any address that one was made at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.certificates import self_signed
from viewstamp.cli.session import as_logged_in
from viewstamp.cli.settings import Settings
from viewstamp.cli.store import StoredToken, TokenStore

FIRST = StoredToken("first", "root", 1, "/etc/authority.pem")
SECOND = StoredToken("second", "root", 2)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenStore:
    """An empty store."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return TokenStore()


def test_a_login_replaces_the_one_before_at_every_address(store: TokenStore) -> None:
    """A cluster has one login, whichever of its addresses it was made at."""
    store.put(["a:1", "b:1"], "c1", FIRST)
    store.put(["b:1"], "c1", SECOND)
    assert store.get(["a:1"]) == store.get(["x:1", "b:1"]) == SECOND
    assert store.get(["x:1"]) is None
    assert store.remove(["b:1"]) and not store.remove(["b:1"])
    assert store.get(["a:1"]) is None


def test_an_address_goes_over_to_another_cluster(store: TokenStore) -> None:
    """A new cluster's login replaces the old one at its address; the old one stays at its
    others."""
    store.put(["a:1", "b:1"], "c1", FIRST)
    store.put(["a:1"], "c2", SECOND)
    assert store.get(["a:1"]) == SECOND
    assert store.get(["b:1"]) == FIRST


def test_the_authority_is_kept_with_the_login(tmp_path: Path) -> None:
    """The authority holds for later commands, unless they give one of their own."""
    authority = tmp_path / "authority.pem"
    self_signed(authority)
    stored = StoredToken("first", "root", 1, str(authority))
    assert as_logged_in(Settings(), stored).tls_ca == authority
    assert as_logged_in(Settings(), SECOND).tls_ca is None
    own = Settings(tls_ca=Path("own.pem"))
    assert as_logged_in(own, FIRST) == own
