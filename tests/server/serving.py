"""A real server in processes of its own, on a free port of loopback, ended by whoever started it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.server.clients import Answer, Client, context
from webhook.certs.issue import LocalFiles

ROOT = Path(__file__).parent.parent.parent
SEED = ROOT / "tests" / "data" / "seed-cluster" / "cluster.json"
_LISTENING = re.compile(r"listening on https://127\.0\.0\.1:(\d+)")
_PATIENCE = 30.0


class Serving:
    """`gpu-webhook serve` with its files under `folder`; use it in a `with`."""

    def __init__(self, folder: Path, files: LocalFiles, policy: Path, *options: str, **environment: str) -> None:
        self.audit = folder / "audit"
        self.files = files
        self.tls = context(files.ca)
        self.stderr: list[str] = []
        self._listening = threading.Event()
        self.port = 0
        arguments = [
            *("serve", "--policy", str(policy), "--cluster", str(SEED), "--bind", "127.0.0.1:0"),
            *("--cert", str(files.cert), "--key", str(files.key), "--audit-dir", str(self.audit), *options),
        ]
        self.stdout = folder / "stdout"
        with self.stdout.open("wb") as stdout:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "webhook", *arguments],
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr.append(line)
            if found := _LISTENING.search(line):
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def __enter__(self) -> "Serving":
        assert self._listening.wait(_PATIENCE)
        assert self.port, "".join(self.stderr)
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(_PATIENCE)

    def wait_ready(self) -> None:
        """Until /readyz answers 200; the worker may just be starting."""

        def is_ready() -> bool:
            try:
                return self.once("/readyz").status == 200
            except (OSError, EOFError):
                return False

        wait_until(is_ready)

    def once(self, path: str, body: bytes | None = None) -> Answer:
        """One request on a connection of its own."""
        with self.client() as client:
            return client.get(path) if body is None else client.post(path, body)

    def client(self, timeout: float = 10.0) -> Client:
        return Client(self.port, self.tls, timeout)

    @property
    def worker(self) -> int:
        """The process that serves."""
        [child] = (Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()).split()
        return int(child)

    def memory(self) -> int:
        """Resident bytes of the process that serves."""
        return int(Path(f"/proc/{self.worker}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def metric(self, line: str) -> float:
        """The value of the one series that is written like this in /metrics."""
        text = self.once("/metrics").body.decode()
        [found] = [each for each in text.splitlines() if each.startswith(line + " ")]
        return float(found.split()[-1])

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE)

    def records(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.audit.glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                yield json.loads(line)


def wait_until(holds: Callable[[], bool], within: float = _PATIENCE) -> None:
    """Ask until it holds; processes have no event to wait for."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
