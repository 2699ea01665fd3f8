"""Injects the planned faults of a story, and ends them.

Owns what each kind does to the world, whom it meets at that moment, and the line that tells it. A fault that meets
nothing (no application runs, the node is down already) is left out of the story. `end_all` ends every fault: then
nodes and applications that are down start again, and nothing new happens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from fenceline.client.admin.async_admin import AsyncAdmin, NewTopic
from fenceline.errors import FencelineError
from fenceline.testing.applications.application import SimulatedApplication
from fenceline.testing.applications.cluster import NODES, OFFSETS_TOPIC, SimulatedCluster
from fenceline.testing.applications.fault_plan import FaultKind, PlannedFault
from fenceline.testing.applications.process_surroundings import running_with
from fenceline.testing.applications.store import SimulatedStore
from fenceline.testing.applications.timeline import StoryTimeline
from fenceline.testing.applications.watched_sockets import AnswerAim
from fenceline.testing.simulation.brokers_node import DATA_PORT, QUORUM_PORT
from fenceline.testing.simulation.world import Process
from fenceline.wire.apis import ApiKey

_SUPERVISED_S: Final = 0.3
"""Until a node that ended by itself is started again."""
_SLOW: Final = 100.0
_ALONE_WITHIN_S: Final = 4.0
_LOOKS_EVERY_S: Final = 0.1
_JUMPS_MS: Final = (-3_600_000, -2_000, 2_000, 3_600_000)
_AIMED: Final = {
    ApiKey.OFFSET_COMMIT: 4.0,
    ApiKey.PRODUCE: 4.0,
    ApiKey.FETCH: 1.0,
    ApiKey.JOIN_GROUP: 1.0,
    ApiKey.SYNC_GROUP: 1.0,
    ApiKey.HEARTBEAT: 0.5,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0.5,
}
_AIMED_IN_TRANSACTIONS: Final = {
    ApiKey.ADD_PARTITIONS_TO_TXN: 1.0,
    ApiKey.TXN_OFFSET_COMMIT: 2.0,
    ApiKey.END_TXN: 3.0,
    ApiKey.INIT_PRODUCER_ID: 1.0,
}


class FaultInjection:
    """See the module. The lists of applications and stores grow as the story creates them."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        timeline: StoryTimeline,
        applications: list[SimulatedApplication],
        stores: list[SimulatedStore],
    ) -> None:
        self.injected: list[int] = []
        """Numbers of the faults that met something."""
        self.is_over = False
        self._cluster = cluster
        self._world = cluster.world
        self._timeline = timeline
        self._applications = applications
        self._stores = stores
        self._ends: dict[int, Callable[[], None]] = {}
        """By number, how a fault that lasts ends."""
        self._down_s: dict[int, float] = {}
        """By node, how long it stays down when it ends next."""
        self._aims = {**_AIMED, **(_AIMED_IN_TRANSACTIONS if cluster.setup.transactions else {})}
        self._world.on_end.append(self._node_ended)
        self._kinds: Final[Mapping[FaultKind, Callable[[PlannedFault], str | None]]] = {
            FaultKind.APPLICATION_KILLED: self._kill_application,
            FaultKind.KILLED_AT_ANSWER: self._kill_at_answer,
            FaultKind.APPLICATION_STOPPED: self._stop_application,
            FaultKind.APPLICATION_PAUSED: self._pause_application,
            FaultKind.APPLICATION_CUT_OFF: self._cut_off_application,
            FaultKind.APPLICATION_RESET: self._reset_application,
            FaultKind.APPLICATION_CLOCK: self._set_application_clock,
            FaultKind.ANSWER_LOST: self._lose_answer,
            FaultKind.STORE_UNREACHABLE: self._store_unreachable,
            FaultKind.STORE_ANSWER_LOST: self._store_answer_lost,
            FaultKind.BROKER_KILLED: self._kill_broker,
            FaultKind.BROKER_POWER_LOST: self._power_off_broker,
            FaultKind.BROKER_STOPPED: self._stop_broker,
            FaultKind.BROKER_PAUSED: self._pause_broker,
            FaultKind.BROKER_CUT_OFF: self._cut_off_broker,
            FaultKind.BROKER_RESET: self._reset_broker,
            FaultKind.BROKER_LATE: self._late_broker,
            FaultKind.BROKER_DISK_SLOW: self._slow_disk,
            FaultKind.BROKER_DISK_FULL: self._full_disk,
            FaultKind.BROKER_CLOCK: self._set_broker_clock,
            FaultKind.UNCLEAN_ELECTION: self._elect_uncleanly,
            FaultKind.COMMITS_LOST: self._lose_commits,
            FaultKind.TOPIC_RECREATED: self._recreate_topic,
        }

    def schedule(self, faults: Collection[PlannedFault]) -> None:
        """Inject each at its time from now on."""
        for fault in faults:
            self._world.loop.call_later(fault.at_s, self._inject, fault)

    def _inject(self, fault: PlannedFault) -> None:
        if self.is_over:
            return
        place = len(self._timeline.lines)
        told = self._kinds[fault.kind](fault)
        if told is not None:
            self._tell(fault, told, place)

    def _tell(self, fault: PlannedFault, what: str, place: int | None = None) -> None:
        """The line of a fault stands before what it caused."""
        if fault.number not in self.injected:
            self.injected.append(fault.number)
        self._timeline.add(f"fault {fault.number}: {what}")
        if place is not None:
            lines = self._timeline.lines
            lines.insert(place, lines.pop())

    def end_all(self) -> None:
        """No fault from now on."""
        self.is_over = True
        for application in self._applications:
            application.sockets.aims.clear()
        for end in list(self._ends.values()):
            end()
        for process in self._world.processes.values():
            process.resume()
        for store in self._stores:
            store.answers_to_lose = 0
        self._world.network.heal()
        conditions = self._world.network.conditions
        conditions.slow_chance = 0.0

    def _lasts(self, fault: PlannedFault, end: Callable[[], None], lasts_s: float | None = None) -> str:
        """`end` runs once, later or with all; returns the words for how long."""
        lasts_s = fault.lasts_s if lasts_s is None else lasts_s

        def over() -> None:
            if self._ends.pop(fault.number, None) is not None:
                end()

        self._ends[fault.number] = over
        self._world.loop.call_later(lasts_s, over)
        return f"for {lasts_s:.2f} s"

    # -- applications --------------------------------------------------------------------------------------------------

    def _application(self, fault: PlannedFault) -> SimulatedApplication | None:
        running = [each for each in self._applications if each.is_running]
        return running[int(fault.pick * len(running))] if running else None

    def _kill_application(self, fault: PlannedFault) -> str | None:
        application = self._application(fault)
        if application is None:
            return None
        application.restarts_after_s = fault.lasts_s
        application.kill()
        return f"{application.name} is killed, and starts again after {fault.lasts_s:.2f} s"

    def _kill_at_answer(self, fault: PlannedFault) -> str | None:
        """The answer is on its way when the process ends: a moment before or after it arrives."""
        application = self._application(fault)
        if application is None:
            return None
        api_key, life = self._aimed_api(fault), application.life
        after_s = fault.detail**2 * 0.02

        def kill() -> None:
            if not self.is_over and application.life == life and application.is_running:
                place = len(self._timeline.lines)
                application.restarts_after_s = fault.lasts_s
                application.kill()
                self._tell(
                    fault,
                    f"{application.name} is killed {after_s * 1000:.1f} ms after the answer to its"
                    f" {_name(api_key)} request was sent, and starts again after {fault.lasts_s:.2f} s",
                    place,
                )

        def strike() -> bool:
            self._world.loop.call_later(after_s, kill)
            return True

        application.sockets.aims.append(AnswerAim(api_key, strike))
        return None

    def _lose_answer(self, fault: PlannedFault) -> str | None:
        application = self._application(fault)
        if application is None:
            return None
        api_key = self._aimed_api(fault)

        def strike() -> bool:
            if self.is_over:
                return True
            self._tell(fault, f"the answer to the {_name(api_key)} request of {application.name} is lost")
            return False

        application.sockets.aims.append(AnswerAim(api_key, strike))
        return None

    def _aimed_api(self, fault: PlannedFault) -> ApiKey:
        left = fault.choice * sum(self._aims.values())
        for api_key, weight in self._aims.items():
            left -= weight
            if left < 0:
                return api_key
        return ApiKey.PRODUCE

    def _stop_application(self, fault: PlannedFault) -> str | None:
        application = self._application(fault)
        if application is None:
            return None
        application.restarts_after_s = fault.lasts_s
        application.stop()
        return f"{application.name} is asked to stop, and starts again {fault.lasts_s:.2f} s after it has"

    def _pause_application(self, fault: PlannedFault) -> str | None:
        application = self._application(fault)
        if application is None:
            return None
        application.pause()
        return f"{application.name} is paused {self._lasts(fault, application.resume, 2 * fault.lasts_s)}"

    def _cut_off_application(self, fault: PlannedFault) -> str | None:
        """From all brokers or from one, in both directions or in one."""
        application = self._application(fault)
        if application is None:
            return None
        nodes = NODES if fault.choice < 0.5 else (NODES[int(fault.detail * len(NODES))],)
        whom = "all brokers" if len(nodes) > 1 else f"n{nodes[0]}"
        me = application.client_id
        links = [link for node in nodes for link in ((me, node), (node, me))]
        if fault.detail > 0.7:
            links, whom = [link for link in links if link[1] == me], f"what {whom} sends"
        return f"{application.name} is cut off from {whom} {self._cut(fault, links)}"

    def _cut(self, fault: PlannedFault, links: list[tuple[int, int]]) -> str:
        network = self._world.network
        for link in links:
            network.cut(*link)

        def heal() -> None:
            for link in links:
                network.heal(*link)

        return self._lasts(fault, heal)

    def _reset_application(self, fault: PlannedFault) -> str | None:
        application = self._application(fault)
        if application is None:
            return None
        self._world.network.drop_connections(application.client_id)
        return f"all connections of {application.name} are reset"

    def _set_application_clock(self, fault: PlannedFault) -> str | None:
        application = self._application(fault)
        if application is None:
            return None
        by_ms = _JUMPS_MS[int(fault.choice * len(_JUMPS_MS))]
        application.jump_clock(by_ms)
        return f"the wall clock of {application.name} jumps by {by_ms / 1000:+.0f} s"

    def _store(self, fault: PlannedFault) -> SimulatedStore | None:
        return self._stores[int(fault.pick * len(self._stores))] if self._stores else None

    def _store_unreachable(self, fault: PlannedFault) -> str | None:
        store = self._store(fault)
        if store is None or store.is_unreachable:
            return None
        store.is_unreachable = True
        lasts = self._lasts(fault, partial(setattr, store, "is_unreachable", False))
        return f"the store {store.name} does not answer {lasts}"

    def _store_answer_lost(self, fault: PlannedFault) -> str | None:
        store = self._store(fault)
        if store is None:
            return None
        store.answers_to_lose += 1
        return f"the next answer of the store {store.name} is lost"

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _broker(self, fault: PlannedFault) -> tuple[Process, str] | None:
        """A running node, and how to name it: the leader of a partition, a coordinator, the controller, or any."""
        node_id, role = NODES[int(fault.pick * len(NODES))], ""
        image = self._cluster.image()
        if image is not None and fault.choice < 0.4 and self._cluster.setup.topics:
            topic = self._cluster.setup.topics[int(fault.pick * len(self._cluster.setup.topics))]
            found = image.topics_by_name.get(topic.name)
            if found is not None and found.partitions:
                index = int(fault.detail * len(found.partitions))
                node_id, role = found.partitions[index].leader, f" (the leader of {topic.name}-{index})"
        elif image is not None and fault.choice < 0.6:
            names = (OFFSETS_TOPIC, "__transaction_state")
            name = names[int(fault.pick * len(names))] if self._cluster.setup.transactions else names[0]
            found = image.topics_by_name.get(name)
            if found is not None:
                kind = "group" if name == names[0] else "transaction"
                node_id, role = found.partitions[0].leader, f" (the {kind} coordinator)"
        elif fault.choice < 0.75:
            node_id, role = self._cluster.active_controller(), " (the active controller)"
        process = self._world.processes.get(node_id)
        if process is None or not process.is_up or process.is_paused:
            return None
        return process, f"{process.name}{role}"

    def _node_ended(self, process: Process) -> None:
        after_s = self._down_s.pop(process.node_id, _SUPERVISED_S)

        def start() -> None:
            if not process.is_up:
                self._timeline.add(f"{process.name} starts again")
                process.start()

        self._world.loop.call_later(after_s, start)

    def _kill_broker(self, fault: PlannedFault) -> str | None:
        return self._end_broker(fault, power_lost=False)

    def _power_off_broker(self, fault: PlannedFault) -> str | None:
        """Acknowledged records are on two machines at least, but perhaps not flushed: while another node is not in
        sync, the process is killed instead."""
        return self._end_broker(fault, power_lost=self._cluster.is_well())

    def _end_broker(self, fault: PlannedFault, *, power_lost: bool) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        self._down_s[process.node_id] = fault.lasts_s
        process.kill(power_lost=power_lost)
        what = "loses power, with what it had not flushed," if power_lost else "is killed,"
        return f"{name} {what} and starts again after {fault.lasts_s:.2f} s"

    def _stop_broker(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        self._down_s[process.node_id] = fault.lasts_s
        process.request_stop()
        return f"{name} is asked to stop, and starts again {fault.lasts_s:.2f} s after it has"

    def _pause_broker(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        process.pause()
        return f"{name} is paused {self._lasts(fault, process.resume, 1.5 * fault.lasts_s)}"

    def _cut_off_broker(self, fault: PlannedFault) -> str | None:
        """From the other nodes; applications still reach it."""
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        me = process.node_id
        links = [link for node in NODES if node != me for link in ((me, node), (node, me))]
        way = "the other brokers"
        if fault.detail > 0.6:
            links, way = [link for link in links if link[1] == me], "what the other brokers send"
        return f"{name} is cut off from {way} {self._cut(fault, links)}"

    def _reset_broker(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        self._world.network.drop_connections(process.node_id)
        return f"all connections of {name} are reset"

    def _late_broker(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        by_s = 0.05 + fault.detail
        links = [(process.node_id, node, port) for node in NODES for port in (DATA_PORT, QUORUM_PORT)]
        return f"what {name} sends to other brokers is {by_s:.2f} s late {self._lag(fault, links, by_s)}"

    def _lag(
        self, fault: PlannedFault, links: list[tuple[int, int, int]], by_s: float, lasts_s: float | None = None
    ) -> str:
        network = self._world.network
        for link in links:
            network.lag(*link, by_s)

        def end() -> None:
            for link in links:
                network.lag(*link, 0.0)

        return self._lasts(fault, end, lasts_s)

    def _slow_disk(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        process.slowness = _SLOW
        lasts = self._lasts(fault, partial(setattr, process, "slowness", 1.0))
        return f"the disk of {name} is slow {lasts}"

    def _full_disk(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        process.excuse("full disk")
        process.disk.capacity_bytes = process.disk.used_bytes + int(fault.detail * 2000)
        lasts = self._lasts(fault, partial(setattr, process.disk, "capacity_bytes", None))
        return f"the disk of {name} is full {lasts}"

    def _set_broker_clock(self, fault: PlannedFault) -> str | None:
        found = self._broker(fault)
        if found is None:
            return None
        process, name = found
        by_ms = _JUMPS_MS[int(fault.detail * len(_JUMPS_MS))]
        process.clock.jump(by_ms)
        return f"the wall clock of {name} jumps by {by_ms / 1000:+.0f} s"

    # -- those that lose acknowledged records --------------------------------------------------------------------------

    def _elect_uncleanly(self, fault: PlannedFault) -> str | None:
        """The leader of a partition stays alone in sync, acknowledges, and is killed: a replica that lacks what was
        acknowledged must lead."""
        topics = self._cluster.setup.topics
        return self._strand(fault, topics[int(fault.pick * len(topics))].name) if topics else None

    def _lose_commits(self, fault: PlannedFault) -> str | None:
        return self._strand(fault, OFFSETS_TOPIC)

    def _strand(self, fault: PlannedFault, topic: str) -> str | None:
        image = self._cluster.image()
        found = image.topics_by_name.get(topic) if image is not None else None
        if found is None or not self._cluster.is_well():
            return None
        index = int(fault.choice * len(found.partitions))
        leader = found.partitions[index].leader
        others = [node for node in NODES if node != leader]
        links = [(leader, node, DATA_PORT) for node in others]
        self._lag(fault, links, _ALONE_WITHIN_S, _ALONE_WITHIN_S)
        gives_up_s = self._world.scheduler.now_s + _ALONE_WITHIN_S

        def kill() -> None:
            process = self._world.processes[leader]
            if self.is_over or not process.is_up:
                return
            place = len(self._timeline.lines)
            self._down_s[leader] = 1.0 + fault.lasts_s
            process.kill(power_lost=False)
            self._tell(
                fault,
                f"n{leader}, alone in sync for {topic}-{index}, is killed: what it acknowledged alone is lost."
                f" It starts again after {1.0 + fault.lasts_s:.2f} s",
                place,
            )

        def look() -> None:
            now = self._cluster.image()
            partition = now.partition(topic, index) if now is not None else None
            if self.is_over or partition is None or partition.leader != leader:
                return
            if partition.isr == (leader,):
                self._world.loop.call_later(0.1 + fault.detail, kill)
            elif self._world.scheduler.now_s < gives_up_s:
                self._world.loop.call_later(_LOOKS_EVERY_S, look)

        look()
        return f"the replicas of {topic}-{index} fall behind n{leader}, its leader"

    def _recreate_topic(self, fault: PlannedFault) -> str | None:
        topics = self._cluster.setup.topics
        if not topics:
            return None
        topic = topics[int(fault.pick * len(topics))]

        async def recreate() -> None:
            try:
                async with AsyncAdmin(self._cluster.bootstrap_servers) as admin:
                    await admin.delete_topics([topic.name])
                    self._timeline.add(f"{topic.name} is deleted")
                    await admin.create_topics(
                        [NewTopic(topic.name, topic.partitions, len(NODES), configs=topic.configs)]
                    )
                    self._timeline.add(f"{topic.name} is created again, with another id")
            except FencelineError as error:
                self._timeline.add(f"recreating {topic.name} failed: {error}")

        world = self._world
        rng = world.rng_of(world.seed, f"fault {fault.number}")
        work = running_with(world.loop, lambda: world.scheduler.now_s, rng, recreate())
        world.loop.create_task(work)
        return f"{topic.name} is deleted and created again"


def _name(api_key: ApiKey) -> str:
    return "".join(part.capitalize() for part in api_key.name.split("_"))
