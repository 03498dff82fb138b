"""`gpu-webhook manifests`: the webhook registration, and the ConfigMap that carries the policy, ready to apply."""

import re
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from webhook.policy import registration
from webhook.policy.load import load_documents
from webhook.policy.problem import PolicyError

POLICY_CONFIGMAP = "gpu-webhook-policy"


@click.command()
@click.option("--policy", "directory", type=click.Path(path_type=Path), default=Path("policies"), show_default=True)
@click.option("-n", "--namespace", default=registration.NAME, show_default=True, help="Where the webhook runs.")
@click.option(
    "--namespace-label",
    default=registration.NAMESPACE_LABEL,
    show_default=True,
    metavar="KEY",
    help="Namespaces that carry this label are sent to the webhook.",
)
@click.option("--fail-closed", is_flag=True, help="What users create is refused while no webhook answers.")
@click.option("--url", metavar="https://HOST:PORT", help="The webhook runs outside the cluster, at this address.")
@click.option(
    "--ca-bundle", type=click.File("rb"), help="PEM of the authorities to trust; absent: `certs ensure` adds it."
)
@click.option("--configmap", is_flag=True, help="Print the policy ConfigMap instead.")
def command(
    directory: Path,
    namespace: str,
    namespace_label: str,
    fail_closed: bool,
    url: str | None,
    ca_bundle: Any,
    configmap: bool,
) -> None:
    """Print the webhook registration that the policy needs.

    The output depends on the policy's kinds, trusted controllers and selectors: print and apply it again when they
    change. A policy with a rule for namespaces that would never be sent is refused (exit 1).
    """
    try:
        documents = load_documents(directory)
    except PolicyError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    policy = documents.active(namespace)
    if configmap:
        pricing = [documents.pricing.file] if documents.pricing else []
        files = [Path(name) for name in (documents.policy.file, *pricing)]
        click.echo(render(policy_configmap(files, namespace, fail_closed)), nl=False)
        return
    if uncovered := registration.uncovered_rules(policy.spec, namespace_label):
        _refuse(uncovered, namespace_label)
    if url is not None and not re.fullmatch(r"https://[^/?#@]+/?", url):
        raise click.BadParameter("must be https://HOST:PORT, without path, query or user (V23)", param_hint="--url")
    wanted = registration.Registration(
        namespace=namespace,
        namespace_label=namespace_label,
        fail_closed=fail_closed,
        url=url,
        ca_bundle=ca_bundle.read() if ca_bundle else None,
    )
    click.echo(render(*registration.configurations(policy.spec, wanted)), nl=False)


def policy_configmap(files: list[Path], namespace: str, fail_closed: bool) -> dict[str, Any]:
    """The ConfigMap that the webhook's pods mount: the files of the policy folder, its tests left out.

    Its name never changes, so that an edit reaches running pods by itself instead of rolling them.
    """
    data = {path.name: path.read_text(encoding="utf-8") for path in sorted(set(files))}
    if fail_closed:
        data = {name: _deny_unplaced(text) for name, text in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": POLICY_CONFIGMAP,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": registration.NAME},
        },
        "data": data,
    }


def render(*manifests: dict[str, Any]) -> str:
    """YAML documents with a first line that tells where they come from."""
    body = yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return f"# Generated from the policy by `gpu-webhook manifests`; change the policy, not this.\n{body}"


def _deny_unplaced(text: str) -> str:
    """A policy file with `onUnplaced: deny`, its comments kept; the result is proved by reading it.

    Raises click.ClickException when the file is written in a way that this cannot edit.
    """
    before = list(yaml.safe_load_all(text))
    wanted = [
        {**document, "spec": {**document["spec"], "onUnplaced": "deny"}}
        if document and document["kind"] == "GpuPolicy"
        else document
        for document in before
    ]
    if wanted == before:
        return text
    changed, found = re.subn(r"(?m)^  onUnplaced:.*$", "  onUnplaced: deny", text)
    if not found:
        changed = re.sub(r"(?m)^spec:[ \t]*(#.*)?$", r"\g<0>\n  onUnplaced: deny", text, count=1)
    if list(yaml.safe_load_all(changed)) != wanted:
        raise click.ClickException("cannot add it to the policy by itself: write `onUnplaced: deny` under `spec:`")
    return changed


def _refuse(uncovered: tuple[str, ...], namespace_label: str) -> None:
    for name in uncovered:
        click.echo(
            f"rule {name}: its namespaceSelector does not require the label {namespace_label}, so the API server would "
            f"not send all of its namespaces; select by {namespace_label}, or register another key with "
            "--namespace-label",
            err=True,
        )
    sys.exit(1)


class _Dumper(yaml.SafeDumper):
    """Repeats instead of using anchors, and writes texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
