"""Settings of this machine's kernel that kubelets change: they are put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SETTINGS: Final = Path("/proc/sys")
_CHANGED: Final = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


@contextmanager
def kept() -> Iterator[None]:
    """Let pods be reached through this machine; put all settings back after the block."""
    before = {
        name: (_SETTINGS / name).read_text() for name in _CHANGED if (_SETTINGS / name).exists()
    }
    (_SETTINGS / "net/ipv4/ip_forward").write_text("1")
    try:
        yield
    finally:
        for name, value in before.items():
            (_SETTINGS / name).write_text(value)
