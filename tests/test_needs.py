"""A program that is not there: told as a skip to a developer, as a failure to CI."""

import pytest

from tests import needs


def test_a_program_that_is_there_is_found_under_any_of_its_names() -> None:
    assert needs.program("no-such-program", "apt-get install it", "sh").endswith("/sh")


def test_a_developer_reads_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="to have it: apt-get install it"):
        needs.program("no-such-program", "apt-get install it")


def test_ci_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not on the PATH"):
        needs.program("no-such-program", "apt-get install it")
