"""Callers that watch: one at each replica, and one at whichever answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from google.protobuf.message import Message

from testkit.load.watcher import Watcher
from testkit.oracles.feeds import ShownFeed
from testkit.torture.cluster import TortureCluster
from testkit.torture.recorder import Recorder
from viewstamp.client.errors import ClientError
from viewstamp.client.transport import Endpoints
from viewstamp.client.watching import Watch, watch_request
from viewstamp.errors import Refusal

# A watcher is shown so many revisions, and then ends.
LIFE_REVISIONS: Final = (50, 1_500)
# What ends a watcher: a watch that goes back, and one that cannot go on.
FINDINGS: Final = (AssertionError, ClientError, Refusal)


class ClusterWatchers:
    """The watchers of a round. `feed` has what they were shown."""

    def __init__(self, cluster: TortureCluster, recorder: Recorder, seed: int) -> None:
        self.feed = ShownFeed()
        self._cluster = cluster
        self._recorder = recorder
        self._seed = seed

    @asynccontextmanager
    async def following(self, timeout_s: float) -> AsyncIterator[None]:
        """Watch during the block, and then until everything was shown that callers were told of.

        Whoever is not shown it within the timeout is a surprise.
        """
        watchers = {f"watcher of {where}": self._watcher(where) for where in self._places()}
        watching = {
            asyncio.create_task(self._run(name, watcher)): name
            for name, watcher in watchers.items()
        }
        try:
            yield
            for watcher in watchers.values():
                watcher.is_ending = True
            _, late = await asyncio.wait(watching, timeout=timeout_s)
            for task in late:
                self._recorder.surprise(
                    f"{watching[task]} was not shown everything within {timeout_s:g} s"
                )
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def _places(self) -> list[str]:
        return [*self._cluster.addresses, ",".join(self._cluster.addresses)]

    def _watcher(self, where: str) -> Watcher:
        def opened(
            from_revision: int, kinds: Sequence[type[Message]]
        ) -> AbstractAsyncContextManager[Watch]:
            self._recorder.counts["watch opened"] += 1
            request = watch_request(from_revision, entity_types=kinds)
            endpoints = Endpoints(where.split(","))
            # The client of the cluster is asked for names only, and the request has none.
            return Watch(self._cluster.admin, endpoints, self._cluster.identity, request)

        return Watcher(
            f"{self._seed}/{where}",
            opened,
            self.feed,
            lambda: self._recorder.revision,
            LIFE_REVISIONS,
        )

    async def _run(self, name: str, watcher: Watcher) -> None:
        try:
            await watcher.run()
        except FINDINGS as error:
            self._recorder.surprise(f"{name} ended: {type(error).__name__}: {error}")
