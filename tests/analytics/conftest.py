"""One Spark session, and with it one JVM, for all tests of analytics that run in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the session: two cores, one shuffle partition, nothing left in the checkout."""
    from analytics import session

    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.memory": "2g",
    }
    built = session.build("viewstamp-tests", master="local[2]", settings=settings)
    yield built
    built.stop()
