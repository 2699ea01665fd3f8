"""Which losses end a query, and which it goes on from.

Owns the one decision (`settle`) and the options it follows: `onTruncation`, `onExpired` and `onRecreated` each for its
kind, `failOnDataLoss` for all that are not named. Nothing is gone on from without a word: what a query is told to
tolerate is logged where it is found, and stands in the query's progress when the driver found it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fenceline.errors import OperatorError
from pyspark_fenceline.errors import DataLossError, Loss, LossKind, describe
from pyspark_fenceline.given_options import GivenOptions

_log = logging.getLogger("pyspark_fenceline")
POLICIES: Final[Mapping[str, tuple[LossKind, str]]] = {
    "onTruncation": (LossKind.LOG_TRUNCATED, "rewind"),
    "onExpired": (LossKind.OFFSETS_EXPIRED, "continue"),
    "onRecreated": (LossKind.TOPIC_RECREATED, "restart"),
}
"""Each option's kind of loss, and the word that makes a query go on; the other word is `fail`."""


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """The kinds of loss that a query goes on from."""

    tolerated: frozenset[LossKind] = frozenset()
    is_for_one_batch: bool = False
    truncation_advice: str | None = None
    """What to do about a truncation, where it is not what the kind's options offer."""

    def for_one_batch(self) -> LossPolicy:
        """The same for a query that has no next plan, which would go back to what its tasks left out."""
        return LossPolicy(self.tolerated & {LossKind.OFFSETS_EXPIRED}, is_for_one_batch=True)

    def without_rewind(self, advice: str | None) -> LossPolicy:
        """The same for a query that may not go back, with the reason; unchanged where `advice` is None, or where it
        does not go back anyhow."""
        if advice is None or LossKind.LOG_TRUNCATED not in self.tolerated:
            return self
        return replace(self, tolerated=self.tolerated - {LossKind.LOG_TRUNCATED}, truncation_advice=advice)


_RUN_AGAIN: Final = "It changed while the query read it: run the query again."
STRICT: Final = LossPolicy()
LENIENT: Final = LossPolicy(frozenset(LossKind))


def policy_of(given: GivenOptions, *, fail_on_data_loss: bool) -> LossPolicy:
    """What the options say. Raises `OperatorError` for a word that an option does not know."""
    tolerated = set((STRICT if fail_on_data_loss else LENIENT).tolerated)
    for option, (kind, goes_on) in POLICIES.items():
        word = given.text(option)
        match word.strip().lower() if word is not None else None:
            case None:
                continue
            case "fail":
                tolerated.discard(kind)
            case chosen if chosen == goes_on:
                tolerated.add(kind)
            case _:
                raise OperatorError(f"Option '{option}' must be fail or {goes_on}, not '{word}'")
    return LossPolicy(frozenset(tolerated))


def settle(losses: Sequence[Loss], policy: LossPolicy) -> None:
    """End the query over `losses`, or say them in the log and go on. Raises `DataLossError` with those that end it."""
    if not losses:
        return
    fatal = [loss for loss in losses if loss.kind not in policy.tolerated]
    if fatal:
        is_over = policy.is_for_one_batch and any(loss.kind is not LossKind.OFFSETS_EXPIRED for loss in fatal)
        is_truncated = any(loss.kind is LossKind.LOG_TRUNCATED for loss in fatal)
        raise DataLossError(fatal, _RUN_AGAIN if is_over else policy.truncation_advice if is_truncated else None)
    _log.warning("going on, as the query's options say: %s", describe(losses))
