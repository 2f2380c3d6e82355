"""Password hashing: argon2id in PHC string format, with one set of parameters everywhere.

A call takes tens of milliseconds of one core and the memory named below: it belongs in a thread,
never in a machine or on an event loop.
"""

from __future__ import annotations

from typing import Final

import argon2
from argon2.exceptions import VerifyMismatchError

from viewstamp import limits

# The parameters that OWASP recommends for argon2id where memory is shared with other work.
ARGON2_MEMORY_KIB: Final = 19 * limits.KIB
ARGON2_PASSES: Final = 2
ARGON2_LANES: Final = 1

# The hash of nobody's password, made with the parameters above. A login with an unknown name is
# compared with this hash, so that the answer takes as long as for a known name.
UNKNOWN_USER_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1"
    "$pr7zGA7BM/3IZFhreVie7Q$rWEfFzB2E+ONoj28zHGCNUtyvS2mIluwEZXlpSH3b2Q"
)

HASHER: Final = argon2.PasswordHasher(
    time_cost=ARGON2_PASSES,
    memory_cost=ARGON2_MEMORY_KIB,
    parallelism=ARGON2_LANES,
    type=argon2.Type.ID,
)


def hash_password(password: str) -> str:
    """Return the hash of a password under a new random salt."""
    return HASHER.hash(password)


def verify_password(password_hash: str, password: str) -> bool:
    """Return whether the password is the one that was hashed.

    Raises argon2.exceptions.InvalidHashError if `password_hash` is not in PHC string format.
    """
    try:
        return HASHER.verify(password_hash, password)
    except VerifyMismatchError:
        return False
