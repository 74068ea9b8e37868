"""How the server behind is: asked as often as needed, and remembered for a moment."""

import asyncio
import time
from dataclasses import asdict
from typing import Any

from canopy_client import AsyncClient, ClientError
from canopy_gateway.settings import GatewaySettings


class HealthCheck:
    """However many ask, the server is asked once per `health_max_age_s`."""

    def __init__(self, client: AsyncClient, settings: GatewaySettings) -> None:
        self._client = client
        self._settings = settings
        self._lock = asyncio.Lock()
        self._found: tuple[int, dict[str, Any]] = (503, {})
        self._asked_s = float("-inf")

    async def status(self) -> tuple[int, dict[str, Any]]:
        """HTTP status and JSON: 200 where a request would be taken up now, else 503 and why not."""
        async with self._lock:
            if time.monotonic() - self._asked_s > self._settings.health_max_age_s:
                self._found = await self._ask()
                self._asked_s = time.monotonic()
            return self._found

    async def _ask(self) -> tuple[int, dict[str, Any]]:
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                health = await self._client.health()
        except TimeoutError:
            reason = f"no answer within {self._settings.health_timeout_s:g} s"
            return 503, {"status": "silent", "reason": reason}
        except ClientError as error:
            return 503, {"status": "unavailable", "reason": str(error)}
        found = asdict(health) | {"latency_ms": round(health.latency_ms, 3)}
        return (200 if health.is_ready else 503), found
