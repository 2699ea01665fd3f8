"""Drafts of parts of an image: nothing is copied until it changes.

Owns what drafts have in common; `delta` and `topics_delta` own the changes that records make.
"""

from __future__ import annotations

from typing import TypeVar

from immutables import Map

K = TypeVar("K")
V = TypeVar("V")


class MapDraft(dict[K, "V | None"]):
    """Changes to a persistent map: a value, or None for a deletion."""

    __slots__ = ("_before",)

    def __init__(self, before: Map[K, V]) -> None:
        super().__init__()
        self._before = before

    def current(self, key: K) -> V | None:
        return self[key] if key in self else self._before.get(key)

    def build(self) -> Map[K, V]:
        if not self:
            return self._before
        mutation = self._before.mutate()
        for key, value in self.items():
            if value is not None:
                mutation[key] = value
            elif key in mutation:
                del mutation[key]
        return mutation.finish()

    def changed(self) -> tuple[K, ...]:
        return tuple(key for key, value in self.items() if value != self._before.get(key))
