"""What stands beside the cluster during a walk: the webhook as a process of its own, registered, and the exporter."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webhook.certs.issue import local_pair
from webhook.cli.walk import Cluster, WalkError
from webhook.policy import registration
from webhook.policy.load import load

START = 20.0
"""Seconds that a process may take to answer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder for certificates, logs, audit stream and dashboard, and the cluster that our processes talk to.

    `host` is the address at which the API server reaches this machine.
    """

    folder: Path
    kubeconfig: Path
    policy: Path = Path("policies")
    host: str = "127.0.0.1"
    namespace_label: str = registration.NAMESPACE_LABEL

    @property
    def audit(self) -> Path:
        return self.folder / "audit"

    @property
    def dashboard(self) -> Path:
        return self.folder / "dashboard"

    @property
    def authority(self) -> Path:
        return self.folder / "certs" / "ca.crt"

    @contextmanager
    def webhook(self) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
        """The TLS server, ready; yields its address (https://host:port) and the process."""
        pair = local_pair(self.folder / "certs", names=[self.host, "localhost"])
        bind = f"{'127.0.0.1' if self.host == '127.0.0.1' else '0.0.0.0'}:0"
        arguments = ["serve", "--policy", str(self.policy), "--bind", bind, "--audit-dir", str(self.audit)]
        arguments += ["--cert", str(pair.cert), "--key", str(pair.key), "--namespace-label", self.namespace_label]
        with self.process(arguments, "serve.log") as process:
            port = self.line(process, "serve.log", "listening on https://").rpartition(":")[2]
            address = f"https://{self.host}:{port}"
            self._await_answer(process, "serve.log", f"{address}/readyz")
            yield address, process

    def registration(self, address: str, name: str = registration.NAME) -> list[dict[str, Any]]:
        """Both webhook configurations, for a webhook at `address`."""
        wanted = registration.Registration(
            name=name, namespace_label=self.namespace_label, url=address, ca_bundle=self.authority.read_bytes()
        )
        return list(registration.configurations(load(self.policy).spec, wanted))

    def export(self) -> dict[str, Any]:
        """One round of the exporter: the dashboard's data."""
        arguments = ["export", "--once", "--policy", str(self.policy), "--audit", str(self.audit)]
        arguments += ["--namespace-label", self.namespace_label]
        with self.process([*arguments, "--out", str(self.dashboard)], "export.log") as process:
            if process.wait(60) != 0:
                raise WalkError(f"the exporter failed: {self.log('export.log')}")
        status: dict[str, Any] = json.loads((self.dashboard / "cluster-status.json").read_text(encoding="utf-8"))
        return status

    @contextmanager
    def exporter(self) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
        """The exporter, serving the dashboard with data; yields its address and the process."""
        arguments = ["export", "--policy", str(self.policy), "--audit", str(self.audit), "--interval", "2"]
        arguments += ["--namespace-label", self.namespace_label]
        with self.process(
            [*arguments, "--out", str(self.dashboard), "--serve", "127.0.0.1:0"], "export.log"
        ) as process:
            address = self.line(process, "export.log", "http://").partition("dashboard at ")[2]
            self._await_answer(process, "export.log", f"{address}cluster-status.json")
            yield address, process

    @contextmanager
    def process(self, arguments: list[str], log: str) -> "Iterator[subprocess.Popen[bytes]]":
        """One of our own commands against the cluster, its messages in a log, ended with SIGTERM."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "webhook", *arguments],
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone, so that things end in their order
            )
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def line(self, process: "subprocess.Popen[bytes]", log: str, words: str) -> str:
        """The first line of a log that holds `words`. Raises WalkError if the process ends or takes too long."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and process.poll() is None:
            for line in self.log(log).splitlines():
                if words in line:
                    return line
            time.sleep(0.05)
        raise WalkError(f"expected {words!r} in {self.folder / log}, saw: {self.log(log)}")

    def log(self, name: str) -> str:
        """The end of a log."""
        return (self.folder / name).read_text(errors="replace")[-4000:]

    def _await_answer(self, process: "subprocess.Popen[bytes]", log: str, url: str) -> None:
        """Until a GET succeeds. Raises WalkError with the log's end if the process ends or takes too long."""
        context = ssl.create_default_context(cafile=str(self.authority))
        direct = urllib.request.ProxyHandler({})
        opener = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context))
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with opener.open(url, timeout=2):
                    return
            except OSError:  # not listening yet, or an HTTP error: not synced yet
                time.sleep(0.05)
        raise WalkError(f"expected an answer of {url}, saw: {self.log(log)}")


@contextmanager
def registered(cluster: Cluster, configurations: list[dict[str, Any]]) -> Iterator[None]:
    """The configurations, created and in the end deleted."""
    with ExitStack() as stack:
        for obj in configurations:
            stack.callback(cluster.delete, obj)
            cluster.create(obj)
        yield
