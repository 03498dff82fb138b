"""What auditing costs: the ledger for each review, and readers for each record. Run by `make bench`, else skipped."""

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.audit.samples import REVISION, decision_for, golden
from tests.bench import records
from webhook.audit import record
from webhook.audit.ledger import Ledger
from webhook.audit.query import Filter, Selection, Summariser, select
from webhook.audit.read import Follower
from webhook.audit.verify import verify

COUNT = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("audit")
    records.write(made, COUNT)
    return made


def test_encode(benchmark: BenchmarkFixture) -> None:
    request = golden("pod-create")[0]
    decision = decision_for(request)
    assert benchmark(record.encode, request, decision, "default", REVISION, 0.6).startswith(b'{"schema"')


def test_append(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The bar is 40 microseconds: chain and write, no fsync."""
    body = records.bodies()[0]
    with Ledger(tmp_path) as ledger:
        assert benchmark(ledger.append, body)


def test_follow(benchmark: BenchmarkFixture, folder: Path) -> None:
    def follow() -> int:
        follower, count = Follower([folder]), 0
        while lines := follower.poll():
            count += sum(line.kind == "record" for line in lines)
        follower.close()
        return count

    assert benchmark(follow) == COUNT


def test_verify(benchmark: BenchmarkFixture, folder: Path) -> None:
    assert [report.state for report in benchmark(verify, folder)] == ["intact"]


def test_query_that_matches_few(benchmark: BenchmarkFixture, folder: Path) -> None:
    def query() -> int:
        return sum(1 for _ in select([folder], Selection(Filter(user="user-7@example.com", verdict="deny"))))

    assert 0 < benchmark(query) < COUNT / 50


def test_query_that_matches_all(benchmark: BenchmarkFixture, folder: Path) -> None:
    assert benchmark(lambda: sum(1 for _ in select([folder], Selection(Filter())))) == COUNT


def test_summary(benchmark: BenchmarkFixture, folder: Path) -> None:
    def sum_up() -> int:
        summariser = Summariser()
        for match in select([folder], Selection(Filter())):
            summariser.add(match.entry)
        return summariser.summary().records

    assert benchmark(sum_up) == COUNT
