"""`fenceline cluster`: a local cluster of separate processes, and what one may do to its nodes.

Owns words, options and the exit codes of `up`: 0 after a clean stop, 1 when it could not start or a node had to be
killed at the end, 130 after a second signal. The work is `fenceline.testing.local_cluster`'s.
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
    done,
    examples,
    is_ascii_only,
    pairs,
    patience,
    print_json,
    readable_errors,
    show,
)
from fenceline.errors import FencelineError, OperatorError

if TYPE_CHECKING:
    from fenceline.testing.local_cluster import LocalCluster, NodeEnded

cluster = typer.Typer(
    no_args_is_help=True,
    help="A local cluster of separate processes, to try and to break.",
    epilog=examples(
        ("fenceline cluster up --data-dir ./cluster", "three nodes on 9092 to 9094, until Ctrl-C"),
        ("fenceline cluster status --data-dir ./cluster", "in another terminal: who runs, who leads"),
        ("fenceline cluster kill 1 --data-dir ./cluster", "and what happens then"),
        ("fenceline cluster restart 1 --data-dir ./cluster", "have it back"),
    ),
)

EXIT_SECOND_SIGNAL = 130
_PATIENCE_S = 2.0

DataDir = Annotated[Path, typer.Option("--data-dir", "-d", help="the cluster's folder")]
Node = Annotated[int, typer.Argument(help="the node's number, from 1")]


@cluster.command(
    epilog=examples(
        ("fenceline cluster up -d ./cluster", "three nodes, or those that the folder has"),
        ("fenceline cluster up -d ./five -n 5 -p 19092", "five nodes on 19092 to 19096"),
        ("fenceline cluster up -d ./parted -n 2 --controllers 3", "two brokers, and three controllers of their own"),
        ("fenceline cluster up -d ./short --override log.retention.ms=60000", "with a setting for all"),
    )
)
def up(
    data_dir: DataDir,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", "-n", help="brokers, controllers as well unless --controllers is given; 3 in a new folder"
        ),
    ] = None,
    controllers: Annotated[
        int | None, typer.Option("--controllers", help="so many more nodes, which are only controllers")
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", help="of node 1; the next ones follow. 0: any free ones")] = 9092,
    override: Annotated[list[str] | None, typer.Option(help="set a property of every node; may be repeated")] = None,
    log_level: Annotated[str, typer.Option(help="of the nodes: debug, info, warning or error")] = "warning",
    as_json: AsJson = False,
) -> None:
    """Run a cluster in the foreground until Ctrl-C; one line says when all nodes are registered.

    The same folder again continues the same cluster.
    """
    from fenceline.testing.local_cluster import LocalCluster

    with readable_errors():
        if log_level not in ("debug", "info", "warning", "error"):
            raise OperatorError(f"--log-level {log_level} is none", "Choose debug, info, warning or error.")
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        local = LocalCluster(
            nodes,
            controllers=controllers,
            data_dir=data_dir,
            port=port,
            overrides=pairs(override or [], "--override"),
            log_level=log_level,
            on_end=events.put,
        )
        raise typer.Exit(_Foreground(local, events, as_json=as_json, has_overrides=bool(override)).run())


class _Foreground:
    """One thread takes events one after another: signals, ends of nodes, outcomes of start and stop."""

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
            match self._next_event(tells_progress=not is_ready and not is_stopping):
                case "ready":
                    is_ready = True
                    self._say_ready()
                case signal.Signals() if is_stopping:
                    self._local.kill_all()
                    # Whatever else is under way can not hold us.
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
                    # Before, it is why the start fails; afterwards, it is what was asked for.
                    if is_ready and not is_stopping:
                        self._say_ended(ended)

    def _next_event(self, *, tells_progress: bool) -> Any:
        """While the cluster starts, a person is told now and then what it waits for."""
        while tells_progress and sys.stderr.isatty() and not self._as_json:
            try:
                return self._events.get(timeout=_PATIENCE_S)
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

    def _say_ready(self) -> None:
        local = self._local
        if self._as_json:
            from fenceline.testing.local_cluster_control import run_command

            line = json.dumps({"event": "ready", **run_command(local, {"command": "status"})})
        else:
            count = len(local.layout.nodes)
            line = (
                f"Fenceline cluster is ready: {count} node{'s' * (count != 1)}, cluster {local.cluster_id},"
                f" listening on {local.bootstrap}"
            )
        print(line, flush=True)
        if self._has_overrides and not self._as_json:
            for warning in local.warnings():
                print(f"fenceline: {warning}", file=sys.stderr, flush=True)

    def _say_ended(self, ended: NodeEnded) -> None:
        if self._as_json:
            line = {"node": ended.node, "exit_code": ended.exit_code, "wanted": ended.was_wanted}
            print(json.dumps({"event": "ended", **line, "last_lines": ended.last_lines}), file=sys.stderr, flush=True)
        elif ended.was_wanted:
            print(f"fenceline: node {ended.node} was ended on request", file=sys.stderr, flush=True)
        else:
            lines = "".join(f"\n  {line}" for line in ended.last_lines) or "\n  (it wrote nothing)"
            print(
                f"fenceline: node {ended.node} ended by itself: {_reason(ended.exit_code)}; its last lines:{lines}\n"
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
    """Show the nodes of a cluster that is up: who runs, who leads, who is behind in the metadata, who is cut off."""
    from fenceline.testing.local_cluster_control import ask

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
    """End a node at once (kill -9)."""
    _command("kill", node, data_dir, f"Node {node} is killed.", as_json=as_json)


@cluster.command()
def pause(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Freeze a node (SIGSTOP): its connections stay open, and silent."""
    _command("pause", node, data_dir, f"Node {node} is paused.", as_json=as_json)


@cluster.command()
def resume(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Let a paused node go on."""
    _command("resume", node, data_dir, f"Node {node} goes on.", as_json=as_json)


@cluster.command()
def restart(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Stop a node cleanly if it runs, start it, and wait until it serves.

    After a kill the controllers keep its old session for up to 9 seconds.
    """
    with patience(f"node {node} is on its way; one that was killed is registered again when its old session has ended"):
        _command("restart", node, data_dir, f"Node {node} is started again.", as_json=as_json)


@cluster.command(
    epilog=examples(
        ("fenceline cluster isolate 1 -d ./cluster", "nothing comes or goes, for clients neither"),
        ("fenceline cluster isolate 1 --from 2 --inbound -d ./cluster", "node 1 hears nothing of node 2"),
        ("fenceline cluster heal 1 -d ./cluster", "ends all cuts of node 1"),
    )
)
def isolate(
    node: Node,
    data_dir: DataDir,
    peers: Annotated[
        list[int] | None, typer.Option("--from", help="only from this node; may be repeated. Without: from everybody")
    ] = None,
    inbound: Annotated[bool, typer.Option("--inbound", help="lose only what is sent to the node")] = False,
    outbound: Annotated[bool, typer.Option("--outbound", help="lose only what the node sends")] = False,
    as_json: AsJson = False,
) -> None:
    """Cut a node's network, silently: nothing is refused or reset, it just does not arrive. Linux only."""
    both = inbound == outbound
    _command(
        "isolate",
        node,
        data_dir,
        f"Node {node} is cut off.",
        as_json=as_json,
        peers=peers or [],
        inbound=inbound or both,
        outbound=outbound or both,
    )


@cluster.command()
def heal(node: Node, data_dir: DataDir, as_json: AsJson = False) -> None:
    """End all cuts of a node. Open connections go on as soon as TCP tries again."""
    _command("heal", node, data_dir, f"Node {node} is connected again.", as_json=as_json)


def _command(command: str, node: int, data_dir: Path, words: str, *, as_json: bool, **arguments: Any) -> None:
    from fenceline.testing.local_cluster_control import ask

    with readable_errors():
        done(words, ask(data_dir, command, node=node, **arguments), as_json=as_json)


def _headline(found: dict[str, Any], quorum: dict[str, Any] | None) -> str:
    nodes = found["nodes"]
    running = sum(node["state"] == "running" for node in nodes)
    if quorum is None:
        leads = "no controller leads, or it can not be asked"
    else:
        leads = f"node {quorum['leader_id']} leads, epoch {quorum['leader_epoch']}"
    return f"Cluster {found['cluster_id']}: {running} of {len(nodes)} nodes run; {leads}."


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
        "cut off": Text(", ".join(_cut(each) for each in node["cuts"]), "red"),
    }


def _cut(cut: dict[str, Any]) -> str:
    direction = "" if cut["inbound"] and cut["outbound"] else " inbound" if cut["inbound"] else " outbound"
    return f"from {'everybody' if cut['peer'] is None else cut['peer']}{direction}"
