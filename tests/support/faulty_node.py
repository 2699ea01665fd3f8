"""A node whose disk and clock fail when a test says so: by files in a control directory, looked at on every call.

`full`: nothing more can be written (ENOSPC), half of the last write still fits. `broken-sync`: fsync fails (EIO).
`read-only`: nothing can be opened for writing, renamed or removed (EROFS). `clock-ms`: how far the wall clock
is off.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from fenceline.testing.node import EmbeddedNode


class FaultyNode(EmbeddedNode):
    """As EmbeddedNode, with faults that are switched on and off while it runs."""

    @property
    def control(self) -> Path:
        return self.root / "control"

    def command(self) -> list[str]:
        self.control.mkdir(parents=True, exist_ok=True)
        plain = super().command()
        return [plain[0], __file__, str(self.control), *plain[plain.index("start") :]]

    def set(self, fault: str, value: str = "") -> None:
        (self.control / f"{fault}.new").write_text(value)
        (self.control / f"{fault}.new").rename(self.control / fault)

    def heal(self, fault: str) -> None:
        (self.control / fault).unlink()


def _run(control: str, arguments: list[str]) -> int:
    from fenceline.cli.start import main
    from fenceline.log.core.disk import OsDisk
    from fenceline.node.clock import SystemClock

    def is_on(fault: str) -> bool:
        return os.path.exists(f"{control}/{fault}")

    def refuse_when(fault: str, number: int) -> None:
        if is_on(fault):
            raise OSError(number, os.strerror(number))

    class FaultyDisk(OsDisk):
        def write(self, fd: int, content: object) -> int:  # type: ignore[override]
            if is_on("full"):
                if is_on("full-partly"):
                    os.unlink(f"{control}/full-partly")
                    return os.write(fd, memoryview(content)[: len(memoryview(content)) // 2])  # type: ignore[arg-type]
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.write(fd, content)  # type: ignore[arg-type]

        def open_append(self, path: str) -> int:
            refuse_when("read-only", errno.EROFS)
            if not os.path.exists(path):
                refuse_when("full", errno.ENOSPC)
            return super().open_append(path)

        def fsync(self, fd: int) -> None:  # type: ignore[override]
            refuse_when("broken-sync", errno.EIO)
            os.fsync(fd)

        def rename(self, source: str, target: str) -> None:  # type: ignore[override]
            refuse_when("read-only", errno.EROFS)
            os.rename(source, target)

        def unlink(self, path: str) -> None:  # type: ignore[override]
            refuse_when("read-only", errno.EROFS)
            os.unlink(path)

        def mkdir(self, path: str) -> None:
            refuse_when("read-only", errno.EROFS)
            refuse_when("full", errno.ENOSPC)
            super().mkdir(path)

    def now_ms(self: SystemClock) -> int:
        import time

        try:
            off_ms = int(Path(control, "clock-ms").read_text())
        except FileNotFoundError:
            off_ms = 0
        return time.time_ns() // 1_000_000 + off_ms

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    import fenceline.node.broker as broker

    broker.OsDisk = FaultyDisk  # type: ignore[misc]
    return main(arguments)


if __name__ == "__main__":
    sys.path = [each for each in sys.path if Path(each) != Path(__file__).parent]
    sys.exit(_run(sys.argv[1], sys.argv[3:]))
