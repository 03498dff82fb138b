"""Keeps a certificate for a webhook on this machine in a folder, for the demo and for tests."""

import datetime as dt
from collections.abc import Iterable
from pathlib import Path

from webhook.certs import rotate
from webhook.certs.issue import LOCAL_NAMES, LocalFiles, Pair, write_file, write_files
from webhook.certs.rotate import Action, Material, Plan


def ensure(
    directory: Path | str, names: Iterable[str] = LOCAL_NAMES, now: dt.datetime | None = None
) -> tuple[LocalFiles, Plan]:
    """Make, renew or keep `ca.crt`, `ca.key`, `tls.crt` and `tls.key` by the rules of `webhook.certs.rotate`."""
    now = now or dt.datetime.now(dt.UTC)
    wanted = tuple(names)
    folder = Path(directory)
    before = _read(folder)
    plan = rotate.decide(before, wanted, now)
    after = rotate.apply(plan, before, wanted, now)
    if plan.action is not Action.KEEP:
        write_files(folder, after.bundle, after.leaf)
        write_file(folder / "ca.key", after.ca_key)
    return LocalFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key"), plan


def _read(folder: Path) -> Material | None:
    try:
        return Material(
            (folder / "ca.crt").read_bytes(),
            (folder / "ca.key").read_bytes(),
            Pair((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes()),
        )
    except FileNotFoundError:
        return None
