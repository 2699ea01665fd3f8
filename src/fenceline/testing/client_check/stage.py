"""One case from start to end: the program runs, the situation is made true, and what the program did is read.

Owns the steps and their patience. The cases themselves are in `consumer_cases` and `producer_cases`.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

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
_FEED_PAUSE_S: Final = 0.02
# Longer than the default of `fetch.max.wait.ms`: by then a Fetch is answered.
_FETCH_WAIT_S: Final = 0.6
_QUICK: Final = {"request.timeout.ms": 1000, "retry.backoff.ms": 20}
_ANYTHING: Final = re.compile(
    r"error|warn|exception|traceback|fail|lost|truncat|diverg|reset|out of range|fenced|epoch|unknown|corrupt|crc"
    r"|rebalanc|revok|timed? ?out|disconnect",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited. `start_s`: until the program processes its first records; `recover_s`: until it has processed
    what was written after a case; `restart_s`: the same for one that has crashed and was started again, whose group
    first waits for the end of the dead member's session; `stop_s`: until it ends on SIGTERM."""

    start_s: float = 30.0
    recover_s: float = 30.0
    restart_s: float = 90.0
    stop_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What a case made true. `gone`: values that the log has lost. `was_unread`: the case is about values that the
    program has not read; if it has, there is nothing to notice."""

    gone: frozenset[str] = frozenset()
    was_unread: bool = False


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
        self.program = self._started()

    def start_again(self) -> None:
        """Start the program anew, when it has ended. Raises OperatorError."""
        self.program = self._started()

    def fresh_values(self, count: int = _RECORDS) -> list[str]:
        first, self._numbers = self._numbers, self._numbers + count
        return [f"r-{number}" for number in range(first, first + count)]

    def write(self, count: int = _RECORDS) -> list[str]:
        """Write records of the laboratory; their values."""
        values = self.fresh_values(count)
        self.cluster.produce(self.topic, values, settings=_QUICK)
        return values

    def write_unread(self) -> list[str]:
        """Write records that the frozen program has not got; their values. A Fetch that it has sent before is answered
        with others."""
        self.write()
        time.sleep(_FETCH_WAIT_S)
        return self.write()

    def await_processed(self, values: Sequence[str]) -> None:
        """Wait until the program has printed values. Raises OperatorError if it does not."""
        missing = self.program.wait_for(set(values), wait_s=self.patience.start_s)
        if missing:
            raise _never_began(self.program, len(values) - len(missing), len(values))

    def in_log(self) -> list[str]:
        """The values that are in the log now."""
        return [text_of_value(record.value) for record in self.cluster.read(self.topic)]

    def _started(self) -> Program:
        environment = {BOOTSTRAP: self.cluster.bootstrap_servers, TOPIC: self.topic, GROUP: self.group}
        return Program(self._command, environment)


def text_of_value(value: bytes | None) -> str:
    """A record's value as programs print it."""
    return (value or b"").decode(errors="replace")


def run_consumer_case(
    cluster: LabCluster,
    command: Sequence[str],
    case: Case,
    patience: Patience,
    *,
    configs: Mapping[str, str],
    noise: Collection[str] = (),
) -> CaseVerdict:
    """A program that consumes. `noise`: shapes of lines that say nothing about a case. Raises OperatorError if it does
    not even process its first records."""

    def play(stage: CaseStage) -> CaseVerdict:
        stage.await_processed(stage.write())
        since_s = time.monotonic()
        outcome = _made(stage, case)
        cluster.faults.undo_all()
        return _judge_consumer(stage, case, outcome, since_s, noise)

    return _run_case(lambda: CaseStage(cluster, command, patience, configs=configs), case, play)


def run_producer_case(
    cluster: LabCluster,
    command: Sequence[str],
    case: Case,
    patience: Patience,
    *,
    configs: Mapping[str, str],
    noise: Collection[str] = (),
) -> CaseVerdict:
    """A program that produces: values come on its standard input all the time. `noise`: shapes of lines that say
    nothing about a case. Raises OperatorError if not even the first ones are acknowledged."""

    def play(stage: CaseStage) -> CaseVerdict:
        first = stage.fresh_values()
        stage.program.write(first)
        stage.await_processed(first)
        since_s = time.monotonic()
        with _Feeding(stage) as feeding:
            outcome = _made(stage, case)
        cluster.faults.undo_all()
        return _judge_producer(stage, case, outcome, [*first, *feeding.values], since_s, noise)

    return _run_case(lambda: CaseStage(cluster, command, patience, configs=configs), case, play)


def _run_case(set_up: Callable[[], CaseStage], case: Case, play: Callable[[CaseStage], CaseVerdict]) -> CaseVerdict:
    """Play a case, and leave nothing of it behind."""
    began_s = time.monotonic()
    stage = set_up()
    timeline = stage.cluster.timeline
    mark = timeline.mark()
    try:
        verdict = play(stage)
        return replace(verdict, timeline=timeline.text(mark), seconds=time.monotonic() - began_s)
    except _CannotBeMade as error:
        return _not_run(case, error.reason)
    finally:
        stage.program.stop(wait_s=stage.patience.stop_s)
        stage.cluster.faults.undo_all()
        _delete(stage.cluster, stage.topic)


class _CannotBeMade(Exception):
    """The case could not be made true."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _made(stage: CaseStage, case: Case) -> CaseOutcome:
    try:
        return case.make(stage) or CaseOutcome()
    except (SituationImpossible, TimeoutError) as error:
        raise _CannotBeMade(error) from error


class _Feeding:
    """Values go to the program while a case is made true."""

    def __init__(self, stage: CaseStage) -> None:
        self.values: list[str] = []
        self._stage = stage
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeding", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_FEED_PAUSE_S):
            values = self._stage.fresh_values(1)
            self.values += values
            self._stage.program.write(values)


def _judge_producer(
    stage: CaseStage,
    case: Case,
    outcome: CaseOutcome,
    given: Sequence[str],
    since_s: float,
    noise: Collection[str],
) -> CaseVerdict:
    program = stage.program
    after = stage.fresh_values()
    program.write(after)
    missing = program.wait_for(set(after), wait_s=stage.patience.recover_s)
    ended_early, lines = program.exit_code, []
    restarted: bool | None = None
    hung = missing == set(after) and ended_early is None
    if ended_early is not None:
        program.stop()
        lines = program.lines
        stage.start_again()
        program = stage.program
        again = stage.fresh_values()
        program.write(again)
        missing = program.wait_for(set(again), wait_s=stage.patience.restart_s)
        restarted = not missing
    program.close_input()
    code = program.wait(stage.patience.stop_s)
    program.stop(wait_s=stage.patience.stop_s)
    lines = [*lines, *program.lines]
    acknowledged = set(processed(lines))
    in_log = Counter(stage.in_log())
    in_receipts = {
        text_of_value(record.value)
        for receipt in stage.cluster.losses(stage.topic)
        for record in stage.cluster.lost_records(receipt)
    }
    # What a receipt names may have been sent again.
    by_the_cluster = (in_receipts & acknowledged) - set(in_log)
    lost = tuple(sorted(acknowledged - set(in_log) - by_the_cluster - outcome.gone))
    never = [value for value in (*given, *after) if value not in acknowledged | set(in_log) | outcome.gone]
    said = remarks(lines, since_s, case.about, noise)
    notes = [f"{len(never)} values were not written, and not reported as acknowledged"] if never else []
    if by_the_cluster:
        notes.append(f"{len(by_the_cluster)} acknowledged records were lost by the cluster, with receipts")
    return CaseVerdict(
        case=case.name,
        recovered=not missing,
        noticed=bool(said) or any(each not in (0, None) for each in (code, ended_early)),
        must_notice=case.must_notice or bool(never),
        hung=hung,
        exit_code=ended_early,
        recovered_after_restart=restarted,
        lost=lost,
        duplicated=duplicates(in_log),
        remarks=said,
        notes=tuple(notes),
    )


def _judge_consumer(
    stage: CaseStage, case: Case, outcome: CaseOutcome, since_s: float, noise: Collection[str]
) -> CaseVerdict:
    after = set(stage.write())
    missing = stage.program.wait_for(after, wait_s=stage.patience.recover_s)
    exit_code, lines = stage.program.exit_code, stage.program.lines
    restarted: bool | None = None
    hung = missing == after and exit_code is None
    if hung:
        # A position in a history that is gone hides as many records as were lost; then it goes on.
        further = set(stage.write())
        hung = stage.program.wait_for(further, wait_s=stage.patience.recover_s) == further
        exit_code, lines = stage.program.exit_code, stage.program.lines
        hung = hung and exit_code is None
    if exit_code is not None:
        stage.program.stop()
        stage.start_again()
        missing = stage.program.wait_for(after, wait_s=stage.patience.restart_s)
        restarted = not missing
    # What may still come: redeliveries, and records that a rebalance held up.
    stage.program.wait_for(set(stage.in_log()), wait_s=1.0)
    stage.program.stop(wait_s=stage.patience.stop_s)
    lines = [*lines, *stage.program.lines] if restarted is not None else stage.program.lines
    counts = processed(lines)
    present = set(stage.in_log())
    lost = tuple(sorted(value for value in present - set(counts) if value.startswith(("r-", "new-", "anew-"))))
    said = remarks(lines, since_s, case.about, noise)
    notes = ["it did not end on SIGTERM, and was killed"] if stage.program.was_killed else []
    # An answer that was on its way when the program was frozen.
    has_read = outcome.was_unread and outcome.gone <= set(counts)
    if has_read:
        notes.append("it had read the records before they were gone")
    return CaseVerdict(
        case=case.name,
        recovered=not missing,
        noticed=bool(said) or exit_code not in (None, 0),
        must_notice=case.must_notice and not has_read,
        hung=hung,
        exit_code=exit_code,
        recovered_after_restart=restarted,
        lost=() if hung or restarted is False else lost,
        duplicated=duplicates(counts),
        stale=tuple(sorted(outcome.gone & set(counts))),
        remarks=said,
        notes=tuple(notes),
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
        f"It reads {BOOTSTRAP}, {TOPIC} and, as a consumer, {GROUP} from the environment. A consumer begins at the"
        " earliest record, and prints the value of each record that it has processed. A producer takes values from its"
        " standard input, one a line, and prints each that is acknowledged. Flush standard output after each line."
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
