"""Output of `fenceline cluster` for people: bars, progress, hints; and log rotation."""

from __future__ import annotations

import json
import os
import pty
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from fenceline.cli import cluster, output
from fenceline.cli.app import app
from fenceline.cli.quorum import _static_voters_explained
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.local_cluster import cluster as local_cluster
from fenceline.local_cluster import reaper
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.local_cluster.process import LOG_LIMIT_BYTES, older_log, trim_log
from fenceline.testing.waiting import eventually
from tests.testing.echo_peer import need_cuts

DEADLINE_S = 60


def run(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == code, found.output
    return found.output


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(2, controllers=1, data_dir=tmp_path_factory.mktemp("comfort")) as running:
        yield running


def test_status_shows_the_active_controller_and_the_lag_of_each_voter(local: LocalCluster) -> None:
    found = json.loads(run("cluster", "status", "-d", str(local.root), "--json"))
    assert list(found) == ["cluster_id", "bootstrap", "supervisor_pid", "quorum", "nodes"]
    assert list(found["quorum"]) == ["leader_id", "leader_epoch", "high_watermark", "lags"]
    assert found["quorum"]["leader_id"] == 3
    assert set(found["quorum"]["lags"]) == {"1", "2", "3"}
    shown = run("cluster", "status", "-d", str(local.root))
    assert "3 of 3 nodes are running; node 3 is the active controller, epoch 1." in shown
    assert "★ 3" in shown


def test_status_shows_no_active_controller_while_it_is_down_or_isolated(local: LocalCluster) -> None:
    local.pause(3)
    try:
        assert local.quorum() is None
        assert "2 of 3 nodes are running; no active controller" in run("cluster", "status", "-d", str(local.root))
    finally:
        local.resume(3)
    need_cuts()
    local.isolate(3)
    try:
        assert local.quorum() is None
    finally:
        local.heal(3)


def test_without_a_leader_the_error_lists_reachable_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "TIMEOUT_MS", 3000)
    with LocalCluster(1, controllers=2, data_dir=tmp_path) as parted:
        leader = parted.quorum()
        assert leader is not None
        dead = leader.leader_id
        alive = next(each for each in parted.layout.nodes if each.is_controller and each.node_id != dead)
        parted.kill(dead)
        said = run("quorum", "describe", "-c", f"127.0.0.1:{alive.controller_port}", code=1)
        assert f"Reachable controllers: {alive.node_id}; not reachable: {dead}." in said
        said = run("quorum", "describe", "-b", parted.bootstrap, code=1)
        assert "Reachable brokers: 1." in said
        assert "A majority of the voters must be running" in said


def test_a_large_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_TRIM_EVERY_S", 0.01)
    log_file = tmp_path / "node-1" / "node.log"
    with LocalCluster(1, data_dir=tmp_path) as running:
        with log_file.open("ab") as log:
            log.write(b"x" * (LOG_LIMIT_BYTES + 1))
        older = older_log(log_file)
        eventually(lambda: older.exists() and log_file.stat().st_size == 0, "the log is moved aside")
        assert older.read_bytes().startswith(b"Fenceline is ready")
        running.restart(1)
        assert log_file.read_bytes().startswith(b"Fenceline is ready")


def test_only_logs_above_the_limit_are_rotated(tmp_path: Path) -> None:
    log_file = tmp_path / "node.log"
    assert not trim_log(log_file)
    log_file.write_bytes(b"12345")
    assert not trim_log(log_file, limit_bytes=5)
    assert trim_log(log_file, limit_bytes=4)
    assert (log_file.read_bytes(), (tmp_path / "node.log.1").read_bytes()) == (b"", b"12345")


def test_unknown_settings_are_reported_once_the_cluster_is_ready(tmp_path: Path) -> None:
    with LocalCluster(1, data_dir=tmp_path, overrides={"log.retention.m": "1"}) as running:
        [warning] = running.warnings()
    assert "log.retention.m" in warning
    assert "did you mean log.retention.ms?" in warning


def test_a_terminal_shows_what_a_command_waits_for() -> None:
    """A command that gets no response, on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fenceline", "quorum", "describe", "--bootstrap", "127.0.0.1:1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    reaper.watch_process(process.pid)
    try:
        said = os.read(ours, 4096).decode()
    finally:
        process.kill()
        process.wait()
        reaper.forget_process(process.pid)
        os.close(ours)
    assert said.startswith("fenceline: no answer from 127.0.0.1:1 yet; waiting 10 s at most ...")


def test_up_shows_on_a_terminal_what_it_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    class Starting:
        @property
        def waits_for(self) -> str:
            events.put("ready")
            return "node 1 to start"

    monkeypatch.setattr(cluster, "_NOTICE_EVERY_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    foreground = cluster._Foreground(cast(LocalCluster, Starting()), events, as_json=False)
    assert foreground._next_event(prints_progress=True) == "ready"
    assert capsys.readouterr().err == "fenceline: waiting for node 1 to start ...\n"


def test_the_error_for_static_voters_names_the_upgrade() -> None:
    with pytest.raises(OperatorError) as reported, _static_voters_explained():
        raise PeerError(ErrorCode.UNSUPPORTED_VERSION, "Voters are static with kraft.version 0")
    assert "fenceline features upgrade kraft.version=1" in reported.value.advice
    with pytest.raises(PeerError), _static_voters_explained():
        raise PeerError(ErrorCode.DUPLICATE_VOTER, "no")


@pytest.mark.parametrize(
    ("width", "shown"),
    [(60, ["name", "first", "second"]), (35, ["name", "second"]), (15, ["name"]), (5, ["name"])],
)
def test_narrow_terminals_omit_optional_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, shown: list[str]
) -> None:
    monkeypatch.setattr(output, "_DEFAULT_WIDTH", width)
    row = {"name": "x", "first": "1" * 15, "second": "2" * 15}
    output.show([row], as_json=False, optional=("first", "second"))
    printed = capsys.readouterr().out
    assert ["1" in printed, "2" in printed] == ["first" in shown, "second" in shown]


def test_no_waiting_notice_is_written_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_NOTICE_AFTER_S", 0.0)
    with output.waiting_notice("nothing"):
        pass
    assert capsys.readouterr().err == ""


def test_ctrl_c_during_imports_prints_no_traceback() -> None:
    """An import that blocks simulates a slow one."""
    program = (
        "import sys, builtins\n"
        "real = builtins.__import__\n"
        "def slow(name, *rest):\n"
        "    if name == 'fenceline.cli.app':\n"
        "        print('importing', flush=True)\n"
        "        sys.stdin.read()\n"
        "    return real(name, *rest)\n"
        "from fenceline.cli import main\n"
        "builtins.__import__ = slow\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "topics", "list"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    reaper.watch_process(process.pid)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        reaper.forget_process(process.pid)
    assert (process.returncode, complaints) == (-signal.SIGINT, "")


@pytest.mark.parametrize("group", ["features", "brokers"])
def test_a_command_group_without_a_command_runs_list(local: LocalCluster, group: str) -> None:
    listed = json.loads(run(group, "list", "-b", local.bootstrap, "--json"))
    assert json.loads(run(group, "-b", local.bootstrap, "--json")) == listed
    assert "options must follow the command" in run(group, "--json", "list", code=2)


@pytest.mark.parametrize(
    "command",
    [
        ("cluster",),
        ("cluster", "up"),
        ("cluster", "isolate"),
        ("quorum", "describe"),
        ("quorum", "add"),
        ("quorum", "remove"),
        ("features",),
        ("brokers",),
        ("format",),
        ("snapshot",),
        ("metadata",),
    ],
)
def test_help_shows_examples(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert "Examples:" in shown
    assert f"fenceline {command[0]}" in shown.partition("Examples:")[2]


def test_a_file_as_data_directory_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in run("cluster", "up", "-d", str(file), "-p", "0", code=1)


def test_a_cluster_without_nodes_is_rejected_with_advice(tmp_path: Path) -> None:
    assert "3 is the usual number" in run("cluster", "up", "-d", str(tmp_path), "-n", "0", code=1)


def test_the_folder_of_a_cluster_is_rejected_with_the_folders_of_its_nodes(local: LocalCluster) -> None:
    said = run("snapshot", "list", str(local.root), code=1)
    assert "has the directories of 3 nodes" in said
    assert "node-1/data" in said.replace("\n", "")
    assert "does not exist" in run("snapshot", "list", str(local.root / "nowhere"), code=1)


def test_a_joining_controller_needs_the_cluster_id(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "node.id=4\nprocess.roles=controller\nlisteners=CONTROLLER://127.0.0.1:1\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:2\n"
        f"log.dirs={tmp_path / 'data'}\n"
    )
    assert "--cluster-id" in run("format", "--config", str(config), "--no-initial-controllers", code=1)
    assert not (tmp_path / "data").exists()
    run("format", "--config", str(config), "--no-initial-controllers", "--cluster-id", "A" * 22)
