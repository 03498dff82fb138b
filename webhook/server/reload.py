"""The policy in force, replaced while serving: looked at every second, swapped whole, the last good one kept (B71).

Half a YAML file is often a whole policy with fewer rules. What two looks in a row have seen is no longer being written.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from webhook.policy.active import Policy
from webhook.policy.load import load
from webhook.policy.problem import PolicyError

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the folder; a change is live after two of them."""

_SUFFIXES: Final = (".yaml", ".yml")


class PolicyFolder:
    """Holds the policy of a folder. `policy` is one reference: whoever takes it has one whole policy for its request.

    The folder's content decides, not times or inodes, so a plain folder, several files and a ConfigMap's `..data` link
    are all the same to it, and a change that is taken back within a second is no change.
    """

    def __init__(self, directory: Path, own_namespace: str = "", loader: Callable[[Path, str], Policy] = load) -> None:
        """Raises PolicyError when there is no good policy to start with."""
        self._directory = directory
        self._own_namespace = own_namespace
        self._loader = loader
        self._signature = self._seen = content_signature(directory)
        self.policy = loader(directory, own_namespace)
        self.error: str | None = None
        """Why the files that lie there now are not in force; None while they are."""
        self.changes = 0
        """How many times a new policy took effect since the start."""
        self._on_change: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Watch from a thread of our own, until `stop`; `on_change` is called there when a new policy took effect.

        Warns once about files that can never change (subPath).
        """
        self._on_change = on_change
        for path in lone_mounts(self._directory):
            log.warning(
                "policy file %s is mounted by itself (subPath): edits of its ConfigMap never arrive; mount the folder",
                path,
            )
        self._thread = threading.Thread(target=self._watch, name="policy-reload", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Take over what lies in the folder if it changed, is whole and is good; never raises.

        Whole is what lay there at the last look already.
        """
        signature = content_signature(self._directory)
        before, self._seen = self._seen, signature
        if signature == self._signature or signature != before:
            return
        try:
            policy = self._loader(self._directory, self._own_namespace)
        except PolicyError as error:
            self._refuse(str(error), signature)
        except Exception as error:  # a fault of ours must not end the watch
            self._refuse(f"{type(error).__name__}: {error}", signature)
        else:
            self._signature = signature
            self.policy = policy
            self.error = None
            self.changes += 1
            log.info("policy %s is now %s", policy.name, policy.revision)
            self._on_change()

    def reasons(self) -> Iterator[str]:
        """What an operator should know, for `/readyz`."""
        if self.error is not None:
            first, *more = self.error.splitlines()
            yield f"policy: {self.policy.revision} stays in force, because {first}" + (
                f" (and {len(more)} more)" if more else ""
            )

    def _refuse(self, text: str, signature: bytes) -> None:
        if text != self.error:
            log.error("policy not taken over, %s stays in force: %s", self.policy.revision, text)
        self.error = text
        # What was refused may have been read in the middle of a change: only content that stayed as it was is settled.
        self._signature = signature if content_signature(self._directory) == signature else b""

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY):
            self.look()


def content_signature(directory: Path) -> bytes:
    """A digest of the names and contents of the policy files; of the reason instead where they cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES):
            digest.update(path.name.encode() + b"\0")
            try:
                digest.update(hashlib.sha256(path.read_bytes()).digest())
            except OSError as error:
                digest.update(str(error.errno).encode())
    except OSError as error:
        digest.update(str(error.errno).encode())
    return digest.digest()


def lone_mounts(directory: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> list[Path]:
    """Policy files that are mount points themselves: that is what `subPath` makes, and such a file never changes."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux, or /proc is hidden: then nobody can tell
        return []
    points = {_unescape(fields[4]) for line in lines if len(fields := line.split()) > 4}
    root = directory.absolute()
    return sorted(path for path in map(Path, points) if path.parent == root and path.suffix in _SUFFIXES)


def _unescape(field: str) -> str:
    """mountinfo writes blank, tab, newline and backslash in octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
