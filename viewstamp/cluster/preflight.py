"""Checks before a cluster starts here; each failure is one line that says what to change."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import secrets
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from viewstamp import limits
from viewstamp.cluster.errors import PreflightError

DIRECTORY_MODE: Final = 0o700
SECRET_MODE: Final = 0o600
SUPERVISOR_LOCK: Final = "SUPERVISOR"
COORDINATOR_LOCK: Final = "LOCK"
KEY_FILE: Final = "cluster.key"
# A lone replica has its superblock in the data directory itself; several replicas have the cluster
# id there, beside a directory for each.
SUPERBLOCK_FILE: Final = "superblock"
CLUSTER_ID_FILE: Final = "cluster.id"


def prepare_directory(directory: Path) -> None:
    """Create the data directory and what the processes need in it. Raises PreflightError."""
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        for name in ("run", "log"):
            (directory / name).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise PreflightError(
            f"data directory {directory} cannot be used ({error.strerror}): make it a writable "
            "directory, or choose another with --data-directory"
        ) from error


def check_holds_no_lone_replica(directory: Path) -> None:
    """Raise PreflightError if the directory holds a cluster of one replica, running or not."""
    if (directory / SUPERBLOCK_FILE).exists():
        raise PreflightError(
            f"{directory} holds a cluster of one replica, and would hold two clusters: start that"
            " one without --replicas, or choose another --data-directory"
        )


def check_holds_no_replicas(directory: Path) -> None:
    """Raise PreflightError if the directory holds a cluster of several replicas, running or not."""
    if (directory / CLUSTER_ID_FILE).exists():
        raise PreflightError(
            f"{directory} holds a cluster of several replicas, and would hold two clusters: start"
            " that one with --replicas, or choose another --data-directory"
        )


class DirectoryLock:
    """Keeps other supervisors, and coordinators without a supervisor, out of a data directory."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises PreflightError if another process has it."""
        self._descriptor: int | None = _locked(directory, SUPERVISOR_LOCK)
        try:
            # Take the coordinator's own lock for a moment, to see whether a coordinator runs by
            # itself.
            os.close(_locked(directory, COORDINATOR_LOCK))
        except PreflightError:
            self.release()
            raise

    def release(self) -> None:
        """Release the directory."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def ensure_cluster_key(path: Path) -> None:
    """Create the cluster key, 64 hexadecimal digits only its owner may read, unless it exists."""
    try:
        write_secret(path, secrets.token_hex(limits.CLUSTER_KEY_BYTES) + "\n")
    except FileExistsError:
        return
    except OSError as error:
        raise PreflightError(f"cluster key {path} cannot be written: {error.strerror}") from error


def write_secret(path: Path, text: str) -> None:
    """Write a new file that only its owner may read, durably. Raises FileExistsError, OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)


# These ports are below those that systems give to connections (RFC 6335, and Linux from 32768 on):
# a connection may take such a port before the server binds it.
FREE_PORTS: Final = range(10_000, 32_768)
FREE_PORTS_TRIED: Final = 64


def free_address(listen: str) -> str:
    """Return `listen` with a port that is free now in place of 0. Raises PreflightError."""
    host, separator, port = listen.rpartition(":")
    if not (separator and host and port.isdecimal()):
        raise PreflightError(f"--listen {listen!r} is no address: write HOST:PORT")
    if int(port) == 0:
        for chosen in random.sample(FREE_PORTS, FREE_PORTS_TRIED):
            with suppress(PreflightError):
                return _bound_once(listen, host, chosen)
    return _bound_once(listen, host, int(port))


def _bound_once(listen: str, host: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # Servers set this, too: former connections do not block the port, but listeners do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except (OSError, OverflowError) as error:
            raise PreflightError(_address_trouble(listen, error)) from error
        return f"{host}:{probe.getsockname()[1]}"


def socket_directory(directory: Path, names: tuple[str, ...]) -> Path:
    """Return the services' socket directory: within `directory`, or a short one if that is long."""
    run = directory.resolve() / "run"
    longest = max(len(os.fsencode(run / f"{name}.sock")) for name in names)
    if longest <= limits.UNIX_SOCKET_PATH_BYTES_MAX:
        return run
    return Path(tempfile.mkdtemp(prefix="viewstamp-"))


def _address_trouble(listen: str, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"{listen} is taken by another process: stop it, or choose another address with "
            "--listen (port 0 takes a free one)"
        )
    return f"cannot listen on {listen}: {error}"


def _locked(directory: Path, name: str) -> int:
    descriptor = os.open(directory / name, os.O_RDWR | os.O_CREAT, SECRET_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise PreflightError(
            f"data directory {directory} is in use by another cluster (lock {name}): stop it, or "
            "choose another with --data-directory"
        ) from error
    return descriptor
