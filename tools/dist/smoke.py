"""What an installation must be able to do; run by the Python of that installation, with no other file of this project.

Checks the command, the compiled modules, a node, its client and the advice about packages that are not installed. Ends
the node that it starts. Exits with a message about the first thing that is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAVY = ("pyarrow", "pandas", "numpy", "pyspark", "deltalake")
WAIT_S = 60.0
RECORDS = 100


def check(is_right: bool, text: str) -> None:
    if not is_right:
        sys.exit(f"error: {text}")


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("fenceline")), *arguments]


def output_of(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=WAIT_S, env={**os.environ, **(environment or {})}
    )
    text = done.stdout + done.stderr
    check(done.returncode == 0, f"fenceline {' '.join(arguments)} failed: {text}")
    return done.stdout


def check_files(version: str, *, compiled: bool) -> None:
    import fenceline

    package = Path(fenceline.__file__).parent
    check(Path(sys.prefix) in package.parents, f"fenceline was imported from {package}")
    check(fenceline.__version__ == version, f"its version is {fenceline.__version__}")
    check((package / "py.typed").exists(), "py.typed is missing")
    sources = sorted(package.rglob("*.pyx"))
    check(bool(sources), "the sources of the compiled modules are missing")
    for source in sources:
        name = ".".join(source.relative_to(package.parent).with_suffix("").parts)
        found = importlib.util.find_spec(name)
        check((found is not None) is compiled, f"the compiled module {name} is {'missing' if compiled else 'there'}")
        if compiled:
            importlib.import_module(name)


def check_client(bootstrap: str, *, arrow: bool) -> None:
    from fenceline.client import Consumer, Producer

    expected = [(b"%d" % index, b"value %d" % index) for index in range(RECORDS)]
    with Producer(bootstrap) as producer:
        for delivery in [producer.send("hello", value, key) for key, value in expected]:
            delivery.result(WAIT_S)
    with Consumer(bootstrap, group_id="smoke", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["hello"])
        found: list[tuple[bytes | None, bytes | None]] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < RECORDS and time.monotonic() < deadline:
            if arrow:
                rows = consumer.poll_arrow(1_000)
                found += zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
            else:
                found += [(record.key, record.value) for record in consumer.poll(1_000)]
        consumer.commit()
        check(sorted(found) == sorted(expected), f"{len(found)} of {RECORDS} records were read")
        if not arrow:
            check_advice(consumer)


def check_advice(consumer: object) -> None:
    from fenceline.errors import OperatorError

    try:
        consumer.poll_arrow(0)  # type: ignore[attr-defined]
    except OperatorError as error:
        check("fenceline[arrow]" in error.advice, f"the advice is: {error.advice}")
    else:
        sys.exit("error: poll_arrow needs no pyarrow")


def check_node(folder: Path, *, arrow: bool) -> None:
    options = ["start", "--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0"]
    with (folder / "node.log").open("w") as log:
        node = subprocess.Popen(command(*options), stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
    try:
        assert node.stdout is not None
        readable, _, _ = select.select([node.stdout], [], [], WAIT_S)
        line = node.stdout.readline() if readable else ""
        check("ready" in line, f"the node did not start: {(folder / 'node.log').read_text()}")
        bootstrap = line.rstrip().rpartition(" ")[2]
        at_node = {"FENCELINE_BOOTSTRAP": bootstrap}
        output_of("topics", "create", "hello", "--partitions", "3", environment=at_node)
        check_client(bootstrap, arrow=arrow)
        check("hello" in output_of("topics", "describe", "hello", environment=at_node), "the topic is not described")
        check("smoke" in output_of("groups", "list", environment=at_node), "the group is not listed")
        node.send_signal(signal.SIGTERM)
        check(node.wait(WAIT_S) == 0, f"the node ended with {node.returncode}")
    finally:
        node.kill()
        node.wait()
    output_of("verify", str(folder / "data"))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--version", default=importlib.metadata.version("fenceline"))
    options.add_argument("--compiled", action="store_true")
    options.add_argument("--arrow", action="store_true", help="pyarrow is installed")
    given = options.parse_args()
    check_files(given.version, compiled=given.compiled)
    if not given.arrow:
        there = [name for name in HEAVY if importlib.util.find_spec(name) is not None]
        check(not there, f"the installation has {', '.join(there)}")
    check(output_of("--version").strip() == f"fenceline {given.version}", "fenceline --version has another version")
    check("start" in output_of("--help"), "fenceline --help names no start")
    with tempfile.TemporaryDirectory(prefix="fenceline-smoke-") as folder:
        check_node(Path(folder), arrow=given.arrow)
    print("smoke: passed")


if __name__ == "__main__":
    main()
