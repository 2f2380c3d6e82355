"""Names in certificates: those that a caller's proves, and those of a coordinator's services.

The certificates between a coordinator and its services have DNS subject alternative names. Replica
0 has `coordinator-0.viewstamp`, `users-0.viewstamp`, `streams-0.viewstamp` and
`consumer-groups-0.viewstamp`: each service belongs to one replica.
"""

from __future__ import annotations

import re
from typing import Any, Final

from viewstamp.grpc_transport import SECURITY_TYPE_KEY, SUBJECT_NAMES_KEY

_COORDINATOR: Final = re.compile(r"coordinator-[0-9]+\.viewstamp")


def names_of(context: Any) -> frozenset[str] | None:
    """Return the names that the caller's certificate proves, None where TLS is off."""
    properties = context.auth_context()
    if SUBJECT_NAMES_KEY not in properties:
        # With TLS, a caller without names has a certificate that proves nothing.
        is_secure = properties.get(SECURITY_TYPE_KEY, [b"insecure"]) != [b"insecure"]
        return frozenset() if is_secure else None
    return frozenset(name.decode() for name in properties[SUBJECT_NAMES_KEY])


def coordinator_name(replica: int) -> str:
    """Return the name that the certificate of a replica's coordinator must have."""
    return f"coordinator-{replica}.viewstamp"


def service_name(service: str, replica: int) -> str:
    """Return the name that the certificate of a replica's service must have."""
    return f"{service.replace('_', '-')}-{replica}.viewstamp"


def is_coordinator(name: str) -> bool:
    """Return whether it is the name of some coordinator."""
    return _COORDINATOR.fullmatch(name) is not None
