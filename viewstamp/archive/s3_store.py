"""A store in a bucket of S3, or of something that speaks as S3 does.

Endpoint, region and credentials come from where the AWS tools look for them: environment
(`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` ...), files, or the machine's role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from viewstamp.archive.archive_errors import PieceDamaged, StoreUnfit, StoreUnreachable
from viewstamp.archive.object_store import (
    OBJECT_BYTES_MAX,
    S3_SCHEME,
    StoredObject,
    StoreTimeouts,
)

T = TypeVar("T")

MS_PER_S: Final = 1_000
US_PER_S: Final = 1_000_000
READ_BYTES: Final = 1024 * 1024
_ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound"})
# The second is told while two callers write a name at the same time, and neither has won yet.
_TAKEN: Final = frozenset({"412", "PreconditionFailed"})
_CONTENDED: Final = frozenset({"409", "ConditionalRequestConflict"})
_CREATE_ATTEMPTS_MAX: Final = 8


class S3Store:
    """Objects in a bucket, below a prefix."""

    def __init__(self, place: str, timeouts: StoreTimeouts) -> None:
        """Look for credentials and region. Raises StoreUnfit."""
        self._bucket, _, prefix = place.removeprefix(S3_SCHEME).partition("/")
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        if not self._bucket:
            raise StoreUnfit(f"{place} names no bucket", "give s3://BUCKET/PREFIX")
        timeout_s = timeouts.timeout_ms / MS_PER_S
        config = Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": timeouts.attempts, "mode": "standard"},
            s3={"addressing_style": "path"},
            # Compatible stores may not know the checksums that newer libraries add.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._client: Any = boto3.client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            raise StoreUnfit(
                f"{place}: {error}", "set AWS_REGION, and AWS_ENDPOINT_URL for a store of your own"
            ) from error

    @property
    def place(self) -> str:
        """Bucket and prefix."""
        return f"{S3_SCHEME}{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, name: str) -> bytes | None:
        """Return an object's bytes, None if there is none."""

        def read() -> bytes:
            body = self._client.get_object(**self._at(name))["Body"]
            with closing(body):
                data: bytes = body.read(OBJECT_BYTES_MAX + 1)
            return data

        data = self._unless_absent(read)
        if data is not None and len(data) > OBJECT_BYTES_MAX:
            raise PieceDamaged(f"{self.place}/{name} is larger than {OBJECT_BYTES_MAX} bytes")
        return data

    def get_file(self, name: str, path: Path) -> bool:
        """Write an object's bytes to a file; return whether there is such an object."""

        def fetch() -> bool:
            body = self._client.get_object(**self._at(name))["Body"]
            with closing(body), path.open("wb") as file:
                while chunk := body.read(READ_BYTES):
                    file.write(chunk)
            return True

        return bool(self._unless_absent(fetch))

    def put(self, name: str, data: bytes) -> None:
        """Store an object, in place of any earlier one."""
        self._call(lambda: self._client.put_object(**self._at(name), Body=data))

    def put_file(self, name: str, path: Path) -> None:
        """Do the same with the bytes of a file, in parts if it is large."""
        self._call(lambda: self._client.upload_file(str(path), self._bucket, self._prefix + name))

    def create(self, name: str, data: bytes) -> bool:
        """Store an object unless the name is taken; return whether it was free.

        An answer may be lost, and the attempt after it then finds the name taken, by this caller.
        """
        for _ in range(_CREATE_ATTEMPTS_MAX):
            try:
                self._client.put_object(**self._at(name), Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in _TAKEN:
                    return self.get(name) == data
                if _code(error) not in _CONTENDED:
                    raise self._unreachable(error) from error
            except (BotoCoreError, Boto3Error) as error:
                raise self._unreachable(error) from error
            else:
                return True
        raise StoreUnreachable(f"{self.place}/{name} is written by others all the time")

    def look(self, name: str) -> StoredObject | None:
        """Return what is known of an object, None if there is none."""
        found = self._unless_absent(lambda: self._client.head_object(**self._at(name)))
        if found is None:
            return None
        return StoredObject(name, found["ContentLength"], _us(found["LastModified"]))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix, a page at a time."""
        following: dict[str, str] = {}
        while True:
            page = self._call(partial(self._page, prefix, following))
            for found in page.get("Contents", ()):
                name = found["Key"].removeprefix(self._prefix)
                yield StoredObject(name, found["Size"], _us(found["LastModified"]))
            if not page.get("IsTruncated"):
                return
            following = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, following: dict[str, str]) -> Any:
        whole = self._prefix + prefix
        return self._client.list_objects_v2(Bucket=self._bucket, Prefix=whole, **following)

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._call(lambda: self._client.delete_object(**self._at(name)))

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _unless_absent(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise self._unreachable(error) from error
        except (BotoCoreError, Boto3Error) as error:
            raise self._unreachable(error) from error

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (ClientError, BotoCoreError, Boto3Error) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> StoreUnreachable:
        return StoreUnreachable(
            f"{self.place}: {error}",
            "check that the bucket exists, the endpoint (AWS_ENDPOINT_URL) and the credentials",
        )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _us(moment: Any) -> int:
    return int(moment.timestamp() * US_PER_S)
