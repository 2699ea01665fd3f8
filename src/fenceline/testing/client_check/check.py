"""All cases for one program, on one cluster.

Owns the order: the case in which nothing happens comes first, since a program that fails there cannot be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from fenceline.errors import OperatorError
from fenceline.testing.client_check import consumer_cases, producer_cases
from fenceline.testing.client_check.cards import ReportCard
from fenceline.testing.client_check.stage import Case, Patience, run_consumer_case, run_producer_case
from fenceline.testing.client_check.verdicts import CaseVerdict, shape
from fenceline.testing.lab.cluster import LabCluster

Kind = Literal["consumer", "producer"]
CASES: Final[Mapping[str, tuple[Case, ...]]] = {
    "consumer": (consumer_cases.BASELINE, *consumer_cases.CONSUMER_CASES),
    "producer": (producer_cases.BASELINE, *producer_cases.PRODUCER_CASES),
}


def chosen_cases(kind: Kind, names: Sequence[str]) -> list[Case]:
    """The cases with these names (all without any), and the one in which nothing happens. Raises OperatorError."""
    cases = CASES[kind]
    unknown = sorted(set(names) - {case.name for case in cases})
    if unknown:
        raise OperatorError(
            f"There is no case {unknown[0]!r} for a {kind}", f"The cases are: {', '.join(case.name for case in cases)}."
        )
    return [case for case in cases if not names or case.name in names or case is cases[0]]


def check_program(
    command: Sequence[str],
    kind: Kind,
    *,
    name: str = "",
    cases: Sequence[str] = (),
    patience: Patience | None = None,
    on_verdict: Callable[[CaseVerdict, str], None] = lambda verdict, title: None,
    cluster: LabCluster | None = None,
) -> ReportCard:
    """Run a program through the cases. `on_verdict` gets each verdict with the title of its case, as soon as it is
    there. `cluster`: of three nodes; None starts one.

    Raises OperatorError: there is no such case, or the program fails where nothing happens."""
    chosen = chosen_cases(kind, cases)
    if cluster is None:
        with LabCluster(3, log_level="warning") as own:
            return check_program(
                command, kind, name=name, cases=cases, patience=patience, on_verdict=on_verdict, cluster=own
            )
    run = run_consumer_case if kind == "consumer" else run_producer_case
    verdicts: list[CaseVerdict] = []
    noise: frozenset[str] = frozenset()
    for case in chosen:
        verdict = run(cluster, command, case, patience or Patience(), configs={}, noise=noise)
        if case is chosen[0]:
            # What it prints when nothing happens says nothing about the other cases.
            noise = frozenset(map(shape, verdict.remarks))
            verdict = replace(verdict, noticed=False)
        verdicts.append(verdict)
        on_verdict(verdict, case.title)
    titles = {case.name: case.title for case in chosen}
    return ReportCard(name or command[0], kind, tuple(verdicts), titles)
