"""The file of a certificate authority, checked before anybody connects with it."""

from __future__ import annotations

from pathlib import Path


def authority_problem(path: Path) -> str:
    """Return what is wrong with the file of a certificate authority; nothing if it can be used."""
    # Imported here because most connections need no such file.
    import ssl

    try:
        path.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return f"{path} holds no certificate in PEM form"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
