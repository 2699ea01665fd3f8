"""Validity and collisions of topic names.

Rules: controller.md C21: 1 to 249 of letters, digits, `.`, `_` and `-`, not `.` or `..`; two names that differ only in
`.` against `_` cannot both exist (their metric names would be the same).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_NAME_LENGTH: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def name_fault(name: str) -> str | None:
    """Why a topic name is invalid, in Kafka's words, or None."""
    if not name:
        reason = "the empty string is not allowed"
    elif name == ".":
        reason = "'.' is not allowed"
    elif name == "..":
        reason = "'..' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _LEGAL.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {reason}"


class NameIndex:
    """Names that contain `.` or `_`, by the form in which they collide."""

    __slots__ = ("_by_form",)

    def __init__(self, names: Iterable[str]) -> None:
        self._by_form: dict[str, set[str]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        if "." in name or "_" in name:
            self._by_form.setdefault(name.replace(".", "_"), set()).add(name)

    def remove(self, name: str) -> None:
        if "." in name or "_" in name:
            form = name.replace(".", "_")
            names = self._by_form.get(form, set())
            names.discard(name)
            if not names:
                self._by_form.pop(form, None)

    def colliding(self, name: str) -> str | None:
        """An existing topic that `name` collides with, itself included."""
        if "." not in name and "_" not in name:
            return None
        names = self._by_form.get(name.replace(".", "_"))
        return min(names) if names else None
