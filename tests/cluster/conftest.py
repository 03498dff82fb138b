"""A fake API per test, and objects to put into it."""

from collections.abc import Iterator

import pytest

from tests.cluster.fake_api import FakeApi, running


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    with running() as api:
        yield api
