"""Access tokens and the key that signs them."""

from __future__ import annotations

import base64
import string
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.services.users.users_support import CLUSTER_ID, CLUSTER_KEY, refused
from viewstamp import limits, tokens
from viewstamp.api.errors.v1.errors_pb2 import Reason

EXPIRES_US = 1_000
U64 = st.integers(0, (1 << 64) - 1)
BASE64URL = string.ascii_letters + string.digits + "-_"


def token() -> str:
    """Return a valid token of user 7."""
    return tokens.sign(CLUSTER_KEY, CLUSTER_ID, 7, 3, EXPIRES_US)


@given(user_id=U64, credential_revision=U64, expires_at=st.integers(1, (1 << 64) - 1))
def test_round_trip(user_id: int, credential_revision: int, expires_at: int) -> None:
    """Reading returns the signed claims, until the expiry."""
    signed = tokens.sign(CLUSTER_KEY, CLUSTER_ID, user_id, credential_revision, expires_at)
    expected = tokens.AccessToken(user_id, credential_revision, expires_at)
    assert tokens.verify(CLUSTER_KEY, CLUSTER_ID, signed, expires_at - 1) == expected


def test_golden() -> None:
    """The form of a token is pinned: replicas of two versions must accept each other's."""
    signature = "XHZF0J63wTFkK8UTGKbT7F0fw_U-266WxHz2cv3Ef1w"
    assert token() == f"vsa2.AAAAAAAAAAcAAAAAAAAAAwAAAAAAAAPo.{signature}"


@pytest.mark.parametrize("position", range(len("vsa2.") + 32 + 1 + 43))
def test_no_character_may_change(position: int) -> None:
    """Any other character anywhere makes a token worthless, also one that decodes the same."""
    good = token()
    for other in BASE64URL:
        if other != good[position] and (position, other) != (3, "1"):
            bad = good[:position] + other + good[position + 1 :]
            verify = partial(tokens.verify, CLUSTER_KEY, CLUSTER_ID, bad, 0)
            refused(Reason.REASON_UNAUTHENTICATED, verify)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "vsa2..",
        "Bearer x",
        "vsa2." + "A" * 32 + ".",
        token() + "=",
        token() + "\n",
        token()[:-1],
    ],
)
def test_malformed(bad: str) -> None:
    """Malformed text is refused, and the refusal gives the right form."""
    error = refused(
        Reason.REASON_UNAUTHENTICATED, lambda: tokens.verify(CLUSTER_KEY, CLUSTER_ID, bad, 0)
    )
    assert "malformed" in error.message


def test_other_key() -> None:
    """A token signed with another key is refused."""
    other = bytes(limits.CLUSTER_KEY_BYTES)
    refused(Reason.REASON_UNAUTHENTICATED, lambda: tokens.verify(other, CLUSTER_ID, token(), 0))


def test_other_cluster_with_the_same_key() -> None:
    """A token of one cluster is refused by another that was given the same key."""
    other = bytes(limits.CLUSTER_ID_BYTES)
    refused(Reason.REASON_UNAUTHENTICATED, lambda: tokens.verify(CLUSTER_KEY, other, token(), 0))


def test_former_token() -> None:
    """A token of the form that named no cluster is refused with the advice to log in again."""
    former = f"vsa1.AAAAAAAAAAcAAAAAAAAAAwAAAAAAAAPo.{'A' * 43}"
    verify = partial(tokens.verify, CLUSTER_KEY, CLUSTER_ID, former, 0)
    assert "log in again" in refused(Reason.REASON_UNAUTHENTICATED, verify).message


def test_expired() -> None:
    """At its expiry a token is over, and the message says since when."""
    error = refused(
        Reason.REASON_UNAUTHENTICATED,
        lambda: tokens.verify(CLUSTER_KEY, CLUSTER_ID, token(), EXPIRES_US),
    )
    assert error.details == {"expires_at": "1000"}


@pytest.mark.parametrize("length", [0, 31, 33])
def test_key_of_wrong_length(length: int) -> None:
    """A key that is too short, or too long, neither signs nor verifies."""
    for use in (
        lambda: tokens.sign(bytes(length), CLUSTER_ID, 1, 1, 1),
        lambda: tokens.verify(bytes(length), CLUSTER_ID, token(), 0),
    ):
        with pytest.raises(tokens.ClusterKeyError, match=f"32 bytes, not {length}"):
            use()


def key_file(directory: Path, content: str, mode: int = 0o600) -> Path:
    """Write a key file."""
    path = directory / "cluster.key"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_read_cluster_key(tmp_path: Path, end: str, mode: int) -> None:
    """A key file holds 64 hexadecimal digits, and perhaps the end of the line."""
    assert tokens.read_cluster_key(key_file(tmp_path, CLUSTER_KEY.hex() + end, mode)) == CLUSTER_KEY


@pytest.mark.parametrize(
    "content", ["", "ab" * 31, "ab" * 33, "a" * 63, "xy" * 32, "ab " * 32, "é" * 32]
)
def test_malformed_cluster_key(tmp_path: Path, content: str) -> None:
    """A malformed key file is refused without a word of its content."""
    with pytest.raises(tokens.ClusterKeyError, match="64 hexadecimal digits") as caught:
        tokens.read_cluster_key(key_file(tmp_path, content))
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o666])
def test_cluster_key_open_to_all(tmp_path: Path, mode: int) -> None:
    """A key that every account can read or write is no secret, and is refused."""
    with pytest.raises(tokens.ClusterKeyError, match="chmod 600"):
        tokens.read_cluster_key(key_file(tmp_path, CLUSTER_KEY.hex(), mode))


def test_missing_cluster_key(tmp_path: Path) -> None:
    """A file that is not there is an OSError that names it."""
    with pytest.raises(FileNotFoundError, match=r"none\.key"):
        tokens.read_cluster_key(tmp_path / "none.key")


def test_claims_are_not_secret() -> None:
    """Every holder can read a token's claims, so none of them may be secret."""
    claims = base64.urlsafe_b64decode(token().split(".")[1])
    assert [int.from_bytes(claims[i : i + 8], "big") for i in (0, 8, 16)] == [7, 3, EXPIRES_US]
