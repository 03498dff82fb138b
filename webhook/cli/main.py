"""The program `gpu-webhook`: a table of commands, each loaded only when it is named."""

import importlib

import click

COMMANDS = {
    "serve": ("webhook.cli.serve", "Run the TLS admission server."),
    "review": ("webhook.cli.review", "Judge manifests or AdmissionReviews offline, as /mutate would."),
    "policy": ("webhook.cli.policy", "Check, test, replay and compare policy files."),
    "audit": ("webhook.cli.audit", "Read and verify the stream of decisions."),
    "export": ("webhook.cli.export", "Write dashboard data, serve the dashboard and metrics."),
    "certs": ("webhook.cli.certs", "Make, renew and show certificates."),
    "manifests": ("webhook.cli.manifests", "Print the webhook registration that the policy needs."),
    "doctor": ("webhook.cli.doctor", "Tell whether this installation is safe and working."),
    "lab": ("webhook.cli.lab", "Run a look-alike Kubernetes API, for demos and tests only."),
    "demo": ("webhook.cli.demo", "Walk through the product on the lab."),
}
"""Name -> (module that holds a click command named `command`, one line for --help)."""


class _LazyGroup(click.Group):
    """Lists commands without importing them, so that --help is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="gpu-webhook", prog_name="gpu-webhook")
def main() -> None:
    """GPU workloads get their priority class and node pool, or one clear sentence why they cannot run.

    Every command exits 0 for good, 1 for bad news (denied, failed test, lint error, broken chain), 2 for bad usage or
    input that cannot be read.
    """
