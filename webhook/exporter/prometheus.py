"""GPU utilisation from a Prometheus that scrapes NVIDIA's DCGM exporter; whatever goes wrong means "unknown"."""

from urllib.parse import urlsplit

import msgspec
import urllib3

from webhook.exporter.cost import Utilisation, samples_of

METRIC = "DCGM_FI_DEV_GPU_UTIL"
TIMEOUT = urllib3.Timeout(connect=2.0, read=5.0)
"""Seconds; the dashboard waits for it."""
LIMIT_BYTES = 64 << 20


class PrometheusUrlError(ValueError):
    """A URL that is no http or https address."""


class Prometheus:
    """Asks one Prometheus; an instant query has only series with a sample in the last five minutes (B68)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise PrometheusUrlError(f"--prometheus {url}: give an address such as http://prometheus.monitoring:9090")
        self._url = f"{url.rstrip('/')}/api/v1/query"
        self._pool = urllib3.PoolManager(num_pools=1, retries=False)

    def utilisation(self) -> Utilisation:
        """What every GPU reports now. Never raises."""
        try:
            response = self._pool.request(
                "GET", self._url, fields={"query": METRIC}, timeout=TIMEOUT, preload_content=False, redirect=False
            )
            try:
                body = response.read(LIMIT_BYTES)
            finally:
                response.release_conn()
            answer = msgspec.json.decode(body)
            if response.status != 200 or answer.get("status") != "success":
                return _failed(f"HTTP {response.status}: {str(answer.get('error', ''))[:200]}")
            return Utilisation("prometheus", samples_of(answer["data"]["result"]))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return _failed(f"{self._url} does not answer: {type(error).__name__}")
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, IndexError, ValueError):
            return _failed(f"{self._url} does not answer as a Prometheus does")


def _failed(message: str) -> Utilisation:
    return Utilisation("prometheus", (), message)
