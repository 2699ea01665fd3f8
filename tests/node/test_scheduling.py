"""The scheduling policy that the process of a node sets, and the cases in which it sets none."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fenceline.node import scheduling
from fenceline.testing.node import EmbeddedNode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such policies")


def policies(pid: int) -> set[int]:
    """Of all threads of a process."""
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.parametrize(
    ("overrides", "policy"), [({}, "SCHED_BATCH"), ({"fenceline.scheduling.policy": "normal"}, "SCHED_OTHER")]
)
def test_policy_of_a_node(overrides: dict[str, str], policy: str) -> None:
    with EmbeddedNode(overrides=overrides) as node:
        assert policies(node.pid) == {getattr(os, policy)}


def test_a_policy_set_from_outside_is_kept() -> None:
    script = (
        "import os; from fenceline.node.scheduling import set_policy;"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0));"
        "set_policy('batch'); print(os.sched_getscheduler(0) == os.SCHED_IDLE)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True"


def test_a_refusal_of_the_system_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    reported: list[dict[str, str]] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refused)
    monkeypatch.setattr(scheduling, "log", SimpleNamespace(info=lambda event, **more: reported.append(more)))
    scheduling.set_policy("normal")
    assert not reported
    scheduling.set_policy("batch")
    assert reported == [
        {
            "detail": "could not set the scheduling policy batch: Operation not permitted",
            "key": "fenceline.scheduling.policy",
        }
    ]
