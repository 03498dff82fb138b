"""Events are repeated, combined and limited as client-go does it."""

import pytest

from tests.lab.conftest import events, pod
from webhook.lab.call import Call, service_account
from webhook.lab.events import Recorder
from webhook.lab.resources import Object
from webhook.lab.server import Lab


@pytest.fixture
def about(quiet_lab: Lab) -> Object:
    return quiet_lab.create(pod("p"))


@pytest.fixture
def recorder(quiet_lab: Lab) -> Recorder:
    user = service_account("kube-system", "replicaset-controller")
    return Recorder(quiet_lab.registry, Call(user=user), "replicaset-controller")


def test_the_same_event_is_counted(quiet_lab: Lab, recorder: Recorder, about: Object) -> None:
    for _ in range(3):
        recorder.record(about, "Warning", "FailedCreate", "no room")
    (event,) = events(quiet_lab, "default", "FailedCreate")
    assert (event["count"], event["message"]) == (3, "no room")
    assert event["source"] == {"component": "replicaset-controller"}
    assert event["involvedObject"]["uid"] == about["metadata"]["uid"]


def test_from_the_tenth_on_similar_events_are_combined(quiet_lab: Lab, recorder: Recorder, about: Object) -> None:
    """As recorded in seed-cluster: nine alone, then one that stands for the rest."""
    for number in range(12):
        recorder.record(about, "Warning", "FailedCreate", f"no room {number}")
    found = sorted(events(quiet_lab, "default", "FailedCreate"), key=lambda event: event["count"])
    assert [event["count"] for event in found] == [1] * 9 + [3]
    assert found[-1]["message"] == "(combined from similar events): no room 11"


def test_about_one_object_there_are_at_most_25_at_once(quiet_lab: Lab, recorder: Recorder, about: Object) -> None:
    for _ in range(40):
        recorder.record(about, "Warning", "FailedCreate", "no room")
    (event,) = events(quiet_lab, "default", "FailedCreate")
    assert event["count"] == 25


def test_the_scheduler_style_has_a_series(quiet_lab: Lab, recorder: Recorder, about: Object) -> None:
    for _ in range(2):
        recorder.record_series(about, "Warning", "FailedScheduling", "Scheduling", "0/0 nodes")
    (event,) = events(quiet_lab, "default", "FailedScheduling")
    assert event["series"]["count"] == 2 and event["action"] == "Scheduling"
    assert "count" not in event and event["source"] == {}
