"""Programs that tests drive: without one a developer's run skips with the reason, and CI fails."""

import os
import shutil

import pytest


def program(name: str, install: str, *also: str) -> str:
    """The path of a program, or of one that does as well (`also`); `install` says how it is had."""
    found = next(filter(None, map(shutil.which, (name, *also))), None)
    if found is not None:
        return found
    reason = f"{name} is not on the PATH; to have it: {install}"
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI skips nothing)")
    pytest.skip(reason, allow_module_level=True)


def kubectl() -> str:
    """The kubectl on the PATH."""
    return program("kubectl", "see https://kubernetes.io/docs/tasks/tools/")
