"""`fenceline cluster`: runs a local cluster of separate processes, and injects faults into its nodes.

Owns the messages, options and exit codes of `up`: 0 after a clean stop, 1 if it could not start or a node had to be
killed at the end, 130 after a second signal. `fenceline.local_cluster` does the work.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    AsJson,
    examples,
    is_ascii_only,
    pairs,
    print_json,
    print_result,
    readable_errors,
    show,
    waiting_notice,
)
from fenceline.errors import FencelineError, OperatorError
from fenceline.local_cluster.secured import ADMIN, properties_of_clients

if TYPE_CHECKING:
    from fenceline.local_cluster import LocalCluster, NodeEnded

cluster = typer.Typer(
    no_args_is_help=True,
    help="Run a local cluster of separate processes, and inject faults.",
    epilog=examples(
        ("fenceline cluster up --data-dir ./cluster", "three nodes on ports 9092 to 9094, until Ctrl-C"),
        ("fenceline cluster status --data-dir ./cluster", "state of each node (in another terminal)"),
        ("fenceline cluster kill 1 --data-dir ./cluster", "kill node 1 with SIGKILL"),
        ("fenceline cluster restart 1 --data-dir ./cluster", "start node 1 again"),
    ),
)

EXIT_SECOND_SIGNAL = 130
_NOTICE_EVERY_S = 2.0

DataDir = Annotated[Path, typer.Option("--data-dir", "-d", help="the cluster's directory")]
Node = Annotated[int, typer.Argument(help="the node's number, from 1")]


@cluster.command(
    epilog=examples(
        ("fenceline cluster up -d ./cluster", "three nodes, or the existing nodes of the directory"),
        ("fenceline cluster up -d ./five -n 5 -p 19092", "five nodes on ports 19092 to 19096"),
        ("fenceline cluster up -d ./parted -n 2 --controllers 3", "two brokers and three dedicated controllers"),
        ("fenceline cluster up -d ./safe --secure", "with TLS, users, and property files for clients"),
        ("fenceline cluster up -d ./short --override log.retention.ms=60000", "with a property for all nodes"),
    )
)
def up(
    data_dir: DataDir,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            "-n",
            help="number of brokers, also controllers unless --controllers is given; 3 in a new directory",
        ),
    ] = None,
    controllers: Annotated[
        int | None, typer.Option("--controllers", help="number of additional nodes that are only controllers")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", "-p", help="port of node 1; the other nodes use the next ones. 0: any free ports")
    ] = 9092,
    secure: Annotated[
        bool, typer.Option("--secure", help="a new cluster with TLS and users, and property files for clients")
    ] = False,
    override: Annotated[list[str] | None, typer.Option(help="set a property of every node; may be repeated")] = None,
    log_level: Annotated[str, typer.Option(help="log level of the nodes: debug, info, warning or error")] = "warning",
    as_json: AsJson = False,
) -> None:
    """Run a cluster in the foreground until Ctrl-C; prints a line when all nodes are registered.

    If the directory holds a cluster, it is started again.
    """
    from fenceline.local_cluster import LocalCluster

    with readable_errors():
        if log_level not in ("debug", "info", "warning", "error"):
            raise OperatorError(f"--log-level {log_level} is not a log level", "Choose debug, info, warning or error.")
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        local = LocalCluster(
            nodes,
            controllers=controllers,
            data_dir=data_dir,
            port=port,
            secure=secure,
            overrides=pairs(override or [], "--override"),
            log_level=log_level,
            on_end=events.put,
        )
        raise typer.Exit(_Foreground(local, events, as_json=as_json, has_overrides=bool(override)).run())


class _Foreground:
    """One thread handles all events in order: signals, exits of nodes, results of start and stop."""

    def __init__(
        self, local: LocalCluster, events: queue.SimpleQueue[Any], *, as_json: bool, has_overrides: bool = False
    ) -> None:
        self._local = local
        self._events = events
        self._as_json = as_json
        self._has_overrides = has_overrides
        self._failure: FencelineError | None = None

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._in_background(self._start)
        is_ready = is_stopping = False
        while True:
            match self._next_event(prints_progress=not is_ready and not is_stopping):
                case "ready":
                    is_ready = True
                    self._print_ready()
                case signal.Signals() if is_stopping:
                    self._local.kill_all()
                    # Exit without waiting for the background threads.
                    os._exit(EXIT_SECOND_SIGNAL)
                case signal.Signals() | FencelineError() as why:
                    if isinstance(why, FencelineError):
                        if is_stopping:
                            why = OperatorError("The cluster was stopped before it was ready")
                        self._failure = self._failure or why
                    if not is_stopping:
                        is_stopping = True
                        self._in_background(self._stop)
                case dict() as exit_codes:
                    return self._ended(exit_codes)
                case BaseException() as bug:
                    self._local.kill_all()
                    raise bug
                case ended:
                    # Before the cluster is ready, the start reports it; during the stop, it is expected.
                    if is_ready and not is_stopping:
                        self._print_ended(ended)

    def _next_event(self, *, prints_progress: bool) -> Any:
        """The next event. During the start, a terminal shows periodically what the cluster waits for."""
        while prints_progress and sys.stderr.isatty() and not self._as_json:
            try:
                return self._events.get(timeout=_NOTICE_EVERY_S)
            except queue.Empty:
                if self._local.waits_for:
                    print(f"fenceline: waiting for {self._local.waits_for} ...", file=sys.stderr, flush=True)
        return self._events.get()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._events.put(signal.Signals(number))

    def _in_background(self, work: Any) -> None:
        def report() -> None:
            try:
                self._events.put(work())
            except BaseException as error:
                self._events.put(error)

        threading.Thread(target=report, daemon=True).start()

    def _start(self) -> str:
        self._local.start()
        return "ready"

    def _stop(self) -> dict[int, int]:
        return self._local.stop()

    def _print_ready(self) -> None:
        local = self._local
        if self._as_json:
            line = json.dumps({"event": "ready", **local.run_command({"command": "status"})})
        else:
            count = len(local.layout.nodes)
            line = (
                f"Fenceline cluster is ready: {count} node{'s' * (count != 1)}, cluster {local.cluster_id},"
                f" listening on {local.bootstrap}"
            )
            if (login := local.layout.login) is not None:
                files = ", ".join(map(str, properties_of_clients(login).values()))
                line += f"\nProperty files for clients (user {ADMIN}): {files}"
        print(line, flush=True)
        if self._has_overrides and not self._as_json:
            for warning in local.warnings():
                print(f"fenceline: {warning}", file=sys.stderr, flush=True)

    def _print_ended(self, ended: NodeEnded) -> None:
        if self._as_json:
            line = {"node": ended.node, "exit_code": ended.exit_code, "wanted": ended.was_wanted}
            print(json.dumps({"event": "ended", **line, "last_lines": ended.last_lines}), file=sys.stderr, flush=True)
        elif ended.was_wanted:
            print(f"fenceline: node {ended.node} was stopped on request", file=sys.stderr, flush=True)
        else:
            lines = "".join(f"\n  {line}" for line in ended.last_lines) or "\n  (no output)"
            print(
                f"fenceline: node {ended.node} exited unexpectedly: {_reason(ended.exit_code)}; last lines:{lines}\n"
                f"  Start it again with: fenceline cluster restart {ended.node} --data-dir {self._local.root}",
                file=sys.stderr,
                flush=True,
            )

    def _ended(self, exit_codes: dict[int, int]) -> int:
        if self._failure is not None:
            raise self._failure
        killed = sorted(node for node, code in exit_codes.items() if code == -signal.SIGKILL)
        if killed:
            print(f"fenceline: node {', '.join(map(str, killed))} did not stop in time and was killed", file=sys.stderr)
        return 1 if killed else 0


def _reason(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"exit code {exit_code}, {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"exit code {exit_code}"


@cluster.command()
def status(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Show the nodes of a running cluster: state, roles, active controller, metadata lag, isolation."""
    from fenceline.local_cluster.control import ask

    with readable_errors():
        found = ask(data_dir, "status")
        if as_json:
            print_json(found)
            return
        quorum = found["quorum"]
        print(_headline(found, quorum))
        rows = [_row(node, quorum) for node in found["nodes"]]
        show(rows, as_json=False, optional=("roles", "memory", "pid"))


@cluster.command()
def kill(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Kill a node (SIGKILL)."""
    _command("kill", node, data_dir, f"Killed node {node}.", as_json=as_json)


@cluster.command()
def pause(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Suspend a node (SIGSTOP): its connections stay open without traffic."""
    _command("pause", node, data_dir, f"Paused node {node}.", as_json=as_json)


@cluster.command()
def resume(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Resume a paused node (SIGCONT)."""
    _command("resume", node, data_dir, f"Resumed node {node}.", as_json=as_json)


@cluster.command()
def restart(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Stop a node cleanly if it is running, start it, and wait until it serves requests.

    After a kill this takes up to 9 seconds: the old session must expire first.
    """
    with waiting_notice(f"waiting for node {node}; after a kill its old session must expire first"):
        _command("restart", node, data_dir, f"Restarted node {node}.", as_json=as_json)


@cluster.command(
    epilog=examples(
        ("fenceline cluster isolate 1 -d ./cluster", "drop all traffic, also that of clients"),
        ("fenceline cluster isolate 1 --from 2 --inbound -d ./cluster", "drop packets from node 2 to node 1"),
        ("fenceline cluster heal 1 -d ./cluster", "remove all isolation of node 1"),
    )
)
def isolate(
    node: Node,
    data_dir: DataDir,
    peers: Annotated[
        list[int] | None,
        typer.Option(
            "--from", help="isolate from this node only; may be repeated [default: from all nodes and clients]"
        ),
    ] = None,
    inbound: Annotated[bool, typer.Option("--inbound", help="drop only packets sent to the node")] = False,
    outbound: Annotated[bool, typer.Option("--outbound", help="drop only packets sent by the node")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a node's packets. Connections are neither refused nor reset. Linux only."""
    both = inbound == outbound
    _command(
        "isolate",
        node,
        data_dir,
        f"Isolated node {node}.",
        as_json=as_json,
        peers=peers or [],
        inbound=inbound or both,
        outbound=outbound or both,
    )


@cluster.command()
def heal(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Remove all isolation of a node. Open connections continue at the next TCP retransmission."""
    _command("heal", node, data_dir, f"Reconnected node {node}.", as_json=as_json)


def _command(command: str, node: int, data_dir: Path, message: str, *, as_json: bool, **arguments: Any) -> None:
    from fenceline.local_cluster.control import ask

    with readable_errors():
        print_result(message, ask(data_dir, command, node=node, **arguments), as_json=as_json)


def _headline(found: dict[str, Any], quorum: dict[str, Any] | None) -> str:
    nodes = found["nodes"]
    running = sum(node["state"] == "running" for node in nodes)
    if quorum is None:
        active = "no active controller, or it does not answer"
    else:
        active = f"node {quorum['leader_id']} is the active controller, epoch {quorum['leader_epoch']}"
    return f"Cluster {found['cluster_id']}: {running} of {len(nodes)} nodes are running; {active}."


def _row(node: dict[str, Any], quorum: dict[str, Any] | None) -> dict[str, Any]:
    from rich.text import Text

    from fenceline.cli.quorum_view import bar

    memory, exit_code = node["memory_bytes"], node["exit_code"]
    is_running = node["state"] == "running"
    is_leader = is_running and quorum is not None and node["node"] == quorum["leader_id"]
    mark = ("*" if is_ascii_only() else "★") if is_leader else " "
    lag = quorum["lags"].get(str(node["node"])) if quorum is not None and node["pid"] is not None else None
    block = "#" if is_ascii_only() else "█"
    return {
        "node": Text(f"{mark} {node['node']}", "bold green" if is_leader else ""),
        "roles": node["roles"],
        "address": node["address"],
        "state": Text(
            node["state"] if exit_code is None else f"{node['state']} ({_reason(exit_code)})",
            "green" if is_running else "red",
        ),
        "metadata lag": None if lag is None else Text(f"{lag} {bar(lag, block)}".rstrip()),
        "pid": node["pid"],
        "memory": None if memory is None else f"{memory / 1e6:.0f} MB",
        "isolated from": Text(", ".join(_cut(each) for each in node["cuts"]), "red"),
    }


def _cut(cut: dict[str, Any]) -> str:
    direction = "" if cut["inbound"] and cut["outbound"] else " (inbound)" if cut["inbound"] else " (outbound)"
    return f"{'all' if cut['peer'] is None else cut['peer']}{direction}"
