"""Evidence from this machine: data directories, logs, metrics pages and configuration files."""

from __future__ import annotations

import platform
import re
import shutil
import stat
import time
import urllib.request
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from viewstamp import limits
from viewstamp.doctor.evidence import DoctorEvidence, Json, MetricSample

# Of each log the end is kept.
LOG_BYTES_MAX: Final = 256 * 1024
LOGS_MAX: Final = 32
PAGE_BYTES_MAX: Final = 4 * limits.MIB
PAGE_TIMEOUT_S: Final = 5.0
SECRET_BYTES_MAX: Final = 4096
SECRET_FILES: Final = ("cluster.key", "root_password")
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
        "limits": {name: each for name, each in vars(limits).items() if isinstance(each, int)},
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
    files = {path.name: _file_facts(path) for path in sorted(directory.iterdir())}
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
        look_at_log(evidence, log)


def look_at_log(evidence: DoctorEvidence, path: Path) -> None:
    """Keep the end of a log. Raises OSError, ValueError beyond LOGS_MAX."""
    if len(evidence.logs) >= LOGS_MAX:
        raise ValueError(f"{LOGS_MAX} logs are enough: leave some out")
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_BYTES_MAX))
        evidence.logs[str(path)] = file.read(LOG_BYTES_MAX).decode("utf-8", "replace")


def look_at_page(evidence: DoctorEvidence, address: str) -> None:
    """Read a metrics page at HOST:PORT. Raises OSError, ValueError."""
    # Imported late: the client alone does not need it.
    from prometheus_client.parser import text_string_to_metric_families

    request = urllib.request.Request(f"http://{address}/metrics")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=PAGE_TIMEOUT_S) as response:
        content = response.read(PAGE_BYTES_MAX + 1)
    if len(content) > PAGE_BYTES_MAX:
        raise ValueError(f"the page has more than {PAGE_BYTES_MAX} bytes")
    text = content.decode("utf-8")
    evidence.pages[address] = text
    evidence.metrics[address] = [
        MetricSample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def _file_facts(path: Path) -> Json:
    facts = path.lstat()
    return {"mode": stat.filemode(facts.st_mode), "bytes": facts.st_size}


def _secret(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(SECRET_BYTES_MAX).decode("utf-8", "replace").strip()


def _process(directory: Path) -> Json:
    """Return what runs on a directory, by its lock file; None if nothing does."""
    try:
        number = int((directory / "LOCK").read_text())
        words = (_PROCESSES / str(number) / "cmdline").read_bytes().decode().split("\0")
        variables = (_PROCESSES / str(number) / "environ").read_bytes().decode().split("\0")
    except (OSError, ValueError):
        return None  # nobody ever locked it, or whoever did has ended
    if "coordinator" not in words:
        return None  # the number is that of another program now
    own = sorted(filter(_OWN_VARIABLE.match, variables))
    return {"pid": number, "arguments": list(filter(None, words)), "variables": own}
