"""What is wrong with a policy folder, said so that it can be mended: file, line, column, path, sentence, hint."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec


class Place(NamedTuple):
    """A position in a file; line and column count from 1, as editors do. Line 0: the file as a whole."""

    file: str
    line: int
    column: int


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error of a policy folder; `path` is the place in the document, say `spec.rules[1].pools`."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f"{self.path}: " if self.path else ""
        return f"{where}: {path}{self.message}" + (f" ({self.hint})" if self.hint else "")


class PolicyError(Exception):
    """A policy folder that cannot be used; it takes no effect, and whatever is in force stays in force (rule 7)."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.column))
        super().__init__("\n".join(map(str, self.problems)))


class Places(Mapping[str, Place]):
    """Where each path of a document stands; a path that is not written (a default) has the place of its parent."""

    def __init__(self, root: Place, places: Mapping[str, Place] | None = None) -> None:
        self._root = root
        self._places = dict(places or {})

    def __getitem__(self, path: str) -> Place:
        while path and path not in self._places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._places.get(path, self._root)

    def __contains__(self, path: object) -> bool:
        return path in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


NOWHERE = Places(Place("", 0, 0))
"""The places of a policy that was not read from files."""
