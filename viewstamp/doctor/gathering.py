"""Evidence from this machine: data directories, logs, metrics pages and configuration files."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.client import HTTPException, IncompleteRead
from importlib import metadata
from pathlib import Path
from typing import Final

from viewstamp import limits, past_limits
from viewstamp.doctor.deadlines import ended_within
from viewstamp.doctor.evidence import DoctorEvidence, Json, MetricSample
from viewstamp.format.archive_manifest import ArchiveManifest
from viewstamp.regular_files import open_regular

# Of each log the end is kept.
LOG_BYTES_MAX: Final = 256 * 1024
LOGS_MAX: Final = 32
PAGE_BYTES_MAX: Final = 4 * limits.MIB
# For the whole page: one that comes byte by byte takes no longer.
PAGE_TIMEOUT_S: Final = 10.0
# For all attempts to read the newest manifest of an archive.
ARCHIVE_TIMEOUT_S: Final = 30.0
SECRET_BYTES_MAX: Final = 4096
LOCK_BYTES_MAX: Final = 32
SECRET_FILES: Final = ("cluster.key", "root_password")
_US_PER_S: Final = 1_000_000
# What a data directory of a replica is known by.
_REPLICA_FILE: Final = "superblock"
_LIBRARIES: Final = ("viewstamp", "grpcio", "protobuf", "hpack")
_PROCESSES: Final = Path("/proc")
_OWN_VARIABLE: Final = re.compile(r"VIEWSTAMP_\w+=")


def begin(environment: Iterable[tuple[str, str]]) -> DoctorEvidence:
    """Return the evidence about this program itself; tokens of the environment are secrets."""
    evidence = DoctorEvidence(time.time())
    evidence.versions = {
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "machine": platform.platform(),
        "limits": {
            name: each
            for name, each in (vars(limits) | vars(past_limits)).items()
            if isinstance(each, int)
        },
    }
    evidence.secrets |= {value for name, value in environment if name.endswith("_TOKEN")}
    return evidence


def tried(evidence: DoctorEvidence, source: str, gather: Callable[[], None]) -> None:
    """Gather from a source; note why, if that fails."""
    try:
        gather()
    except (OSError, ValueError) as error:
        evidence.failures[source] = f"{type(error).__name__}: {error}"


def replica_directories(directory: Path) -> list[Path]:
    """Return the data directories in a directory of `viewstamp up`; itself, if it is one."""
    below = sorted(path.parent for path in directory.glob(f"replica-*/{_REPLICA_FILE}"))
    return below or [directory]


def look_at_directory(evidence: DoctorEvidence, directory: Path) -> None:
    """Note files, room, process and logs of a data directory. Raises OSError."""
    usage = shutil.disk_usage(directory)
    files = dict(_files(directory))
    facts: Json = {
        "is_replica": _REPLICA_FILE in files,
        "free_bytes": usage.free,
        "size_bytes": usage.total,
        "files": files,
        "process": _process(directory),
    }
    evidence.directories[str(directory)] = facts
    for name in SECRET_FILES:
        if name in files:
            evidence.secrets.add(_secret(directory / name))
    for log in sorted(directory.glob("log/*.log")):
        # Who may write to the directory may not choose what of others comes into a bundle.
        look_at_log(evidence, log, follows=False)


def look_at_log(evidence: DoctorEvidence, path: Path, *, follows: bool = True) -> None:
    """Keep the end of a log: whole lines, because half a secret is not known as one.

    Raises OSError, also for a symbolic link if it `follows` none; ValueError beyond LOGS_MAX.
    """
    if len(evidence.logs) >= LOGS_MAX:
        raise ValueError(f"{LOGS_MAX} logs are enough: leave some out")
    with open_regular(path, follows=follows) as file:
        left_out = max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_MAX)
        file.seek(left_out)
        content = file.read(LOG_BYTES_MAX)
    if left_out:
        _, _, content = content.partition(b"\n")
    evidence.logs[str(path)] = content.decode("utf-8", "replace")


def look_at_page(evidence: DoctorEvidence, address: str) -> None:
    """Read a metrics page at HOST:PORT. Raises OSError, ValueError."""
    # Imported late: the client alone does not need it.
    from prometheus_client.parser import text_string_to_metric_families

    content = ended_within(PAGE_TIMEOUT_S, partial(_page, address))
    if len(content) > PAGE_BYTES_MAX:
        raise ValueError(f"the page has more than {PAGE_BYTES_MAX} bytes")
    text = content.decode("utf-8")
    evidence.pages[address] = text
    evidence.metrics[address] = [
        MetricSample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def look_at_archive(
    evidence: DoctorEvidence, place: str, newest: Callable[[], ArchiveManifest]
) -> None:
    """Note what the newest manifest of an archive says. Raises OSError, TimeoutError."""
    from viewstamp.archive.archive_errors import ArchiveError

    try:
        manifest = ended_within(ARCHIVE_TIMEOUT_S, newest)
    except ArchiveError as error:
        evidence.archives[place] = {"unreadable": f"{error.reason}: {error.message}"}
        return
    last = manifest.parts[-1] if manifest.parts else None
    evidence.archives[place] = {
        "unreadable": "",
        "cluster": manifest.cluster_id.hex(),
        "manifest": manifest.number,
        "snapshots": len(manifest.snapshots),
        "gaps": [list(gap) for gap in manifest.gaps],
        "last_revision": last.last_revision if last else 0,
        "last_time_s": last.last_time / _US_PER_S if last else 0.0,
    }


def _page(address: str) -> bytes:
    request = urllib.request.Request(f"http://{address}/metrics")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=PAGE_TIMEOUT_S) as response:
            content: bytes = response.read(PAGE_BYTES_MAX + 1)
            if response.length and len(content) <= PAGE_BYTES_MAX:
                raise IncompleteRead(content, response.length)
            return content
    except HTTPException as error:
        # As from a port of gRPC, or for an address that is none.
        raise ValueError(f"it serves no metrics page: {type(error).__name__}: {error}") from error


def _files(directory: Path) -> Iterator[tuple[str, Json]]:
    """Yield name and facts of each file; a replica that runs may delete some meanwhile."""
    for path in sorted(directory.iterdir()):
        try:
            facts = path.lstat()
        except FileNotFoundError:
            continue
        yield path.name, {"mode": stat.filemode(facts.st_mode), "bytes": facts.st_size}


def _secret(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(SECRET_BYTES_MAX).decode("utf-8", "replace").strip()


def _process(directory: Path) -> Json:
    """Return what runs on a directory, by its lock file; None if nothing does. Raises OSError.

    Arguments and variables are None where the system does not show those of other users.
    """
    try:
        with open_regular(directory / "LOCK") as file:
            number = int(file.read(LOCK_BYTES_MAX))
    except (FileNotFoundError, ValueError):
        return None  # nobody ever locked it
    if not _runs(number):
        return None  # whoever locked it has ended
    words, variables = _words_of(number, "cmdline"), _words_of(number, "environ")
    if words is not None and "coordinator" not in words:
        return None  # the number is that of another program now
    own = None if variables is None else sorted(filter(_OWN_VARIABLE.match, variables))
    return {"pid": number, "arguments": words, "variables": own}


def _runs(number: int) -> bool:
    if number <= 0:
        return False  # these numbers stand for groups
    try:
        os.kill(number, 0)  # looks, and sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # of another user
    return True


def _words_of(number: int, name: str) -> list[str] | None:
    """Return what a file about a process lists; None if this user may not see it."""
    try:
        content = (_PROCESSES / str(number) / name).read_bytes()
    except OSError:
        return None
    return list(filter(None, content.decode("utf-8", "replace").split("\0")))
