"""What Kafka 4.3.1 answered to the admin scripts, for machines without Java.

`python -m tests.support.recorded` records it again (needs Java and the jars).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fenceline.testing.apache_kafka import small_kafka
from tests.support.admin_scripts import SCRIPTS, run_script
from tests.support.raw import RawConnection

_PATH = Path(__file__).with_name("admin_answers.json")


@cache
def recorded_answers() -> dict[str, list[Any]]:
    """Comparable answers by script, one a step."""
    loaded: dict[str, list[Any]] = json.loads(_PATH.read_text())
    return loaded


def record() -> None:
    from tests.kafka.conftest import SAME_SETTINGS

    answers: dict[str, list[Any]] = {}
    with small_kafka(overrides=SAME_SETTINGS) as kafka:
        for name, steps in SCRIPTS.items():
            with RawConnection(kafka.port) as connection:
                answers[name] = run_script(connection, steps)
    lines = (
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(each) for each in steps) + "\n]"
        for name, steps in answers.items()
    )
    _PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
