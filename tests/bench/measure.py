"""What the rows of the benchmark share: a row, processes that serve, and the load on them."""

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.server.clients import Client, context
from webhook.certs.issue import LocalFiles

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "data" / "golden"
SEED = ROOT / "tests" / "data" / "seed-cluster" / "cluster.json"
POLICY = ROOT / "policies"

_LISTENING = re.compile(r"127\.0\.0\.1:(\d+)")
_PATIENCE = 60.0


@dataclass(frozen=True)
class Row:
    """One figure and its bar. `is_ratio`: it compares two things measured here, so it holds on any machine."""

    name: str
    value: float
    unit: str
    bar: float
    at_least: bool = False
    is_ratio: bool = False
    detail: str = ""

    @property
    def reached(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def within(self, slack: float) -> bool:
        """Whether it is no further from the bar than by this factor."""
        return self.value * slack >= self.bar if self.at_least else self.value <= self.bar * slack

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"reached": self.reached}


def review(scenario: str) -> bytes:
    """The first recorded mutating review of a scenario, as compact as the API server sends it."""
    reviews = json.loads((GOLDEN / f"{scenario}.json").read_text(encoding="utf-8"))["reviews"]
    return compact(next(entry["review"] for entry in reviews if entry["phase"] == "mutate"))


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


class Server:
    """A server in a process of its own, which has said on stderr where it listens."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, ca: Path) -> None:
        self.process = process
        self.port = port
        self.ca = ca

    @property
    def worker(self) -> int:
        """The process that answers: gunicorn's child, else the process itself."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = path.read_text().split()
        return int(children[0]) if children else self.process.pid

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.worker}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def client(self) -> Client:
        return Client(self.port, context(self.ca), timeout=30)

    def wait_ready(self) -> float:
        """Seconds until `/readyz` answers 200."""
        start = time.monotonic()
        while time.monotonic() - start < _PATIENCE:
            with contextlib.suppress(OSError, EOFError), self.client() as client:
                if client.get("/readyz").status == 200:
                    return time.monotonic() - start
            time.sleep(0.02)
        raise TimeoutError("the server did not become ready")


@contextlib.contextmanager
def serving(arguments: Sequence[str], ca: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run `python -m ...` until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = next((match for line in process.stderr if (match := _LISTENING.search(line))), None)
        if found is None:
            raise RuntimeError(f"{arguments[0]} did not start")
        yield Server(process, int(found[1]), ca)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def webhook(files: LocalFiles, audit: Path, cluster: str = str(SEED)) -> list[str]:
    """The arguments of our own server."""
    return [
        *("webhook", "serve", "--policy", str(POLICY), "--cluster", cluster, "--bind", "127.0.0.1:0"),
        *("--cert", str(files.cert), "--key", str(files.key), "--audit-dir", str(audit)),
    ]


def load(server: Server, body: Path, **options: float) -> dict[str, float]:
    """What the load generator measured; options are those of `tests.bench.load`."""
    flat = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench.load", "--port", str(server.port), "--ca", str(server.ca)),
            *("--body", str(body), *flat),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120 + options.get("seconds", 0.0),
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def alternate(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each measure; they take turns, so that what else the machine does falls on all of them."""
    found: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for values, measure in zip(found, measures, strict=True):
            values.append(measure())
    return [statistics.median(values) for values in found]
