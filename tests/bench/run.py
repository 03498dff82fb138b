"""`make bench`: measure everything that has a bar, print a table, write `bench/results.json` and `bench/results.md`.

With `--guard` only what compares two things measured here counts, with generous limits: exit status 1 if one of them
has become far worse. That holds on any machine, and so in CI.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import core, readers, scale, server
from tests.bench.measure import ROOT, Row
from webhook.certs.issue import LocalFiles, local_pair

OUT = ROOT / "bench"
GUARD_SLACK = 1.6
"""How far beyond its bar a ratio may be before the guard fails."""

Part = Callable[[Path, LocalFiles], Iterator[Row]]
PARTS: dict[str, Part] = {
    "core": lambda folder, _: core.rows(folder),
    "server": server.rows,
    "scale": scale.rows,
    "readers": lambda folder, _: readers.rows(folder),
}


def machine() -> dict[str, str]:
    """What the figures hold for."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = {name: importlib.metadata.version(name) for name in ("flask", "gunicorn", "msgspec", "kopf")}
    return {"cpu": model, "cores": str(os.cpu_count()), "python": platform.python_version(), **versions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these of {', '.join(PARTS)}")
    parser.add_argument("--guard", action="store_true", help="fail if a ratio is far beyond its bar")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    console, rows, start = Console(), [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-webhook-bench-") as temporary:
        folder = Path(temporary)
        files = local_pair(folder / "pair")
        for name in chosen.parts or PARTS:
            for row in PARTS[name](folder, files):
                rows.append(row)
                console.print(f"[dim]{row.name}: {shown(row.value)} {row.unit}[/dim]")
    console.print(table(rows))
    OUT.mkdir(exist_ok=True)
    result = {"machine": machine(), "seconds": round(time.monotonic() - start), "rows": [row.as_json() for row in rows]}
    (OUT / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    (OUT / "results.md").write_text(markdown(rows))
    worse = [row for row in rows if row.is_ratio and not row.within(GUARD_SLACK)]
    for row in worse if chosen.guard else ():
        console.print(f"[red]{row.name}: {shown(row.value)} {row.unit} is far beyond {shown(row.bar)}[/red]")
    return 1 if chosen.guard and worse else 0


def table(rows: list[Row]) -> Table:
    made = Table("what", "measured", "must reach", "", "detail")
    for row in rows:
        bar = f"{'>=' if row.at_least else '<='} {shown(row.bar)} {row.unit}"
        verdict = "[green]reached[/green]" if row.reached else "[red]missed[/red]"
        made.add_row(row.name, f"{shown(row.value)} {row.unit}", bar, verdict, row.detail)
    return made


def markdown(rows: list[Row]) -> str:
    """The table of `docs/performance.md`."""
    lines = ["| what | measured | must reach | |", "|---|---|---|---|"]
    for row in rows:
        bar = f"{'>=' if row.at_least else '<='} {shown(row.bar)} {row.unit}"
        lines.append(f"| {row.name} | {shown(row.value)} {row.unit} | {bar} | {row.detail} |")
    return "\n".join(lines) + "\n"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
