"""24 hours at one-minute steps: bounded, and a minute that nobody sampled is unknown, not zero."""

import msgspec

from tests.exporter.samples import record
from webhook.exporter.decisions import MINUTES, Reader, Tally
from webhook.exporter.history import History

SUMMARY = {"gpuRequested": 5, "gpuQuota": 12, "pendingPods": 2, "estimatedIdleCostPerHour": 12.5}
T0815 = 1796112930 // 60


def test_a_day_is_kept_and_no_more() -> None:
    history = History()
    for minute in range(T0815, T0815 + 2 * MINUTES):
        history.sample(minute, SUMMARY)
    assert len(history.minutes) == MINUTES
    document = history.document(T0815 + 2 * MINUTES - 1, Tally())
    assert len(document["time"]) == MINUTES and document["stepSeconds"] == 60
    assert len(msgspec.json.encode(history)) < 100_000


def test_refusals_are_laid_on_the_minute_in_which_they_happened() -> None:
    tally, history = Tally(), History()
    reader = Reader(tally)
    reader.add([record(1, "deny"), record(2, "allow"), record(3, "deny")])
    reader.flush()
    history.sample(T0815 + 5, SUMMARY)
    document = history.document(T0815 + 5, tally)
    assert document["time"] == [T0815 * 60, (T0815 + 5) * 60]
    assert document["denied"] == [2, 0] and document["admitted"] == [1, 0]
    assert document["gpuRequested"] == [None, 5], "nobody looked at the cluster then"
    assert document["idleCostPerHour"] == [None, 12.5]


def test_the_last_sample_of_a_minute_counts() -> None:
    history = History()
    history.sample(T0815, SUMMARY)
    history.sample(T0815, {**SUMMARY, "gpuRequested": 7})
    assert history.document(T0815, Tally())["gpuRequested"] == [7]
