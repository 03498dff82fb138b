"""A soak: 200 reviews a second for ten minutes while the facts change. `python -m tests.bench.soak [--minutes 10]`.

Memory may not grow by more than 1 MiB a minute once the first minutes are over.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.measure import load, review, serving, webhook
from tests.bench.scale import BigCluster
from webhook.certs.issue import local_pair

RATE = 200
BAR = 1.0
"""MiB a minute."""
CHANGES = 20.0
"""Changed quotas a second."""


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """MiB a minute: least squares through (seconds, MiB)."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread * 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory(prefix="gpu-webhook-soak-") as temporary:
        folder = Path(temporary)
        files = local_pair(folder / "pair")
        body = folder / "body.json"
        body.write_bytes(review("pod-create"))
        with BigCluster(1000, 500, changes=CHANGES) as cluster:
            environment = {"KUBECONFIG": cluster.kubeconfig(folder / "kubeconfig")}
            with serving(webhook(files, folder / "audit", "live"), files.ca, environment) as server:
                server.wait_ready()
                samples, done = [], threading.Event()
                start = time.monotonic()

                def sample() -> None:
                    while not done.wait(2.0):
                        samples.append((time.monotonic() - start, server.memory() / (1 << 20)))

                sampler = threading.Thread(target=sample)
                sampler.start()
                result = load(server, body, connections=16, rate=RATE, seconds=seconds)
                done.set()
                sampler.join()
    settled = [(at, mib) for at, mib in samples if at > min(120.0, seconds / 3)]
    growth = slope(settled)
    print(f"{result['count']:.0f} reviews, p99 {result['p99_ms']:.1f} ms, {cluster.sent} changes of facts")
    print(f"memory {settled[0][1]:.1f} MiB, then {settled[-1][1]:.1f} MiB: {growth:+.2f} MiB a minute (bar {BAR})")
    return 0 if growth <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
