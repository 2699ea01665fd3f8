"""The options of one simulated run: drawn from its seed, printed with every failure, overridden on the command line.

Owns names, ranges and the text form `key=value`. Periods are means in virtual seconds; 0 disables a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Options:
    """See the module. Chances are from 0 to 1."""

    nodes: int = 1
    safety_s: float = 10.0
    """Length of the safety phase, in which faults are injected."""
    calm_s: float = 0.0
    """Time before the first fault, in which a cluster creates its topics."""
    liveness_s: float = 120.0
    """Within this time after the last fault every client must make progress."""
    shuffle: bool = True
    """Whether timers of the same instant run in random order."""
    # network
    max_delay_ms: float = 2.0
    slow_chance: float = 0.0
    slow_delay_s: float = 0.2
    """The longest delay of a slow frame. What is sent after it on the same connection waits."""
    loss_chance: float = 0.0
    duplicate_chance: float = 0.0
    partition_s: float = 0.0
    one_way_chance: float = 0.5
    """Chance that a partition cuts one direction only."""
    drop_s: float = 0.0
    """Between resets of a node's connections."""
    # processes
    crash_s: float = 0.0
    """Between crashes of any node, at any moment."""
    power_chance: float = 0.7
    """Chance that a crash is a power failure instead of a killed process."""
    crash_calls: int = 0
    """A restarted process crashes within this many calls that change its disk; drawn for each start, half of them do
    not crash."""
    spoil_s: float = 0.0
    """Between kills of a node that finds a changed byte in a log when it restarts."""
    down_s: float = 0.5
    stop_s: float = 0.0
    """Between clean stops."""
    pause_s: float = 0.0
    """Between SIGSTOPs."""
    paused_s: float = 1.0
    # disks
    max_job_ms: float = 5.0
    """Maximum delay until a job of an executor begins."""
    slow_disk_s: float = 0.0
    """Between periods in which jobs take a hundred times as long."""
    full_s: float = 0.0
    """Between periods with a full disk."""
    fail_s: float = 0.0
    """Between periods in which a call fails with EIO."""
    flip_s: float = 0.0
    """Between periods in which reads return wrong bits."""
    spell_s: float = 1.0
    """Length of such a period."""
    # clocks
    skew_ms: int = 0
    """Maximum error of wall clocks."""
    drift: float = 0.0
    """Maximum rate error of clocks, as a fraction."""
    jump_s: float = 0.0
    """Between jumps of a wall clock."""
    # the subject
    observers: int = 0
    """Number of nodes that are observers; the others are the first voters."""
    admin_s: float = 0.0
    """Between changes of the voter set."""
    clients: int = 2
    think_ms: float = 20.0
    load_s: float = 1.0
    """How long all clients send requests before they pause."""
    quiet_s: float = 0.0
    """How long all clients pause at a time; 0: each client has its own pace."""
    snapshot_bytes: int = 20 << 20
    snapshot_interval_ms: int = 3_600_000
    retention_bytes: int = 100 << 20
    segment_ms: int = 604_800_000
    idle_ms: int = 0
    # a cluster with data
    forget_metadata: bool = False
    """Whether the metadata log is deleted below each snapshot, so that nodes that were away download one."""
    silence_ms: int = -1
    """By how much answers of leaders may be overdue (`fenceline.silence.timeout.ms`)."""
    syncs_whole_disks: bool = False
    """Whether every flush does what one of many segments does (`log.core.flush`)."""
    session_ms: int = 0
    """Session timeout of brokers; 0: as short as the other times of the scenario."""
    controllers: int = 3
    """Number of controllers: the first nodes."""
    topics: int = 1
    partitions: int = 1
    """Partitions of each topic."""
    unclean: bool = False
    """Whether unclean elections are requested, and enabled for some topics."""
    elr: bool = False
    """Whether eligible leader replicas are maintained (KIP-966)."""
    deletes: bool = False
    """Whether topics are deleted and recreated."""
    swap_s: float = 0.0
    """Between leader changes by the administrator."""
    churn_s: float = 0.0
    """Between other changes by the administrator."""
    profile: str = "mixed"
    """The subject of the seed (`profiles`)."""
    replicas: int = 0
    """Replicas of each partition; 0: drawn for each topic."""
    min_isr: int = 0
    """min.insync.replicas of each topic; 0: drawn for each topic."""
    lag_s: float = 0.0
    """Between periods in which some machines receive messages of others late."""
    strand_s: float = 0.0
    """Between faults in which one node is down, and another that continues alone is cut off."""
    operate_s: float = 0.0
    """Between requests of the operator, who uses every API (`brokers_operator`)."""
    operations: str = ""
    """Operations of the operator, separated by commas; empty: all."""
    compaction: bool = False
    """Whether some topics are compacted."""
    retention: bool = False
    """Whether some topics delete old segments."""
    segment_bytes: int = 0
    """Segment size of the logs; 0: Kafka's default."""
    groups: int = 0
    """Number of groups that commit offsets."""
    log_dirs: int = 1
    """Data directories of each node."""
    lose_dir_s: float = 0.0
    """Between losses of one of several data directories."""
    checkpoint_ms: int = 2000
    """Between checkpoints of offsets; a value longer than the run means never."""
    flush_ms: int = 1000
    """Between checks for segments to flush."""
    tidy_ms: int = 2000
    """Between checks for segments to delete or compact."""
    aim: str = ""
    """A component and its state: faults are injected into a node when it is in this state (`aim`)."""
    aim_faults: str = ""
    """Names of these faults, separated by commas."""
    aim_s: float = 0.7
    """Between two of these faults."""
    return_s: float = 0.0
    """Between power failures of one machine that is back at once, while messages about it are late."""
    transaction_version: int = 0
    """The level of the feature, if there are transactional clients."""
    last_epoch: int = 0
    """The last epoch of a producer id, after which it gets another one; 0: Kafka's."""
    changes_level: bool = False
    """Whether the administrator changes that level."""
    coordinate_s: float = 0.0
    """Between operations of the administrator that concern coordinators."""
    flush_each: bool = False
    """Whether all topics have flush.messages=1. Drawn for no seed: only set on the command line."""

    def __str__(self) -> str:
        """Only the options that differ from the defaults."""
        changed = (f"{each.name}={getattr(self, each.name)}" for each in fields(self) if self._differs(each.name))
        return " ".join(changed)

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(_DEFAULTS, name))

    def with_text(self, overrides: Mapping[str, str]) -> Options:
        """With values from the command line. Raises ValueError for an unknown option or a value of the wrong type."""
        changed: dict[str, int | float | bool] = {}
        for name, text in overrides.items():
            if name not in Options.__slots__:
                raise ValueError(f"unknown option {name!r}; options are {', '.join(Options.__slots__)}")
            kind = type(getattr(self, name))
            changed[name] = text.lower() in ("1", "true", "yes") if kind is bool else kind(text)
        return replace(self, **changed)  # type: ignore[arg-type]


_DEFAULTS = Options()


def sometimes(rng: Random, chance: float, low: float, high: float) -> float:
    """A value between `low` and `high`, or 0; three significant digits, to keep the output short."""
    return float(f"{rng.uniform(low, high):.3g}") if rng.random() < chance else 0.0


def draw_faults(rng: Random, base: Options) -> Options:
    """`base` with a selection of faults: every seed has its own mix, so that frequent faults do not hide rare ones."""
    return replace(
        base,
        shuffle=rng.random() < 0.8,
        max_delay_ms=rng.choice((0.5, 2.0, 20.0)),
        slow_chance=sometimes(rng, 0.3, 0.01, 0.1),
        loss_chance=sometimes(rng, 0.4, 0.01, 0.15),
        duplicate_chance=sometimes(rng, 0.4, 0.01, 0.2),
        partition_s=sometimes(rng, 0.5, 2, 10) if base.nodes > 1 else 0.0,
        drop_s=sometimes(rng, 0.3, 1, 10),
        crash_s=sometimes(rng, 0.6, 1, 15),
        power_chance=rng.choice((0.0, 0.5, 1.0)),
        crash_calls=rng.choice((0, 0, 10, 50, 200)),
        down_s=rng.choice((0.05, 0.5, 3.0)),
        stop_s=sometimes(rng, 0.3, 2, 10),
        pause_s=sometimes(rng, 0.3, 2, 10),
        max_job_ms=rng.choice((0.1, 5.0, 50.0)),
        slow_disk_s=sometimes(rng, 0.2, 2, 10),
        full_s=sometimes(rng, 0.3, 2, 10),
        fail_s=sometimes(rng, 0.2, 4, 15),
        flip_s=sometimes(rng, 0.15, 3, 10),
        skew_ms=rng.choice((0, 0, 1000, 86_400_000)),
        drift=rng.choice((0.0, 0.0, 0.01)),
        jump_s=sometimes(rng, 0.2, 1, 10),
        clients=rng.randint(1, 4),
        think_ms=rng.choice((5.0, 50.0, 200.0)),
        snapshot_bytes=rng.choice((300, 2_000, 10_000, 20 << 20)),
        snapshot_interval_ms=rng.choice((200, 5_000, 3_600_000)),
        retention_bytes=rng.choice((1, 5_000, 100 << 20)),
        segment_ms=rng.choice((100, 2_000, 604_800_000)),
        idle_ms=rng.choice((0, 0, 100, 500)),
    )
