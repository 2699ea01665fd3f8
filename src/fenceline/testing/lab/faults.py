"""What a test can break in a cluster, one line each, and how it is undone.

Owns the faults in force and their order: `undo_all` ends them from the newest to the oldest, and starts the nodes that
do not run. Everything happens to real processes, and nothing needs root. Thread-safe.

| Fault | How |
|---|---|
| `kill`, `stop`, `pause`, `slow_cpu` | signals |
| `cut` | filters on the sockets of the processes (`local_cluster.cuts`); where the system forbids it, inside them |
| `delay`, `limit_bandwidth`, `half_open`, `reset` | inside the nodes (`nodes.links`) |
| `full_disk`, `slow_disk`, `failing_disk`, `torn_write`, `step_clock` | inside the nodes |
| `fail_requests`, `delay_requests`, `lose_requests`, `lose_answers`, `hang_requests`, `throttle` | inside the brokers |
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack

from fenceline.errors import ErrorCode, OperatorError
from fenceline.local_cluster.socket_cuts import CutsUnavailable
from fenceline.testing.lab.fault_state import CLIENTS, DiskFault, Effect, LinkFault, RequestFault
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.testing.lab.cluster import LabCluster
    from fenceline.testing.lab.control import NodeControl

Direction = Literal["both", "in", "out"]
Peer = int | Literal["clients", "nodes", ""]
Predicate = Callable[[Mapping[str, Any]], bool]
"""Receives a request: `api`, `version`, `client_id`, `topics`, `groups`, and `fields` as in the protocol's messages."""


class RequestConditions(TypedDict, total=False):
    """Which requests a fault affects: of a client, a topic, a group. `skip`: the first ones pass; `times`: so many are
    then affected, on each node. `when`: a predicate of this process."""

    client_id: str
    topic: str
    group: str
    skip: int
    times: int
    when: Predicate


_CPU_PERIOD_S: Final = 0.02
_HIT: Final = "request fault"


class ActiveFault:
    """A fault in force. Ends with `undo`, at the end of a `with` block, or with `ClusterFaults.undo_all`."""

    def __init__(
        self, faults: ClusterFaults, fault_id: int, text: str, undo: Callable[[], None], starts: int | None = None
    ) -> None:
        """`starts`: the node that is started after `undo`; a running one is restarted."""
        self._faults = faults
        self._undo = undo
        self.starts = starts
        self.fault_id = fault_id
        self.text = text
        self.hits_by_node: Counter[int] = Counter()

    @property
    def hits(self) -> int:
        """How many requests it has affected, for faults of requests."""
        return self.hits_by_node.total()

    @property
    def is_active(self) -> bool:
        return self in self._faults.active

    def undo(self) -> None:
        """End the fault; does nothing if it has ended. Raises OperatorError if a node cannot be started again."""
        self._faults.end(self)

    def clean_up(self) -> None:
        """All of `undo`, except the start of a node."""
        self._undo()

    def wait_hits(self, count: int = 1, *, wait_s: float = 30.0) -> None:
        """Wait until it has affected so many requests. Raises TimeoutError, OperatorError if the cluster ends."""

        faults = self._faults
        what = f"{self.text}: {count} requests affected"
        eventually(lambda: self.hits >= count or faults.has_ended, what, wait_s=wait_s)
        if self.hits < count:
            raise OperatorError("The cluster has ended", "Start a new one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<{self.text}>"


class ClusterFaults:
    """The faults of one cluster. Nodes are 1 to N; `node=None` means all of them.

    Every method raises OperatorError for a node that there is not, that is down, or whose state rules the fault out."""

    def __init__(self, cluster: LabCluster) -> None:
        self._cluster = cluster
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self.has_ended = False
        self._active: list[ActiveFault] = []
        self._predicates: dict[int, Predicate] = {}
        self._rules: dict[int, RequestFault] = {}
        self._kernel_cuts: dict[int, list[tuple[int, tuple[int, ...], Direction]]] = {}
        """By node: fault id, peers and direction of its cuts."""

    @property
    def bootstrap_servers(self) -> str:
        """Of the cluster that they hit."""
        return self._cluster.bootstrap_servers

    @property
    def active(self) -> Sequence[ActiveFault]:
        """The faults in force, oldest first."""
        with self._lock:
            return tuple(self._active)

    def undo_all(self) -> None:
        """End all faults, and start the nodes that do not run; the cluster is then complete.

        Raises OperatorError if it does not become complete."""
        problems: list[OperatorError] = []
        restart: list[int] = []
        for fault in reversed(self.active):
            try:
                if self._remove(fault):
                    fault.clean_up()
                    self._ended(fault)
            except OperatorError as error:
                problems.append(error)
            if fault.starts is not None:
                restart.append(fault.starts)
        # At once: nodes without a majority of the controllers wait for the others.
        self._cluster.revive(restart)
        if problems:
            raise problems[0]

    # --- processes ------------------------------------------------------------------------------------------------

    def kill(self, node: int) -> ActiveFault:
        """kill -9. Ends with a start of the node."""
        self._cluster.processes.kill(node)
        return self.begin("kill", node, starts=node)

    def stop(self, node: int) -> ActiveFault:
        """A clean stop (SIGTERM), and wait for it. Ends with a start of the node."""
        self._cluster.processes.stop_node(node)
        return self.begin("stop", node, starts=node)

    def pause(self, node: int) -> ActiveFault:
        """SIGSTOP: the node is frozen, and its connections stay open."""
        self._cluster.processes.pause(node)
        return self.begin("pause", node, lambda: self._resume(node))

    def slow_cpu(self, node: int, *, share: float) -> ActiveFault:
        """The node gets this share of its CPU time: it is stopped for the rest of each 20 ms."""
        if not 0 < share < 1:
            raise OperatorError(f"{share} is not a share of the CPU", "Give a number between 0 and 1, such as 0.1.")
        process = self._cluster.processes.running(node)
        ended = threading.Event()

        def run() -> None:
            while process.is_running and not ended.is_set():
                process.send_signal(signal.SIGSTOP)
                ended.wait(_CPU_PERIOD_S * (1 - share))
                process.send_signal(signal.SIGCONT)
                ended.wait(_CPU_PERIOD_S * share)
            process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=run, name=f"slow CPU of node {node}", daemon=True)
        thread.start()

        def undo() -> None:
            ended.set()
            thread.join()

        return self.begin(f"slow CPU ({share:g})", node, undo)

    # --- network --------------------------------------------------------------------------------------------------

    def cut(
        self,
        node: int,
        *,
        peers: Iterable[int] = (),
        direction: Direction = "both",
        clients: bool = False,
        client_id: str | None = None,
    ) -> ActiveFault:
        """Cut a node off: from all nodes and clients, or only from `peers`, from all `clients`, or from the clients
        with this `client_id`. Bytes are lost silently; connections stay open. `direction`: as the node sees it."""
        self._cluster.processes.running(node)
        listed = tuple(peers)
        if clients or client_id is not None:
            peer: Peer = CLIENTS if clients else ""
            who = "clients" if client_id is None else f"client {client_id}"
            return self._cut_inside(node, (peer,), direction, client_id, who)
        who = f"nodes {', '.join(map(str, listed))}" if listed else "all"
        try:
            with self._lock:
                fault_id = next(self._numbers)
                self._kernel_cuts.setdefault(node, []).append((fault_id, listed, direction))
                try:
                    self._isolate(node, listed, direction)
                except BaseException:
                    self._kernel_cuts[node].pop()
                    raise
        except CutsUnavailable:
            return self._cut_inside(node, listed or ("",), direction, None, who)
        return self.begin(f"cut ({direction}) from {who}", node, lambda: self._heal(node, fault_id), fault_id)

    def delay(
        self, node: int, delay_s: float, *, jitter_s: float = 0.0, peer: Peer = "", client_id: str | None = None
    ) -> ActiveFault:
        """Each way of the node's connections takes so much longer, and up to `jitter_s` more."""
        fault = LinkFault(0, _peer(peer), client_id, delay_s=delay_s, jitter_s=jitter_s)
        return self.links(f"delay of {delay_s:g} s{_whose(peer, client_id)}", node, [fault])

    def limit_bandwidth(
        self, node: int, bytes_per_s: float, *, peer: Peer = "", client_id: str | None = None
    ) -> ActiveFault:
        """All connections of the node together get so many bytes a second, each way."""
        if bytes_per_s <= 0:
            raise OperatorError(f"{bytes_per_s} is no bandwidth", "Give bytes a second, more than 0, or use cut.")
        fault = LinkFault(0, _peer(peer), client_id, bytes_per_s=bytes_per_s)
        return self.links(f"{bytes_per_s:g} bytes/s{_whose(peer, client_id)}", node, [fault])

    def half_open(self, node: int, *, peer: Peer = "clients", client_id: str | None = None) -> ActiveFault:
        """The node forgets its connections, and the peers do not know: what they send is never answered. New
        connections work. At the end the old ones are reset."""
        chosen = asdict(LinkFault(0, _peer(peer), client_id))
        count = self._running_control(node).do("forget", link=chosen)["count"]

        def undo() -> None:
            with contextlib.suppress(OperatorError):  # they end with a node that is down
                self._cluster.control(node).do("end half open")

        return self.begin(f"{count} half-open connections{_whose(peer, client_id)}", node, undo)

    def reset(self, node: int, *, peer: Peer = "clients", client_id: str | None = None) -> int:
        """Reset the present connections once; returns their number."""
        chosen = asdict(LinkFault(0, _peer(peer), client_id))
        count = int(self._running_control(node).do("reset", link=chosen)["count"])
        self._cluster.timeline.add("connections reset", node, count=count, peer=peer or None, client_id=client_id)
        return count

    # --- disk and clock -------------------------------------------------------------------------------------------

    def full_disk(self, node: int) -> ActiveFault:
        """Nothing more can be written (ENOSPC)."""
        return self._disk("full disk", node, DiskFault(is_full=True))

    def slow_disk(self, node: int, slower_s: float) -> ActiveFault:
        """Each write and each flush takes so much longer."""
        return self._disk(f"slow disk ({slower_s:g} s)", node, DiskFault(slower_s=slower_s))

    def failing_disk(self, node: int, *, reads: bool = False) -> ActiveFault:
        """Writes and flushes fail (EIO), and `reads` as well. Ends with a new start of the node."""
        return self._disk("failing disk", node, DiskFault(fails_writes=True, fails_reads=reads), restarts=True)

    def torn_write(self, node: int, *, after_bytes: int = 0, path: str = "") -> ActiveFault:
        """After so many more bytes, in files whose path contains `path`, a write ends in the middle, and the node dies
        with it, as if the power had failed. Ends with a start of the node."""
        fault = DiskFault(torn_after_bytes=after_bytes, path=path)
        return self._disk(f"torn write after {after_bytes} bytes", node, fault)

    def step_clock(self, node: int, by_s: float) -> ActiveFault:
        """The wall clock of the node is set forward, or back, by so much."""
        control = self._running_control(node)
        before = control.faults.clock_ahead_ms
        with self._lock:
            control.set(replace(control.faults, clock_ahead_ms=before + round(by_s * 1000)))

        def undo() -> None:
            with self._lock:
                now_ms = control.faults.clock_ahead_ms
                control.set(replace(control.faults, clock_ahead_ms=now_ms - round(by_s * 1000)))

        return self.begin(f"clock step of {by_s:g} s", node, undo)

    # --- requests -------------------------------------------------------------------------------------------------

    def fail_requests(
        self,
        api: str | ApiKey | None,
        error: str | ErrorCode,
        node: int | None = None,
        **which: Unpack[RequestConditions],
    ) -> ActiveFault:
        """Requests of an API are answered with an error code, such as "NOT_LEADER_OR_FOLLOWER", and not handled.

        `api`: its name, such as "Produce"; None for all. `which`: `client_id`, `topic`, `group`; `skip` and `times`
        (the first ones pass; so many are then affected, on each node); `when`, a predicate of this process."""
        code = error_code_of(error)
        return self._requests(f"{code.name} for", api, node, Effect.ERROR, float(code), which)

    def delay_requests(
        self, api: str | ApiKey | None, delay_s: float, node: int | None = None, **which: Unpack[RequestConditions]
    ) -> ActiveFault:
        """Requests are handled so much later. `which` as in `fail_requests`."""
        return self._requests(f"{delay_s:g} s of delay for", api, node, Effect.DELAY, delay_s, which)

    def lose_requests(
        self, api: str | ApiKey | None, node: int | None = None, **which: Unpack[RequestConditions]
    ) -> ActiveFault:
        """Requests are not handled, and their connection is reset. `which` as in `fail_requests`."""
        return self._requests("lost requests of", api, node, Effect.LOSE_REQUEST, 0, which)

    def lose_answers(
        self, api: str | ApiKey | None, node: int | None = None, **which: Unpack[RequestConditions]
    ) -> ActiveFault:
        """Requests are handled, and their connection is reset instead of an answer. `which` as in `fail_requests`."""
        return self._requests("lost answers of", api, node, Effect.LOSE_ANSWER, 0, which)

    def hang_requests(
        self, api: str | ApiKey | None, node: int | None = None, **which: Unpack[RequestConditions]
    ) -> ActiveFault:
        """Requests are handled, and neither they nor later ones of their connection are answered. `which` as in
        `fail_requests`."""
        return self._requests("no answers to", api, node, Effect.HANG, 0, which)

    def throttle(
        self, api: str | ApiKey | None, throttle_ms: int, node: int | None = None, **which: Unpack[RequestConditions]
    ) -> ActiveFault:
        """Requests are answered with a throttle time, and their connection is not read for so long. `which` as in
        `fail_requests`."""
        return self._requests(f"{throttle_ms} ms of throttling for", api, node, Effect.THROTTLE, throttle_ms, which)

    # --- for the cluster ------------------------------------------------------------------------------------------

    def end(self, fault: ActiveFault) -> None:
        """See `Fault.undo`."""
        if self._remove(fault):
            fault.clean_up()
            if fault.starts is not None:
                self._cluster.start_node(fault.starts)
            self._ended(fault)

    def begin(
        self,
        text: str,
        node: int | None,
        undo: Callable[[], None] = lambda: None,
        fault_id: int | None = None,
        *,
        starts: int | None = None,
    ) -> ActiveFault:
        """Something that lasts until `undo` ends it, and `starts` a node."""
        with self._lock:
            number = next(self._numbers) if fault_id is None else fault_id
            where = "" if node is None else f" of node {node}"
            fault = ActiveFault(self, number, text + where, undo, starts)
            self._active.append(fault)
        self._cluster.timeline.add(fault.text)
        return fault

    def links(self, text: str, node: int, faults: Sequence[LinkFault]) -> ActiveFault:
        """Faults of the network inside a node, which end together; for situations."""
        control = self._running_control(node)
        with self._lock:
            fault_id = next(self._numbers)
            added = tuple(replace(each, fault_id=fault_id) for each in faults)
            control.set(replace(control.faults, links=(*control.faults.links, *added)))
        return self.begin(text, node, lambda: control.set(control.faults.without(fault_id)), fault_id)

    def forget_all(self) -> None:
        """The cluster has ended, and with it its faults."""
        self.has_ended = True
        with self._lock:
            self._active.clear()

    def was_hit(self, node: int, fault_id: int) -> None:
        """A node has applied a rule."""
        with self._lock:
            for fault in self._active:
                if fault.fault_id == fault_id:
                    fault.hits_by_node[node] += 1

    def decide(self, fault_id: int, request: Mapping[str, Any]) -> bool:
        """A node asks whether a rule applies to a request."""
        predicate = self._predicates.get(fault_id)
        try:
            return predicate is not None and bool(predicate(request))
        except Exception as error:
            self._cluster.timeline.add("a predicate failed", error=repr(error))
            return False

    def restored(self, node: int) -> None:
        """A node was started anew: apply what its process does not inherit."""
        with self._lock:
            control = self._cluster.control(node)
            rules = tuple(self._left(node, rule) for rule in control.faults.requests)
            control.faults = replace(control.faults, requests=rules)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _remove(self, fault: ActiveFault) -> bool:
        """Whether it was in force."""
        with self._lock:
            if fault not in self._active:
                return False
            self._active.remove(fault)
            return True

    def _ended(self, fault: ActiveFault) -> None:
        self._cluster.timeline.add(f"end of {fault.text}")

    def _resume(self, node: int) -> None:
        with contextlib.suppress(OperatorError):  # it was killed meanwhile
            self._cluster.processes.resume(node)

    def _running_control(self, node: int) -> NodeControl:
        self._cluster.processes.running(node)
        return self._cluster.control(node)

    def _cut_inside(
        self, node: int, peers: Iterable[Peer], direction: Direction, client_id: str | None, who: str
    ) -> ActiveFault:
        faults = [
            LinkFault(0, _peer(peer), client_id, holds_incoming=direction != "out", holds_outgoing=direction != "in")
            for peer in peers
        ]
        return self.links(f"cut ({direction}) from {who}", node, faults)

    def _isolate(self, node: int, peers: tuple[int, ...], direction: Direction) -> None:
        self._cluster.processes.isolate(node, peers=peers, inbound=direction != "out", outbound=direction != "in")

    def _heal(self, node: int, fault_id: int) -> None:
        with self._lock:
            left = [cut for cut in self._kernel_cuts.get(node, []) if cut[0] != fault_id]
            self._kernel_cuts[node] = left
            self._cluster.processes.heal(node)
            for _, peers, direction in left:
                self._isolate(node, peers, direction)

    def _disk(self, text: str, node: int, fault: DiskFault, *, restarts: bool = False) -> ActiveFault:
        control = self._running_control(node)
        with self._lock:
            if control.faults.disk != DiskFault():
                raise OperatorError(
                    f"The disk of node {node} already has a fault", "Undo it first: a disk has one fault at a time."
                )
            control.set(replace(control.faults, disk=fault))

        def undo() -> None:
            control.set(replace(control.faults, disk=DiskFault()))
            if not restarts and not self._cluster.processes.is_running(node):
                self._cluster.revive()

        return self.begin(text, node, undo, starts=node if restarts else None)

    def _requests(
        self,
        text: str,
        api: str | ApiKey | None,
        node: int | None,
        effect: Effect,
        value: float,
        which: Mapping[str, Any],
    ) -> ActiveFault:
        key = None if api is None else api_key_of(api)
        when: Predicate | None = which.get("when")
        nodes = self._cluster.broker_ids if node is None else (node,)
        unknown = set(which) - set(RequestConditions.__annotations__)
        if unknown:
            raise TypeError(f"unknown conditions of a request fault: {', '.join(sorted(unknown))}")
        controls = [self._running_control(each) for each in nodes if node is not None or self._is_up(each)]
        if not controls:
            raise OperatorError("No broker runs", "Start one first.")
        with self._lock:
            fault_id = next(self._numbers)
            rule = RequestFault(
                fault_id,
                effect,
                api=key,
                client_id=which.get("client_id"),
                topic=which.get("topic"),
                group=which.get("group"),
                skip=int(which.get("skip", 0)),
                times=int(which.get("times", 0)),
                asks=when is not None,
                value=value,
            )
            if when is not None:
                self._predicates[fault_id] = when
            for control in controls:
                control.set(replace(control.faults, requests=(*control.faults.requests, rule)))

        def undo() -> None:
            for control in controls:
                control.set(control.faults.without(fault_id))
            self._predicates.pop(fault_id, None)

        name = "all APIs" if key is None else ApiKey(key).name
        return self.begin(f"{text} {name}", node, undo, fault_id)

    def _is_up(self, node: int) -> bool:
        return self._cluster.processes.is_running(node)

    def _left(self, node: int, rule: RequestFault) -> RequestFault:
        """What a new process still has to do for a rule."""
        hits = next((fault.hits_by_node[node] for fault in self._active if fault.fault_id == rule.fault_id), 0)
        if not hits or not rule.times:
            return rule
        left = rule.times - hits
        return replace(rule, skip=0, times=left) if left > 0 else replace(rule, api=-1)


def _peer(peer: Peer) -> str:
    return str(peer)


def _whose(peer: Peer, client_id: str | None) -> str:
    if client_id is not None:
        return f" of client {client_id}"
    return f" with node {peer}" if isinstance(peer, int) else f" with {peer}" if peer else ""


def api_key_of(api: str | ApiKey) -> int:
    """The key of an API. Raises OperatorError if there is none with this name."""
    if isinstance(api, ApiKey):
        return int(api)
    wanted = api.replace("_", "").lower()
    for key in ApiKey:
        if key.name.replace("_", "").lower() == wanted:
            return int(key)
    raise OperatorError(f"{api!r} is no API of Kafka", 'Use its name in the protocol, such as "Produce".')


def error_code_of(error: str | ErrorCode) -> ErrorCode:
    """The code of an error. Raises OperatorError if there is none with this name."""
    try:
        return error if isinstance(error, ErrorCode) else ErrorCode[error.upper()]
    except KeyError:
        raise OperatorError(
            f"{error!r} is no error of Kafka", 'Use its name in the protocol, such as "NOT_LEADER_OR_FOLLOWER".'
        ) from None
