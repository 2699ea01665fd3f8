"""Cuts a process off the network from outside: its sockets stay open, but nothing arrives or leaves.

Owns the filters of single sockets of another process, and knows nothing of nodes. Never changes bytes in flight, and
needs no cooperation of the process.

How it works, without special privileges if the process is a child:

| Purpose | Means |
|---|---|
| access a socket | `pidfd_getfd` gives us a descriptor of the same socket (Linux 5.6) |
| drop incoming traffic | a classic BPF filter that accepts nothing (SO_ATTACH_FILTER): TCP sees no segment |
| drop outgoing traffic | an IP option, loose source route (IP_OPTIONS): systems drop such packets (RFC 7126) |
| neither accept nor refuse | the filter of a listening socket drops SYNs, so that connects hang as without a route |

Both ends then behave as on a dead link: they retransmit with growing intervals, and continue where they were when the
cut ends. Nothing is lost or reset. Connections accepted by a listening socket inherit its filter.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError

Address = tuple[str, int]

_SYS_PIDFD_GETFD: Final = 438
"""The same number on every architecture."""
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_LOAD_WORD: Final = 0x20
_JUMP_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_SOURCE_ADDRESS: Final = 0xFFF00000 + 12
"""SKF_NET_OFF, the start of the IP header, plus the offset of the source address."""
_WHOLE_PACKET: Final = 0xFFFFFFFF
_SOURCE_ROUTE: Final = bytes([131, 7, 4, 127, 0, 0, 1, 0])
"""Loose source route via 127.0.0.1, already traversed; padded to four bytes."""
_MAX_ADDRESSES: Final = 200
"""Jumps of classic BPF reach 255 instructions."""
_SOURCE_ROUTE_ACCEPTED: Final = "/proc/sys/net/ipv4/conf/{}/accept_source_route"


_libc: Final = ctypes.CDLL(None, use_errno=True)


class CutsUnavailable(OperatorError):
    """Sockets of other processes cannot be accessed or filtered here; has the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class SocketFilter:
    """The filter of one socket. The default drops nothing.

    `lose_incoming` drops every segment, except those from `let_in`; without it, those from `lose_from` are dropped."""

    lose_incoming: bool = False
    let_in: frozenset[str] = frozenset()
    lose_from: frozenset[str] = frozenset()
    lose_outgoing: bool = False


UNFILTERED: Final = SocketFilter()


class ForeignSocket:
    """One TCP socket (IPv4) of another process. Close it soon: it keeps the connection open.

    `remote` is None for a listening socket, and while a connection is being established."""

    __slots__ = ("_socket", "inode", "is_listening", "local", "remote")

    def __init__(self, inode: int, handle: socket.socket) -> None:
        self.inode = inode
        self._socket = handle
        self.is_listening = bool(handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        self.local: Address = handle.getsockname()
        self.remote: Address | None = None
        with contextlib.suppress(OSError):
            self.remote = handle.getpeername()

    def apply(self, before: SocketFilter, wanted: SocketFilter) -> None:
        """Change the filter of the socket. Raises CutsUnavailable, and OSError if the connection has ended."""
        incoming = (before.lose_incoming, before.let_in, before.lose_from)
        if incoming != (wanted.lose_incoming, wanted.let_in, wanted.lose_from):
            if wanted.lose_incoming or wanted.lose_from:
                _attach(self._socket, _program(wanted))
            else:
                _detach(self._socket)
        if before.lose_outgoing != wanted.lose_outgoing and not self.is_listening:
            if wanted.lose_outgoing:
                _check_source_route()
            options = _SOURCE_ROUTE if wanted.lose_outgoing else b""
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options)

    def close(self) -> None:
        self._socket.close()


def sockets_of(pid: int) -> Iterator[ForeignSocket]:
    """The current TCP sockets of the process; each is closed when the next one is requested.

    Ends early if the process has ended. Raises CutsUnavailable."""
    if not sys.platform.startswith("linux"):
        raise CutsUnavailable(
            f"The network of a process cannot be cut on {sys.platform}",
            "It needs Linux 5.6 or newer; kill, pause and restart work everywhere.",
        )
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        raise _unavailable(error) from error
    try:
        for descriptor, inode in _socket_descriptors(pid):
            found = _open_socket(process, descriptor, inode)
            if found is not None:
                try:
                    yield found
                finally:
                    found.close()
    finally:
        os.close(process)


def _socket_descriptors(pid: int) -> Iterator[tuple[int, int]]:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, ProcessLookupError):
        return
    except OSError as error:
        raise _unavailable(error) from error
    for name in names:
        try:
            target = os.readlink(f"{directory}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(name), int(target[8:-1])


def _open_socket(process: int, descriptor: int, inode: int) -> ForeignSocket | None:
    """None for a descriptor that was closed meanwhile, and for a socket that is not TCP over IPv4 or not in use."""
    number = _libc.syscall(_SYS_PIDFD_GETFD, process, descriptor, 0)
    if number < 0:
        code = ctypes.get_errno()
        if code in (errno.EBADF, errno.ESRCH):
            return None
        raise _unavailable(OSError(code, os.strerror(code)))
    handle = socket.socket(fileno=number)
    try:
        if handle.family == socket.AF_INET and handle.type & 0xF == socket.SOCK_STREAM:
            found = ForeignSocket(inode, handle)
            if found.is_listening or found.local[1] != 0:
                return found
    except OSError:
        pass
    handle.close()
    return None


def _unavailable(error: OSError) -> CutsUnavailable:
    if error.errno == errno.ENOSYS:
        return CutsUnavailable(
            "The network of a process cannot be cut on this kernel",
            "It needs Linux 5.6 or newer (pidfd_getfd); kill, pause and restart work everywhere.",
        )
    return CutsUnavailable(
        f"The sockets of the process cannot be reached: {error.strerror}",
        "The system forbids it (kernel.yama.ptrace_scope above 1, or a container's seccomp profile without"
        " pidfd_getfd). Allow ptrace of child processes; in a container, add the capability SYS_PTRACE.",
    )


# --- filters ------------------------------------------------------------------------------------------------------

_Instruction = tuple[int, int, int, int]


def _program(wanted: SocketFilter) -> list[_Instruction]:
    """A classic BPF program: drop (0) or keep the packet, by its source address."""
    exceptions = wanted.let_in if wanted.lose_incoming else wanted.lose_from
    assert len(exceptions) <= _MAX_ADDRESSES, "more addresses than a jump can span"
    otherwise, if_listed = (0, _WHOLE_PACKET) if wanted.lose_incoming else (_WHOLE_PACKET, 0)
    program: list[_Instruction] = [(_LOAD_WORD, 0, 0, _SOURCE_ADDRESS)] if exceptions else []
    for index, address in enumerate(sorted(exceptions)):
        number = int.from_bytes(socket.inet_aton(address), "big")
        program.append((_JUMP_IF_EQUAL, len(exceptions) - index, 0, number))
    program.append((_RETURN, 0, 0, otherwise))
    if exceptions:
        program.append((_RETURN, 0, 0, if_listed))
    return program


def _attach(target: socket.socket, program: list[_Instruction]) -> None:
    """Replaces an existing filter."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    target.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _detach(target: socket.socket) -> None:
    with contextlib.suppress(FileNotFoundError):
        target.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _check_source_route() -> None:
    """Raises CutsUnavailable if the system delivers source-routed packets, which it never should."""
    accepted = []
    for device in ("all", "lo"):
        try:
            accepted.append(Path(_SOURCE_ROUTE_ACCEPTED.format(device)).read_text().strip() != "0")
        except OSError:
            accepted.append(False)
    if all(accepted):
        raise CutsUnavailable(
            "The outgoing traffic of a process cannot be cut: this system accepts source-routed packets",
            "Disable that with: sysctl -w net.ipv4.conf.all.accept_source_route=0",
        )
