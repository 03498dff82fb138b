"""What this process has just admitted and whose pods may not exist yet (DESIGN 5.7): kept for 15 seconds at most."""

import threading
from collections.abc import Callable, Mapping

from webhook.decision.facts import Note

LIFETIME = 15.0
"""Seconds. A workload without pods after that is stuck, not starting, and must not block others (B44)."""

Notes = Mapping[str, tuple[Note, ...]]


class Notebook:
    """Notes by namespace. Readers take `notes`, a mapping that is never changed, without a lock."""

    def __init__(self) -> None:
        self.notes: Notes = {}
        self._lock = threading.Lock()

    def add(self, note: Note) -> None:
        """Remember a note, and forget those that have had their time.

        It stands in place of one for the same generation (the API server may ask twice about one write, A19) or for an
        earlier object of the same name; two generations of one object both need their room.
        """
        with self._lock:
            kept = {
                namespace: alive
                for namespace, notes in self.notes.items()
                if (alive := tuple(other for other in notes if note.at - other.at < LIFETIME))
            }
            others = (other for other in kept.get(note.namespace, ()) if not _replaces(note, other))
            kept[note.namespace] = (*others, note)
            self.notes = kept

    def drop(self, namespace: str, ended: Callable[[Note], bool]) -> None:
        """Forget the notes of a namespace for which `ended` holds."""
        if namespace not in self.notes:
            return
        with self._lock:
            notes = self.notes.get(namespace, ())
            kept = tuple(note for note in notes if not ended(note))
            if len(kept) < len(notes):
                self.notes = {**self.notes, namespace: kept}


def _replaces(note: Note, other: Note) -> bool:
    if (note.kind, note.name) != (other.kind, other.name):
        return False
    return note.uid != other.uid or note.workload.metadata.generation == other.workload.metadata.generation
