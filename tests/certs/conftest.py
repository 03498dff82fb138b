"""A fake API with both webhook configurations as deploy/base registers them."""

from collections.abc import Iterator

import pytest

from tests.certs.fake_api import FakeApi, serving
from webhook.policy.model import Spec
from webhook.policy.registration import Registration, configurations

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{REGISTRATION}/mutatingwebhookconfigurations/gpu-webhook"
VALIDATING = f"{REGISTRATION}/validatingwebhookconfigurations/gpu-webhook"


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    mutating, validating = configurations(Spec(rules=()), Registration(fail_closed=True))
    fake.put(MUTATING, mutating)
    fake.put(VALIDATING, validating)
    return fake


@pytest.fixture
def url(api: FakeApi) -> Iterator[str]:
    with serving(api) as address:
        yield address
