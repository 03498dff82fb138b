"""Programs that read what was recorded: the exporter, `audit query`, `policy replay`; and how fast a program starts."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench import records, replayed
from tests.bench.measure import POLICY, ROOT, SEED, Row

COUNT = 1_000_000
MORE = 10_000
REPLAYED = 50_000


class Run(NamedTuple):
    seconds: float
    mib: float
    """Resident memory at its highest, of all processes of the program together."""
    processor: float
    """Seconds of processor time of all processes: what else the machine does must not count."""


def run(*arguments: str, allowed: Sequence[int] = (0,)) -> Run:
    """Run the program once."""
    start = time.perf_counter()
    command, devnull, pipe = [sys.executable, "-m", "webhook", *arguments], subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=devnull, stderr=pipe, start_new_session=True)
    assert process.stderr is not None
    most, ended = [0.0], threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, most, ended))
    watch.start()
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    ended.set()
    watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in allowed:
        raise RuntimeError(f"{' '.join(arguments)}: status {process.returncode}: {errors.decode()[-500:]}")
    return Run(seconds, max(usage.ru_maxrss / 1024, most[0]), usage.ru_utime + usage.ru_stime)


def _watch(session: int, most: list[float], ended: threading.Event) -> None:
    """Keep the most MiB that the processes of a session had together, looking ten times a second."""
    page = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    while not ended.wait(0.1):
        total = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == session:
                total += int(fields[21]) * page
        most[0] = max(most[0], total)


def rows(folder: Path, count: int = COUNT) -> Iterator[Row]:
    yield Row("gpu-webhook --help", min(run("--help").seconds for _ in range(5)), "s", 0.35)
    audit = folder / "records"
    records.write(audit, count)
    yield from _exporter(folder, audit, count)
    query = run("audit", "query", "--audit", str(audit), "--verdict", "deny", "--user", "user-7@example.com")
    millions = f"{count:,} records"
    yield Row("audit query", query.seconds * COUNT / count, "s", 8, detail=millions)
    yield Row("audit query: memory", query.mib, "MiB", 200, detail=millions)
    shutil.rmtree(audit)
    yield from _replay(folder)


def _exporter(folder: Path, audit: Path, count: int) -> Iterator[Row]:
    arguments = ("export", "--once", "--cluster", str(SEED), "--policy", str(POLICY), "--audit", str(audit))
    out = ("--out", str(folder / "out"))
    start_up = run(*arguments[:-1], str(_empty(folder)), "--out", str(folder / "out-empty"))
    cold = run(*arguments, *out)
    rate = count / (cold.seconds - start_up.seconds)
    yield Row("exporter: records a second, cold", rate, "/s", 100_000, at_least=True, detail=f"{count:,} records")
    yield Row("exporter: memory", cold.mib, "MiB", 300, detail="all its processes")
    records.write(audit, MORE)
    both = run(*arguments, *out).processor
    again = run(*arguments[:-1], str(_empty(folder)), "--out", str(folder / "out-empty")).processor
    more = max(both - min(start_up.processor, again), 0.0)
    share = more / (cold.processor - start_up.processor)
    yield Row(
        f"exporter: {MORE} records more, beside the cold run",
        share,
        "x",
        0.05,
        is_ratio=True,
        detail=f"processor time: {more:.2f} s, cold {cold.processor:.1f} s",
    )


def _empty(folder: Path) -> Path:
    made = folder / "no-records"
    made.mkdir(exist_ok=True)
    return made


def _replay(folder: Path) -> Iterator[Row]:
    audit, policies = replayed.write(folder, REPLAYED)

    def replay(processes: int) -> Run:
        arguments = ("policy", "replay", "--policy", str(policies), "--audit", str(audit), "-o", "json")
        return run(*arguments, "--processes", str(processes))

    one = replay(1)
    yield Row("policy replay: decisions a second, one core", REPLAYED / one.processor, "/s", 5_000, at_least=True)
    if (os.cpu_count() or 1) > 1:
        gain = one.seconds / replay(2).seconds
        yield Row("policy replay: two cores beside one", gain, "x", 1.4, at_least=True, is_ratio=True)
