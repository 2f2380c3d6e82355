"""One Spark session for all tests of analytics.

Every test below this folder is in one group, so that under xdist one process, and with it one
JVM, serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "spark"


# This hook runs before the hook of xdist, which assigns tests to processes by these marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of this folder into one group."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group(GROUP))


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
