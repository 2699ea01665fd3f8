"""Makes the report cards of clients: runs each program in this folder through the cases of `fenceline check-client`,
one after the other, each on a cluster of its own; writes benchmarks/cards/ and the generated parts of docs/clients.md.

A client whose toolchain is missing gets a card that says so; a card of an earlier run is not replaced by such a one.

usage: make_cards.py [--only CLIENT]... [--kind consumer|producer] [--case CASE]... [--docs]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fenceline.errors import OperatorError
from fenceline.testing.apache_kafka import DEFAULT_JARS, KAFKA_VERSION
from fenceline.testing.client_check.cards import ReportCard, line_of, markdown_of
from fenceline.testing.client_check.check import CASES, Kind, check_program
from fenceline.testing.client_check.explanations import EXPLANATIONS
from fenceline.testing.client_check.stage import Patience
from fenceline.testing.client_check.verdicts import CaseVerdict

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tools" / "clients"
CARDS = ROOT / "benchmarks" / "cards"
PAGE = ROOT / "docs" / "clients.md"
BUILT = ROOT / ".cache" / "clients"
KINDS: tuple[Kind, ...] = ("consumer", "producer")
# librdkafka waits 30 s for a topic that it does not know any more (topic.metadata.propagation.max.ms).
PATIENCE = Patience(start_s=60, recover_s=45)
SPARK_PATIENCE = Patience(start_s=90, recover_s=30, restart_s=45, stop_s=20)
MOST_REMARKS = 3
MOST_REMARK_CHARS = 300
MOST_TIMELINE_LINES = 40
SPARK_NOTE = (
    "With `failOnDataLoss=true`, the default, a query ends at a loss that it notices, and ends again when it is"
    " restarted, until an operator decides: `stopped`. Spark has no members in a group."
)
QUICK_JVM = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Missing(Exception):
    """What this client needs is not here; the message says what."""


@dataclass(frozen=True, slots=True)
class Client:
    """`command`: the command line of a kind, in a temporary folder; raises Missing. `programs`: files by kind, below
    tools/clients."""

    name: str
    title: str
    programs: dict[Kind, str]
    release: Callable[[], str]
    command: Callable[[Client, Kind, Path], list[str]]
    patience: Patience = PATIENCE
    note: str = ""


@dataclass(frozen=True, slots=True)
class StoredCard:
    """A card in benchmarks/cards. `missing`: why there are no verdicts."""

    client: str
    release: str
    made: str
    missing: str
    card: ReportCard


def python_program(client: Client, kind: Kind, folder: Path) -> list[str]:
    return [sys.executable, str(PROGRAMS / client.programs[kind])]


def java_program(client: Client, kind: Kind, folder: Path) -> list[str]:
    if shutil.which("javac") is None:
        raise Missing("a Java development kit is missing")
    jars = DEFAULT_JARS / "server"
    if not list(jars.glob("kafka-clients-*.jar")):
        raise Missing("Apache Kafka's jars are missing: run `make jars` (needs Maven)")
    classes = BUILT / "java"
    classes.mkdir(parents=True, exist_ok=True)
    source = PROGRAMS / client.programs[kind]
    run([shutil.which("javac") or "javac", "-cp", f"{jars}/*", "-d", str(classes), str(source)])
    # Kafka's jars bring SLF4J's API without a logger; PySpark's bring one.
    found = find_spec("pyspark")
    logger = Path(found.origin).parent / "jars" if found and found.origin else Path()
    loggers = [*logger.glob("slf4j-api-*.jar"), *logger.glob("log4j-slf4j2-impl-*.jar")]
    if not loggers:
        raise Missing("PySpark is missing, whose jars have the logger")
    path = os.pathsep.join([*map(str, loggers), str(classes), f"{jars}/*"])
    config = f"-Dlog4j2.configurationFile={PROGRAMS / 'java' / 'log4j2.properties'}"
    return ["java", *QUICK_JVM, config, "-cp", path, source.stem]


def go_program(client: Client, kind: Kind, folder: Path) -> list[str]:
    if shutil.which("go") is None:
        raise Missing("Go is missing")
    program = BUILT / "go" / kind
    run(["go", "build", "-o", str(program), f"./{kind}"], cwd=PROGRAMS / "go")
    return [str(program)]


def spark_program(client: Client, kind: Kind, folder: Path) -> list[str]:
    if find_spec("pyspark") is None or shutil.which("java") is None:
        raise Missing("PySpark or Java is missing")
    jars = sorted((DEFAULT_JARS / "connector").glob("*.jar"))
    if client.name == "spark" and not jars:
        raise Missing("Spark's Kafka connector is missing: run `make jars` (needs Maven)")
    settings = {
        "TMPDIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_JARS": ",".join(map(str, jars)) if client.name == "spark" else "",
    }
    return ["env", *(f"{name}={value}" for name, value in settings.items()), *python_program(client, kind, folder)]


def package(name: str) -> Callable[[], str]:
    def release() -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            raise Missing(f"the package {name} is missing") from None

    return release


def confluent_release() -> str:
    release = package("confluent-kafka")()
    import confluent_kafka

    return f"{release}, librdkafka {confluent_kafka.libversion()[0]}"


def go_release() -> str:
    found = re.search(r"github\.com/twmb/franz-go (v\S+)", (PROGRAMS / "go" / "go.mod").read_text())
    assert found is not None
    return f"franz-go {found[1]}"


CLIENTS = (
    Client(
        "fenceline",
        "Fenceline",
        {"consumer": "fenceline_consumer.py", "producer": "fenceline_producer.py"},
        package("fenceline"),
        python_program,
    ),
    Client(
        "java",
        "Java",
        {"consumer": "java/Consumer.java", "producer": "java/Producer.java"},
        lambda: f"org.apache.kafka:kafka-clients {KAFKA_VERSION}",
        java_program,
        note="Its log is read at WARN. With a reset policy, it logs truncation and offsets out of range at INFO.",
    ),
    Client(
        "confluent-kafka",
        "confluent-kafka",
        {"consumer": "confluent_consumer.py", "producer": "confluent_producer.py"},
        confluent_release,
        python_program,
        note="It checks no checksums of batches by default (`check.crcs`), and goes back after a truncation without a"
        " line in its log.",
    ),
    Client(
        "kafka-python",
        "kafka-python",
        {"consumer": "kafka_python_consumer.py", "producer": "kafka_python_producer.py"},
        package("kafka-python"),
        python_program,
        note="Its log is read at WARNING, the default of Python's `logging`. The client logs a reset at INFO.",
    ),
    Client(
        "aiokafka",
        "aiokafka",
        {"consumer": "aiokafka_consumer.py", "producer": "aiokafka_producer.py"},
        package("aiokafka"),
        python_program,
    ),
    Client(
        "franz-go",
        "franz-go",
        {"consumer": "go/consumer/main.go", "producer": "go/producer/main.go"},
        go_release,
        go_program,
        note="It does not use a topic that was made anew until the application purges the topic from the client and"
        " adds it again, and says so in its log.",
    ),
    Client(
        "spark",
        "Spark's connector",
        {"consumer": "spark_consumer.py"},
        lambda: f"spark-sql-kafka-0-10 of Spark {package('pyspark')().split()[1]}",
        spark_program,
        SPARK_PATIENCE,
        SPARK_NOTE,
    ),
    Client(
        "spark-fenceline",
        "Spark, `fenceline`",
        {"consumer": "spark_fenceline_consumer.py"},
        lambda: f"{package('fenceline')()} on Spark {package('pyspark')().split()[1]}",
        spark_program,
        SPARK_PATIENCE,
        SPARK_NOTE,
    ),
)


def run(command: Sequence[str], cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Missing(f"`{command[0]}` could not build the program: {done.stdout.strip()[-500:]}")


def make(client: Client, kind: Kind, cases: Sequence[str] = ()) -> StoredCard:
    """Run one program through all cases, or these."""
    made = time.strftime("%Y-%m-%d", time.gmtime())
    with tempfile.TemporaryDirectory(prefix="fenceline-cards-") as folder:
        try:
            release = client.release()
            card = check_program(
                client.command(client, kind, Path(folder)),
                kind,
                name=client.title,
                cases=cases,
                patience=client.patience,
                on_verdict=lambda verdict, title: print(f"  {line_of(verdict, title)}", flush=True),
            )
        except (Missing, OperatorError) as error:
            why = " ".join(str(error).split()).replace(str(ROOT), ".")
            return StoredCard(client.name, "", made, why, ReportCard(client.title, kind, (), {}))
    return StoredCard(client.name, release, made, "", card)


def shortened(verdict: CaseVerdict) -> CaseVerdict:
    """Without the folders of this machine; with a timeline only if the case did not go well."""
    remarks = tuple(
        remark.replace(str(ROOT), ".").replace(f"{tempfile.gettempdir()}/", "")[:MOST_REMARK_CHARS]
        for remark in verdict.remarks[:MOST_REMARKS]
    )
    timeline = "" if verdict.is_good else "\n".join(verdict.timeline.splitlines()[:MOST_TIMELINE_LINES])
    return replace(verdict, remarks=remarks, timeline=timeline, seconds=round(verdict.seconds, 1))


def path_of(client: str, kind: str) -> Path:
    return CARDS / f"{client}-{kind}.json"


def store(stored: StoredCard) -> None:
    CARDS.mkdir(parents=True, exist_ok=True)
    card = replace(stored.card, verdicts=tuple(map(shortened, stored.card.verdicts)))
    fields = {"client": stored.client, "release": stored.release, "made": stored.made, "missing": stored.missing}
    text = json.dumps({**fields, **json.loads(card.to_json())}, indent=1)
    path_of(stored.client, stored.card.kind).write_text(text + "\n")


def load(client: Client, kind: Kind) -> StoredCard:
    path = path_of(client.name, kind)
    if not path.exists():
        return StoredCard(client.name, "", "", "not run yet", ReportCard(client.title, kind, (), {}))
    text = path.read_text()
    read = json.loads(text)
    card = ReportCard.from_json(text)
    return StoredCard(read["client"], read["release"], read["made"], read["missing"], card)


def merged(old: StoredCard, new: StoredCard) -> StoredCard:
    """An old card with those verdicts replaced that are new, but for the first case, which always runs."""
    fresh = {verdict.case: verdict for verdict in new.card.verdicts[1:]}
    verdicts = tuple(fresh.get(verdict.case, verdict) for verdict in old.card.verdicts)
    return replace(new, card=replace(old.card, verdicts=verdicts))


def stored_cards(kind: Kind) -> list[StoredCard]:
    return [load(client, kind) for client in CLIENTS if kind in client.programs]


def cards_text() -> str:
    """The generated part of the page: versions, tables, and the cells that did not go well."""
    by_kind = {kind: stored_cards(kind) for kind in KINDS}
    parts = [
        "| Client | Version | Programs | Cards made |\n| --- | --- | --- | --- |\n" + "".join(version_rows(by_kind))
    ]
    for kind, cards in by_kind.items():
        parts.append(f"## {kind.capitalize()}s\n")
        parts.append(markdown_of([each.card for each in cards if not each.missing]))
        parts += [f"{each.card.name} has no card: {each.missing}.\n" for each in cards if each.missing]
    parts.append("## What did not go well\n")
    parts.append("Each case that is in bold above or was not run, with what the run recorded.\n")
    for client in CLIENTS:
        ran = any(not each.missing for kind in client.programs for each in by_kind[kind] if each.client == client.name)
        bad = [
            f"- {kind}, {each.card.titles[verdict.case]}: **{verdict.summary()}**. {reason(verdict, kind)}\n"
            for kind in client.programs
            for each in by_kind[kind]
            if each.client == client.name
            for verdict in each.card.verdicts
            if not verdict.is_good
        ]
        parts.append(f"### {client.title}\n")
        if client.note:
            parts.append(f"{client.note}\n")
        parts.append("".join(bad) or ("All cases went well.\n" if ran else "It has no card.\n"))
    return "\n".join(parts)


def version_rows(by_kind: dict[Kind, list[StoredCard]]) -> list[str]:
    rows = []
    for client in CLIENTS:
        cards = [each for kind in client.programs for each in by_kind[kind] if each.client == client.name]
        programs = ", ".join(f"[{kind}](../tools/clients/{path})" for kind, path in client.programs.items())
        release = next((each.release for each in cards if each.release), "not run")
        made = max(each.made for each in cards)
        rows.append(f"| {client.title} | {release} | {programs} | {made} |\n")
    return rows


def reason(verdict: CaseVerdict, kind: str) -> str:
    """Why a case did not go well, in one or two lines."""
    details = [" ".join(each.split()).replace("|", "\\|").replace("<", "&lt;") for each in verdict.details()]
    said = [f"{each[0].upper()}{each[1:].rstrip('.;')}." for each in details[:3]]
    if verdict.must_notice and not verdict.noticed:
        said.append("It printed nothing about this.")
    return " ".join(said)


def cases_text() -> str:
    """What each case does."""
    parts = []
    for kind in KINDS:
        rows = [f"| {case.title} | `{case.name}` | {EXPLANATIONS[kind][case.name]} |\n" for case in CASES[kind]]
        parts.append(
            f"### Cases of {kind}s\n\n| Case | `--case` | What happens |\n| --- | --- | --- |\n{''.join(rows)}"
        )
    return "\n".join(parts)


def page_text(page: str) -> str:
    """The page with its generated parts made anew."""
    for name, text in (("cards", cards_text()), ("cases", cases_text())):
        begin, end = f"<!-- {name}: made by tools/clients/make_cards.py -->", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        after = rest.partition(end)[2]
        if not found or end not in rest:
            raise OperatorError(f"{PAGE.name} lacks the marks of {name}", f"Put `{begin}` and `{end}` into it.")
        page = f"{before}{begin}\n\n{text}\n{end}{after}"
    return page


def main() -> None:
    options = argparse.ArgumentParser(description="Makes the report cards of clients, and docs/clients.md.")
    names = [client.name for client in CLIENTS]
    options.add_argument("--only", action="append", choices=names, help="only this client; may be repeated")
    options.add_argument("--kind", choices=KINDS, help="only its consumer or producer")
    options.add_argument("--case", action="append", help="only this case, in a card that is there; may be repeated")
    options.add_argument("--docs", action="store_true", help="run nothing: make the page from the cards that are there")
    chosen = options.parse_args()
    for client in CLIENTS:
        for kind in client.programs:
            if chosen.docs:
                if path_of(client.name, kind).exists():
                    store(load(client, kind))  # the words of the verdicts may have changed
                continue
            if client.name not in (chosen.only or names) or kind != (chosen.kind or kind):
                continue
            print(f"{client.title}, {kind}", flush=True)
            cases = [name for name in chosen.case or [] if name in EXPLANATIONS[kind]]
            if chosen.case and not cases:
                continue
            stored = make(client, kind, cases)
            earlier = load(client, kind)
            if cases and not stored.missing and not earlier.missing:
                stored = merged(earlier, stored)
            if stored.missing:
                print(f"  no card: {stored.missing}", flush=True)
                if not earlier.missing:
                    print("  the card of an earlier run stays", flush=True)
                    continue
            store(stored)
    PAGE.write_text(page_text(PAGE.read_text()))


if __name__ == "__main__":
    main()
