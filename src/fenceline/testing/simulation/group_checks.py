"""Committed offsets of groups: an offset changes only by a request that was sent for it.

Owns, for each group and partition of one topic id, the current commit and the possible ones: a request without a
response, or with an error response, may have taken effect or do so later. Each commit has its own metadata, so that two
commits of the same offset differ. An offset belongs to one topic id: a new topic of the same name has none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_crashes import Key


class Commit(NamedTuple):
    """An offset and the metadata that distinguishes this commit from all others. `offset` -1: there is none."""

    offset: int
    metadata: str


NOTHING: Final = Commit(-1, "")


class CheckedPosition:
    """The committed offset of one group in one partition."""

    __slots__ = ("known", "older", "possible")

    def __init__(self) -> None:
        self.known = NOTHING
        """The last commit that was acknowledged or read."""
        self.possible: set[Commit] = set()
        """Commits that may be in effect instead."""
        self.older: set[Commit] = {NOTHING}
        """Commits that were in effect before."""


class CheckedPositions:
    """The committed offsets of all groups."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, Key], CheckedPosition] = {}

    def _of(self, group: str, key: Key) -> CheckedPosition:
        return self._positions.setdefault((group, key), CheckedPosition())

    def sends(self, group: str, key: Key, commit: Commit) -> None:
        """The request is sent: it may take effect from now on."""
        self._of(group, key).possible.add(commit)

    def deletes(self, group: str, key: Key | None = None) -> None:
        """A deletion is sent: the offset, or all offsets of the group (None), may be deleted from now on."""
        for (each, of), position in self._positions.items():
            if each == group and key in (None, of):
                position.possible.add(NOTHING)

    def acknowledged(self, group: str, key: Key, commit: Commit) -> None:
        """The commit is in effect, unless another possible one is."""
        position = self._of(group, key)
        position.older.add(position.known)
        position.known = commit
        position.possible.discard(commit)

    def deleted(self, group: str, key: Key | None = None) -> None:
        """The deletion that `deletes` announced was acknowledged."""
        for each, of in list(self._positions):
            if each == group and key in (None, of):
                self.acknowledged(group, of, NOTHING)

    def read(self, group: str, key: Key, commit: Commit, where: str, *, may_be_older: bool) -> None:
        """The coordinator returns this commit. `may_be_older`: commits of groups were lost for a known reason. Raises
        InvariantBroken."""
        position = self._of(group, key)
        if commit == position.known:
            return
        if commit not in position.possible and not (may_be_older and commit in position.older):
            raise InvariantBroken(
                f"{where}: {group} reads {_describe(commit)} after {_describe(position.known)} (committed offsets)"
            )
        position.older.add(position.known)
        position.known = commit


def _describe(commit: Commit) -> str:
    return "no offset" if commit == NOTHING else f"offset {commit.offset} of commit {commit.metadata}"
