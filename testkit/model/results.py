"""Results of TLC in a file, so that a run that was interrupted goes on after what is finished.

A result counts as long as the modules and the configuration are the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from testkit.model.bounds import TlaBounds
from testkit.model.checker import SPECIFICATION, TlcVerdict, check


def fingerprint(bounds: TlaBounds) -> str:
    """Return what tells this specification within these bounds from any other."""
    texts = [path.read_text() for path in sorted(SPECIFICATION.glob("*.tla"))]
    texts += [text for _, text in sorted(bounds.files().items())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def finished(path: Path | None, bounds: TlaBounds) -> TlcVerdict | None:
    """Return the result of an earlier run, or None."""
    if path is None or not path.exists():
        return None
    wanted = fingerprint(bounds)
    for line in map(json.loads, path.read_text().splitlines()):
        if line["fingerprint"] == wanted:
            fields = line["verdict"]
            return TlcVerdict(**{**fields, "path": tuple(fields["path"])})
    return None


def checked(path: Path | None, bounds: TlaBounds, *, workers: int, seconds_max: int) -> TlcVerdict:
    """Return the result of an earlier run, or check and keep the result. Raises TlcFailed."""
    known = finished(path, bounds)
    if known is not None:
        return known
    verdict = check(bounds, workers=workers, seconds_max=seconds_max)
    if path is not None:
        line = {"fingerprint": fingerprint(bounds), "verdict": asdict(verdict)}
        with path.open("a") as results:
            results.write(json.dumps(line) + "\n")
    return verdict
