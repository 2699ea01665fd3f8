"""Which losses end a query, and after which it continues.

Owns the decision (`apply_loss_policy`) and its options: `onTruncation`, `onExpired` and `onRecreated` each for its
kind, `failOnDataLoss` for all others. A tolerated loss is always logged where it is found, and is in the query's
progress if the driver found it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.given_options import GivenOptions
from pyspark_fenceline.errors import DataLossError, Loss, LossKind, describe

_log = logging.getLogger("pyspark_fenceline")
POLICIES: Final[Mapping[str, tuple[LossKind, str]]] = {
    "onTruncation": (LossKind.LOG_TRUNCATED, "rewind"),
    "onExpired": (LossKind.OFFSETS_EXPIRED, "continue"),
    "onRecreated": (LossKind.TOPIC_RECREATED, "restart"),
}
"""Each option's kind of loss, and the value that lets a query continue; the other value is `fail`."""


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """The kinds of loss after which a query continues."""

    tolerated: frozenset[LossKind] = frozenset()
    is_for_one_batch: bool = False
    truncation_advice: str | None = None
    """The advice for a truncation, if it is not the default one."""

    def for_one_batch(self) -> LossPolicy:
        """The same for a batch query, which has no next plan that would read what its tasks skipped."""
        return LossPolicy(self.tolerated & {LossKind.OFFSETS_EXPIRED}, is_for_one_batch=True)

    def without_rewind(self, advice: str | None) -> LossPolicy:
        """The same for a query that must not rewind, with the reason; unchanged if `advice` is None or the query does
        not rewind anyway."""
        if advice is None or LossKind.LOG_TRUNCATED not in self.tolerated:
            return self
        return replace(self, tolerated=self.tolerated - {LossKind.LOG_TRUNCATED}, truncation_advice=advice)


_RUN_AGAIN: Final = "It changed while the query read it: run the query again."
STRICT: Final = LossPolicy()
LENIENT: Final = LossPolicy(frozenset(LossKind))


def policy_of(given: GivenOptions, *, fail_on_data_loss: bool) -> LossPolicy:
    """Parse the options. Raises `OperatorError` for an invalid value."""
    tolerated = set((STRICT if fail_on_data_loss else LENIENT).tolerated)
    for option, (kind, tolerant_value) in POLICIES.items():
        value = given.text(option)
        match value.strip().lower() if value is not None else None:
            case None:
                continue
            case "fail":
                tolerated.discard(kind)
            case chosen if chosen == tolerant_value:
                tolerated.add(kind)
            case _:
                raise OperatorError(f"Option '{option}' must be fail or {tolerant_value}, not '{value}'")
    return LossPolicy(frozenset(tolerated))


def apply_loss_policy(losses: Sequence[Loss], policy: LossPolicy) -> None:
    """Raise `DataLossError` with the losses that end the query, or log `losses` if the policy tolerates all."""
    if not losses:
        return
    fatal = [loss for loss in losses if loss.kind not in policy.tolerated]
    if fatal:
        is_over = policy.is_for_one_batch and any(loss.kind is not LossKind.OFFSETS_EXPIRED for loss in fatal)
        is_truncated = any(loss.kind is LossKind.LOG_TRUNCATED for loss in fatal)
        raise DataLossError(fatal, _RUN_AGAIN if is_over else policy.truncation_advice if is_truncated else None)
    _log.warning("continuing, because the query's options allow it: %s", describe(losses))
