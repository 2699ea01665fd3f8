"""What groups have committed: a position moves only by a request that was sent for it.

Owns, for each group and partition of one topic id, the commit that counts and those that may: a request that was not
answered, or answered with an error, may have taken effect or do so later. Each commit has its own metadata, so that two
of the same offset differ. A position belongs to one topic id: a new topic of the same name begins without one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_crashes import Key


class Commit(NamedTuple):
    """An offset and what distinguishes this commit from all others. `offset` -1: there is none."""

    offset: int
    metadata: str


NOTHING: Final = Commit(-1, "")


class Position:
    """Of one group in one partition."""

    __slots__ = ("known", "older", "possible")

    def __init__(self) -> None:
        self.known = NOTHING
        """The last one that was acknowledged or read."""
        self.possible: set[Commit] = set()
        """Those that may count as well."""
        self.older: set[Commit] = {NOTHING}
        """Those that counted once."""


class Positions:
    """Of all groups."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, Key], Position] = {}

    def _of(self, group: str, key: Key) -> Position:
        return self._positions.setdefault((group, key), Position())

    def sends(self, group: str, key: Key, commit: Commit) -> None:
        """It may take effect from now on."""
        self._of(group, key).possible.add(commit)

    def deletes(self, group: str, key: Key | None = None) -> None:
        """Its position, or all of the group's (None), may go from now on."""
        for (each, of), position in self._positions.items():
            if each == group and key in (None, of):
                position.possible.add(NOTHING)

    def acknowledged(self, group: str, key: Key, commit: Commit) -> None:
        """From now on it counts, unless another one that is possible does."""
        position = self._of(group, key)
        position.older.add(position.known)
        position.known = commit
        position.possible.discard(commit)

    def deleted(self, group: str, key: Key | None = None) -> None:
        """What `deletes` was for has been acknowledged."""
        for each, of in list(self._positions):
            if each == group and key in (None, of):
                self.acknowledged(group, of, NOTHING)

    def read(self, group: str, key: Key, commit: Commit, where: str, *, may_be_older: bool) -> None:
        """The coordinator says that this one counts. `may_be_older`: what groups committed was lost with reason.
        Raises InvariantBroken."""
        position = self._of(group, key)
        if commit == position.known:
            return
        if commit not in position.possible and not (may_be_older and commit in position.older):
            raise InvariantBroken(
                f"{where}: {group} has {_told(commit)}, it had {_told(position.known)} (committed offsets)"
            )
        position.older.add(position.known)
        position.known = commit


def _told(commit: Commit) -> str:
    return "no position" if commit == NOTHING else f"offset {commit.offset} of commit {commit.metadata}"
