"""Certificates of this process, read for the first time."""

from __future__ import annotations

from coordinator.base.errors import ConfigError
from viewstamp.certificates.pem_files import Certificates, PemFiles, UnusableFiles


def read_certificates(files: PemFiles) -> Certificates:
    """Return what the files hold from time to time. Raises ConfigError."""
    try:
        return Certificates(files)
    except UnusableFiles as error:
        raise ConfigError(str(error)) from error
