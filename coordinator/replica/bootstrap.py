"""The first entry of a cluster, which makes root with a generated password."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from coordinator.storage import FileStorage, Storage
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.framing import frame, unframe
from viewstamp.limits import FEATURE_LEVEL_MAX, GATEWAY_SESSION_ID, SYSTEM_USER_ID
from viewstamp.passwords import hash_password
from viewstamp.routing import methods_of_file

ROOT_PASSWORD_FILE: Final = "root_password"
ROOT_PASSWORD_BYTES: Final = 18
FOUND_CODE: Final = next(
    method.code
    for method in methods_of_file(users_service_pb2.DESCRIPTOR)
    if method.name == "Found"
)


class Bootstrap:
    """Makes op 1 for the initial members that the core names; `found` is given its body.

    An initial member that restarts changes what op 1 must say, and the core asks again. Hashing
    runs in threads that may end in any order. Only the last question is answered: its password is
    the one in the file, and a second answer would break the caller's duty.

    Op 1 begins log time, which never goes back. So the answer waits for `time_known`, until the
    clocks of other replicas are known: the own one may be wrong by years.
    """

    def __init__(
        self,
        cluster_id: bytes,
        data_directory: Path,
        found: Callable[[bytes], None],
        storage: Storage | None = None,
        time_known: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._time_known = time_known
        self._cluster_id = cluster_id
        self._data_directory = data_directory
        self._storage = storage
        self._found = found
        self._nonces: Sequence[bytes] = ()

    async def make(self, nonces: Sequence[bytes]) -> None:
        """Answer the core's question, unless it asks another one meanwhile."""
        self._nonces = nonces
        password = write_root_password(self._data_directory, self._storage)
        body = await asyncio.to_thread(bootstrap_body, self._cluster_id, password, nonces)
        if self._time_known is not None:
            await self._time_known()
        if self._nonces is nonces:
            self._found(body)


def write_root_password(data_directory: Path, storage: Storage | None = None) -> str:
    """Generate the root password, make its 0600 file durable, and return it.

    A bootstrap that crashed before its commit is repeated with a new password.
    """
    password = secrets.token_urlsafe(ROOT_PASSWORD_BYTES)
    storage = storage or FileStorage()
    path = str(data_directory / ROOT_PASSWORD_FILE)
    if storage.exists(path):
        storage.unlink(path)
    file = storage.create(path)
    try:
        file.write(0, password.encode() + b"\n")
        file.sync()
    finally:
        file.close()
    storage.sync_directory(str(data_directory))
    return password


def bootstrap_body(cluster_id: bytes, password: str, boot_nonces: Sequence[bytes]) -> bytes:
    """Return the body of op 1."""
    found = users_service_pb2.FoundRequest(
        cluster_id=cluster_id,
        root_password_hash=hash_password(password),
        feature_level=FEATURE_LEVEL_MAX,
        boot_nonces=boot_nonces,
    )
    span = log_pb2.LoggedSpan(
        code=FOUND_CODE, count=1, items=frame(found.SerializeToString()), user_id=SYSTEM_USER_ID
    )
    request = log_pb2.LoggedRequest(session_id=GATEWAY_SESSION_ID, spans=[span])
    return frame(request.SerializeToString())


def initial_members_of(body: bytes) -> Sequence[bytes]:
    """Return the boot nonces, in replica order, that the body of op 1 lists."""
    request = log_pb2.LoggedRequest.FromString(unframe(body)[0])
    found = users_service_pb2.FoundRequest.FromString(unframe(request.spans[0].items)[0])
    return tuple(found.boot_nonces)
