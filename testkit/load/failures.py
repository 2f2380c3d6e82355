"""What may end work with a cluster of real processes, other than a defect of the work itself."""

from __future__ import annotations

from typing import Final

import grpc.aio

from viewstamp.client import ClientError
from viewstamp.cluster import ClusterError
from viewstamp.errors import Refusal

CLUSTER_FAILURES: Final = (
    ClusterError,
    ClientError,
    Refusal,
    grpc.aio.AioRpcError,
    TimeoutError,
    OSError,
    ExceptionGroup,
)
