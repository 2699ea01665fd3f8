"""The platforms that get wheels, and how the compiler and setuptools name each of them."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """`zig` is the compiler's name of the platform, `tag` the platform tag that a wheel for it must get."""

    libc: str
    machine: str
    zig: str
    tag: str

    @property
    def name(self) -> str:
        return f"{self.libc} {self.machine}"

    @property
    def is_here(self) -> bool:
        """Whether its modules can be imported on this machine."""
        here = "glibc" if platform.libc_ver()[0] == "glibc" else "musl"
        return (self.libc, self.machine) == (here, os.uname().machine)

    @property
    def index_platform(self) -> str:
        """The platform as uv names it."""
        return f"{self.machine}-{'manylinux_2_17' if self.libc == 'glibc' else 'unknown-linux-musl'}"

    @property
    def build_platform(self) -> str:
        """What setuptools takes for the platform of the build."""
        return f"linux-{self.machine}"

    def module_suffix(self, release: str) -> str:
        """Of extension modules of that Python, as its import system looks for them."""
        libc = "gnu" if self.libc == "glibc" else "musl"
        return f".cpython-{release.replace('.', '')}-{self.machine}-linux-{libc}.so"

    @property
    def musl_name(self) -> str:
        """The name of musl's library on its systems, which the linker does not know."""
        return f"libc.musl-{self.machine}.so.1"


TARGETS: Final = (
    Target("glibc", "x86_64", "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64"),
    Target("glibc", "aarch64", "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64"),
    Target("musl", "x86_64", "x86_64-linux-musl", "musllinux_1_2_x86_64"),
    Target("musl", "aarch64", "aarch64-linux-musl", "musllinux_1_2_aarch64"),
)
