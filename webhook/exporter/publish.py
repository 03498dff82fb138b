"""Write `cluster-status.json`, `cluster-status.js` and the dashboard beside them, each whole or not at all."""

import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

JSON_NAME = "cluster-status.json"
JS_NAME = "cluster-status.js"
DASHBOARD = (
    *("index.html", "app.css", "strings-en.js", "strings-zh.js"),
    *("dom.js", "chart.js", "panels.js", "decisions.js", "app.js"),
)
"""The static page; opened from disk it needs only `cluster-status.js` beside it."""

_PREFIX, _SUFFIX = b"window.CLUSTER_STATUS = ", b";\n"
_ESCAPES = (
    (b"<", b"\\u003c"),  # </script> and <!-- end or change a script element
    (b">", b"\\u003e"),
    ("\u2028".encode(), b"\\u2028"),  # line ends for some JavaScript parsers, none for JSON
    ("\u2029".encode(), b"\\u2029"),
)


def as_json(status: dict[str, Any]) -> bytes:
    """UTF-8 without BOM, one line."""
    return msgspec.json.encode(status)


def as_js(document: bytes) -> bytes:
    """A script that holds exactly the object of `document`, safe inside and outside of a page.

    The four characters can only stand in JSON strings, where an escape means the same.
    """
    for raw, escape in _ESCAPES:
        document = document.replace(raw, escape)
    return _PREFIX + document + _SUFFIX


def publish(folder: Path, document: bytes) -> None:
    """Both files, each renamed into place; readers see the old or the new one. Raises OSError."""
    write_atomically(folder / JSON_NAME, document)
    write_atomically(folder / JS_NAME, as_js(document))


def copy_dashboard(folder: Path) -> None:
    """The static page into `folder`, which is made if it is missing. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARD:
        write_atomically(folder / name, dashboard_file(name))


def dashboard_file(name: str) -> bytes:
    """One file of the page, as it lies in the package. Raises FileNotFoundError for any other name."""
    if name not in DASHBOARD:
        raise FileNotFoundError(name)
    return resources.files(__package__).joinpath("dashboard", name).read_bytes()


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside `path`, then rename; a crash leaves the old file. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
