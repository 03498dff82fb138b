"""The kubeconfig that points kubectl and the client libraries at the lab."""

import base64
from pathlib import Path

import yaml

from webhook.lab.resources import Object

CONTEXT = "lab"


def document(url: str, authority: bytes | None) -> Object:
    """A kubeconfig for the lab's admin."""
    cluster: Object = {"server": url}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "kubernetes-admin", "user": {"token": "lab"}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "lab", "user": "kubernetes-admin"}}],
    }


def write(path: Path, url: str, authority: bytes | None) -> None:
    """Write it, readable by its owner alone, as kubectl expects of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document(url, authority), sort_keys=False), encoding="utf-8")
