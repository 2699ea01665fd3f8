"""The options of one simulated story: drawn from its seed, printed with every failure, overridden by hand.

Owns names, ranges and the text form `key=value`. Periods are means in virtual seconds; 0 switches a fault off.
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
    """How long faults strike."""
    calm_s: float = 0.0
    """From the beginning, until faults strike: a cluster has its topics by then."""
    liveness_s: float = 120.0
    """Within this, after the last fault, every client must make progress."""
    shuffle: bool = True
    """Whether timers of the same instant come in any order."""
    # network
    max_delay_ms: float = 2.0
    slow_chance: float = 0.0
    loss_chance: float = 0.0
    duplicate_chance: float = 0.0
    partition_s: float = 0.0
    one_way_chance: float = 0.5
    """Of a partition that cuts one direction only."""
    drop_s: float = 0.0
    """Between resets of a node's connections."""
    # processes
    crash_s: float = 0.0
    """Between crashes of any node, at any moment."""
    power_chance: float = 0.7
    """Of a crash that is a loss of power, not a kill of the process."""
    crash_calls: int = 0
    """A new life loses power within this many calls that change its disk; drawn anew for each life, half are spared."""
    spoil_s: float = 0.0
    """Between kills of a node that finds a byte of a log changed when it starts again."""
    down_s: float = 0.5
    stop_s: float = 0.0
    """Between clean stops."""
    pause_s: float = 0.0
    """Between SIGSTOPs."""
    paused_s: float = 1.0
    # disks
    max_job_ms: float = 5.0
    """How long a job of an executor may take to begin."""
    slow_disk_s: float = 0.0
    """Between spells in which jobs take a hundred times as long."""
    full_s: float = 0.0
    """Between spells of a full disk."""
    fail_s: float = 0.0
    """Between spells in which a call fails with EIO."""
    flip_s: float = 0.0
    """Between spells in which reads give wrong bits."""
    spell_s: float = 1.0
    """How long such a spell lasts."""
    # clocks
    skew_ms: int = 0
    """Wall clocks are wrong by up to this much."""
    drift: float = 0.0
    """Clocks run fast or slow by up to this share."""
    jump_s: float = 0.0
    """Between jumps of a wall clock."""
    # the subject
    observers: int = 0
    """Of the nodes; the others are the first voters."""
    admin_s: float = 0.0
    """Between changes of the voter set."""
    clients: int = 2
    think_ms: float = 20.0
    load_s: float = 1.0
    """How long all clients ask at a time, where they rest in between."""
    quiet_s: float = 0.0
    """How long all clients rest at a time; 0: each has a pace of its own."""
    snapshot_bytes: int = 20 << 20
    snapshot_interval_ms: int = 3_600_000
    retention_bytes: int = 100 << 20
    segment_ms: int = 604_800_000
    idle_ms: int = 0
    # a cluster with data
    forget_metadata: bool = False
    """Whether the metadata log goes below each snapshot, so that nodes that were away download one."""
    controllers: int = 3
    """Of the nodes; the first ones."""
    topics: int = 1
    partitions: int = 1
    """Of each topic."""
    unclean: bool = False
    """Whether unclean elections are asked for, and allowed to some topics."""
    elr: bool = False
    """Whether eligible leader replicas are kept."""
    deletes: bool = False
    """Whether topics are deleted and created anew."""
    swap_s: float = 0.0
    """Between changes of the leader that the administrator makes."""
    churn_s: float = 0.0
    """Between changes that the administrator makes."""
    profile: str = "mixed"
    """What the seed is about (`profiles`)."""
    replicas: int = 0
    """Of each partition; 0: each topic draws its own."""
    min_isr: int = 0
    """min.insync.replicas of each topic; 0: each draws its own."""
    lag_s: float = 0.0
    """Between spells in which some machines hear others late."""
    strand_s: float = 0.0
    """Between times when one node is down, and another that goes on without it is cut off then."""
    operate_s: float = 0.0
    """Between requests of the operator, who uses every API (`brokers_operator`)."""
    operations: str = ""
    """Names of the operator's operations, with commas between them; empty: all."""
    compaction: bool = False
    """Whether some topics are compacted."""
    retention: bool = False
    """Whether some topics delete old segments."""
    segment_bytes: int = 0
    """Of the logs; 0: as large as Kafka's."""
    groups: int = 0
    """Groups that commit offsets."""
    log_dirs: int = 1
    """Data directories of each node."""
    lose_dir_s: float = 0.0
    """Between losses of one of several data directories."""
    checkpoint_ms: int = 2000
    """Between checkpoints of offsets; never where it is longer than the story."""
    flush_ms: int = 1000
    """Between looks for segments that are to be flushed."""
    tidy_ms: int = 2000
    """Between looks for segments that are to be deleted or compacted."""
    aim: str = ""
    """A room and its state: faults strike a node when it is in it (`aim`)."""
    aim_faults: str = ""
    """Names of the faults that do, with commas between them."""
    aim_s: float = 0.7
    """Between two of them."""
    return_s: float = 0.0
    """Between returns of one machine that lost power for a moment, while what is said of it is late."""
    flush_each: bool = False
    """Whether all topics have flush.messages=1. Drawn for no seed: by hand only."""

    def __str__(self) -> str:
        """Only what differs from the defaults."""
        told = (f"{each.name}={getattr(self, each.name)}" for each in fields(self) if self._differs(each.name))
        return " ".join(told)

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(_DEFAULTS, name))

    def with_text(self, overrides: Mapping[str, str]) -> Options:
        """With values from the command line. Raises ValueError for an unknown name or a value of another kind."""
        changed: dict[str, int | float | bool] = {}
        for name, text in overrides.items():
            if name not in Options.__slots__:
                raise ValueError(f"there is no option {name!r}; known are {', '.join(Options.__slots__)}")
            kind = type(getattr(self, name))
            changed[name] = text.lower() in ("1", "true", "yes") if kind is bool else kind(text)
        return replace(self, **changed)  # type: ignore[arg-type]


_DEFAULTS = Options()


def sometimes(rng: Random, chance: float, low: float, high: float) -> float:
    """A value between `low` and `high`, or 0: three digits, so that it prints short."""
    return float(f"{rng.uniform(low, high):.3g}") if rng.random() < chance else 0.0


def draw_faults(rng: Random, base: Options) -> Options:
    """`base` with a selection of faults: every seed has its own mix, so that rare ones are not drowned by common."""
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
