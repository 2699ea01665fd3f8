"""What a long run tells while it runs: a line a minute, past pytest's capturing, and the sums at its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from tests.support.replicated_groups import Member
from tests.support.replicated_readers import Reader
from tests.support.replicated_senders import Sender

_EVERY_S: Final = 60.0


class Progress:
    """`look` is called often, by the thread that runs the test. `config` of who wants to see it at once."""

    def __init__(
        self,
        config: pytest.Config | None,
        senders: Sequence[Sender],
        readers: Sequence[Reader],
        members: Sequence[Member],
        troubles: Mapping[str, int],
    ) -> None:
        self._capturing = config.pluginmanager.getplugin("capturemanager") if config is not None else None
        self._senders, self._readers, self._members, self._troubles = senders, readers, members, troubles
        self._begin = time.monotonic()
        self._next, self._settled_before = self._begin + _EVERY_S, 0

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        per_s = (self._settled - self._settled_before) / (now - self._next + _EVERY_S)
        self._next, self._settled_before = now + _EVERY_S, self._settled
        self.say(f"{per_s:.0f} records/s acknowledged; {self.sums()}")

    def sums(self) -> str:
        troubles = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(self._troubles).items()))
        gap_s = max((each.longest_gap_s for each in self._senders), default=0.0)
        read = min((sum(each.positions.values()) for each in self._readers), default=0)
        return (
            f"sent {sum(each.sent for each in self._senders)}, settled {self._settled} (longest gap {gap_s:.1f} s), "
            f"read by each reader {read}, by the group {sum(each.read for each in self._members)}; "
            f"troubles: {troubles}"
        )

    def say(self, text: str) -> None:
        line = f"{(time.monotonic() - self._begin) / 60:6.1f} min  {text}"
        if self._capturing is None:
            print(line, flush=True)
            return
        with self._capturing.global_and_fixture_disabled():
            print(line, flush=True)

    @property
    def _settled(self) -> int:
        return sum(each.settled for each in self._senders)
