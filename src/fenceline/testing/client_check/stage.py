"""One case from start to end: the program runs, the situation is made true, and what the program did is read.

Owns the steps and their patience. The cases themselves are in `consumer_cases` and `producer_cases`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fenceline.errors import FencelineError, OperatorError
from fenceline.testing.client_check.program import Program
from fenceline.testing.client_check.verdicts import CaseVerdict, duplicates, processed, remarks
from fenceline.testing.kafka_helpers import unique_name
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.situations import SituationImpossible

BOOTSTRAP: Final = "KAFKA_BOOTSTRAP_SERVERS"
TOPIC: Final = "KAFKA_TOPIC"
GROUP: Final = "KAFKA_GROUP"
_RECORDS: Final = 20
_ANYTHING: Final = re.compile(
    r"error|warn|exception|traceback|fail|lost|truncat|diverg|reset|out of range|fenced|epoch|unknown|corrupt|crc"
    r"|rebalanc|revok|timed? ?out|disconnect",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited. `start_s`: until the program processes its first records; `recover_s`: until it has processed
    what was written after a case."""

    start_s: float = 30.0
    recover_s: float = 30.0
    stop_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What a case made true. `gone`: values that the log has lost. `is_told`: whether a program that knows must say
    something."""

    gone: frozenset[str] = frozenset()
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """`make` makes the situation true; faults that it leaves end before the program must have recovered. `about`: what
    a program prints that has noticed."""

    name: str
    title: str
    make: Callable[[CaseStage], CaseOutcome | None]
    must_notice: bool = False
    about: re.Pattern[str] = _ANYTHING


class CaseStage:
    """What a case acts on."""

    def __init__(self, cluster: LabCluster, command: Sequence[str], patience: Patience, *, configs: Mapping[str, str]):
        self.cluster = cluster
        self.patience = patience
        self.topic = cluster.create_topic(configs=configs)
        self.group = unique_name("g")
        self._command = command
        self._numbers = 0
        self.written: list[str] = []
        """Values that were written, and acknowledged, by the laboratory."""
        self.program = self.start()

    def start(self) -> Program:
        """Start the program; raises OperatorError."""
        self.program = Program(
            self._command,
            {BOOTSTRAP: self.cluster.bootstrap_servers, TOPIC: self.topic, GROUP: self.group},
        )
        return self.program

    def fresh_values(self, count: int = _RECORDS) -> list[str]:
        first, self._numbers = self._numbers, self._numbers + count
        return [f"r-{number}" for number in range(first, first + count)]

    def write(self, count: int = _RECORDS) -> list[str]:
        """Write records of the laboratory; their values."""
        values = self.fresh_values(count)
        self.cluster.produce(self.topic, values)
        self.written += values
        return values

    def await_processed(self, values: Sequence[str]) -> None:
        """Wait until the program has printed values. Raises OperatorError if it does not."""
        missing = self.program.wait_for(set(values), wait_s=self.patience.start_s)
        if missing:
            raise _never_began(self.program, len(values) - len(missing), len(values))

    def in_log(self) -> list[str]:
        """The values that are in the log now."""
        return [(record.value or b"").decode(errors="replace") for record in self.cluster.read(self.topic)]


def run_consumer_case(
    cluster: LabCluster, command: Sequence[str], case: Case, patience: Patience, *, configs: Mapping[str, str]
) -> CaseVerdict:
    """A program that consumes. Raises OperatorError if it does not even process its first records."""
    began_s = time.monotonic()
    stage = CaseStage(cluster, command, patience, configs=configs)
    mark = cluster.timeline.mark()
    try:
        stage.await_processed(stage.write())
        since_s = time.monotonic()
        try:
            outcome = case.make(stage) or CaseOutcome()
        except (SituationImpossible, TimeoutError) as error:
            return _not_run(case, error)
        cluster.faults.undo_all()
        verdict = _judge_consumer(stage, case, outcome, since_s)
        return replace(verdict, timeline=cluster.timeline.text(mark), seconds=time.monotonic() - began_s)
    finally:
        stage.program.stop(wait_s=patience.stop_s)
        cluster.faults.undo_all()
        _delete(cluster, stage.topic)


def _judge_consumer(stage: CaseStage, case: Case, outcome: CaseOutcome, since_s: float) -> CaseVerdict:
    after = set(stage.write())
    missing = stage.program.wait_for(after, wait_s=stage.patience.recover_s)
    exit_code, lines = stage.program.exit_code, stage.program.lines
    restarted: bool | None = None
    hung = bool(missing) and exit_code is None
    if exit_code is not None:
        stage.program.stop()
        stage.start()
        missing = stage.program.wait_for(after, wait_s=stage.patience.recover_s)
        restarted = not missing
    # What may still come: redeliveries, and records that a rebalance held up.
    stage.program.wait_for(set(stage.in_log()), wait_s=1.0)
    stage.program.stop(wait_s=stage.patience.stop_s)
    lines = [*lines, *stage.program.lines] if restarted is not None else stage.program.lines
    counts = processed(lines)
    present = set(stage.in_log())
    lost = tuple(sorted(value for value in present - set(counts) if value.startswith(("r-", "new-", "anew-"))))
    said = remarks(lines, since_s, case.about)
    notes = ("it did not end on SIGTERM, and was killed",) if stage.program.was_killed else ()
    return CaseVerdict(
        case=case.name,
        recovered=not missing and not hung,
        noticed=bool(said) or exit_code not in (None, 0),
        must_notice=case.must_notice,
        hung=hung,
        exit_code=exit_code,
        recovered_after_restart=restarted,
        lost=() if hung else lost,
        duplicated=duplicates(counts),
        stale=tuple(sorted(outcome.gone & set(counts))),
        remarks=said,
        notes=notes,
    )


def _not_run(case: Case, error: Exception) -> CaseVerdict:
    return CaseVerdict(
        case=case.name,
        recovered=False,
        noticed=False,
        must_notice=False,
        hung=False,
        exit_code=None,
        impossible=f"the case could not be made true: {error}",
    )


def _never_began(program: Program, came: int, wanted: int) -> OperatorError:
    """Why the program cannot be judged at all."""
    code = program.exit_code
    last = "".join(f"\n  {line.text}" for line in program.lines[-5:])
    contract = (
        f"A consumer reads {BOOTSTRAP}, {TOPIC} and {GROUP} from the environment, begins at the earliest record, and"
        " prints the value of each record that it has processed on a line of its own. Flush standard output."
    )
    if code is not None:
        return OperatorError(
            f"The program ended with exit code {code} before it had processed a record:{last}", contract
        )
    if not program.lines:
        return OperatorError("The program runs and prints nothing", contract)
    return OperatorError(f"The program printed {came} of the first {wanted} values:{last}", contract)


def _delete(cluster: LabCluster, topic: str) -> None:
    try:
        cluster.delete_topic(topic)
    except FencelineError as error:
        cluster.timeline.add("a topic was not deleted", topic=topic, reason=str(error))
