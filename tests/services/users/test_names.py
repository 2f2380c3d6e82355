"""The one check of names."""

from __future__ import annotations

from functools import partial

import pytest

from tests.services.users.users_support import refused
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.names import check_length, check_name

REASON = Reason.REASON_INVALID_STREAM_NAME
CONTROLS = [chr(c) for c in (*range(0x20), 0x7F, *range(0x80, 0xA0))]


def check(name: str) -> None:
    """Check a name of 2 to 6 bytes."""
    check_name(name, reason=REASON, bytes_min=2, bytes_max=6)


@pytest.mark.parametrize("name", ["ab", "abcdef", "é", "日本", "a b", "\xa0a", "~ ", "😀ab"])
def test_valid(name: str) -> None:
    """Two to six bytes of UTF-8 pass, counted in bytes, at the limits too."""
    check(name)


@pytest.mark.parametrize(("name", "length"), [("", 0), ("a", 1), ("abcdefg", 7), ("日本x", 7)])
def test_length(name: str, length: int) -> None:
    """Other lengths are refused with both limits and the length found."""
    error = refused(REASON, lambda: check(name))
    assert error.details == {"bytes": str(length), "bytes_min": "2", "bytes_max": "6"}
    assert "stream name" in error.message


@pytest.mark.parametrize("control", CONTROLS)
def test_control_characters(control: str) -> None:
    """Every character of C0 and C1, and DEL, is refused wherever it stands."""
    for position, name in enumerate((f"{control}aa", f"a{control}a", f"aa{control}")):
        error = refused(REASON, partial(check, name))
        expected = {"code_point": f"U+{ord(control):04X}", "position": str(position)}
        assert error.details == expected


def test_lone_surrogate() -> None:
    """Text that UTF-8 cannot encode is refused, not an error of the codec."""
    assert refused(REASON, lambda: check("a\ud800b")).details == {"position": "1"}


def test_length_alone_allows_control_characters() -> None:
    """Secrets may hold any characters, and the message does not repeat them."""
    check_length("a\x00", reason=REASON, bytes_min=2, bytes_max=3)
    error = refused(
        REASON,
        lambda: check_length("secret", reason=REASON, bytes_min=2, bytes_max=3),
    )
    assert "secret" not in error.message
