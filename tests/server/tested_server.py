"""A server process whose gauges the tests read."""

from waiting import wait_until
from wire import metrics

from canopy.server.process import ServerProcess

MAX_CONTEXT = 512


class TestedServer(ServerProcess):
    """A server whose gauges the tests read."""

    __test__ = False
    max_context = MAX_CONTEXT

    @property
    def max_running(self) -> int:
        return self.deployment.limits.max_running

    @property
    def max_waiting(self) -> int:
        return self.deployment.limits.max_waiting

    def metrics(self) -> dict[str, float]:
        """The custom metrics now."""
        return metrics(self.metrics_url)

    def cache_is_free(self) -> bool:
        """Nothing runs or waits, every block is free, and free + used is the whole cache."""

        def is_free() -> bool:
            now = self.metrics()
            free, used = now["canopy_kv_blocks_free"], now["canopy_kv_blocks_used"]
            busy = now["canopy_running_sequences"] + now["canopy_waiting_sequences"]
            return (free, used, busy) == (self.deployment.cache.num_blocks, 0, 0)

        return wait_until(is_free)
