"""The shell of `fenceline metadata shell`: commands on a tree. Knows nothing of files."""

from __future__ import annotations

import fnmatch
import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from fenceline.cli.output import print_json
from fenceline.metadata.image_tree import Folder, Leaf, Node, nested, walk

_SHORT: Final = {
    "acls": "/image/acls",
    "brokers": "/image/cluster/brokers",
    "clientQuotas": "/image/clientQuotas",
    "cluster": "/image/cluster",
    "configs": "/image/configs",
    "controllers": "/image/cluster/controllers",
    "delegationToken": "/image/delegationToken",
    "features": "/image/features",
    "producerIds": "/image/producerIds",
    "provenance": "/image/provenance",
    "scram": "/image/scram",
    "topicIds": "/image/topics/byId",
    "topics": "/image/topics/byName",
    "voters": "/quorum/voters",
}
"""Short forms of absolute paths, by their first part. `/topics/byName` works as well."""

_HELP: Final = """\
ls [PATH...]     list names
cat PATH...      print values
cd [PATH]        change the current folder
pwd              print the current folder
find [PATH...]   list all paths below, one per line
tree [PATH]      print everything below, indented, with values
help             print this help
exit             leave the shell (also quit, or end of input)
Paths may contain the wildcards * and ?. Short paths: """ + ", ".join("/" + name for name in _SHORT)
_COMPLETIONS: Final = 1000


class Shell:
    """Runs commands on the tree; keeps the current folder."""

    def __init__(self, root: Folder, *, as_json: bool) -> None:
        self._root = root
        self._as_json = as_json
        self._where: tuple[str, ...] = ()

    def run(self, words: Sequence[str]) -> bool:
        """Run a command and print its output. Returns whether it succeeded."""
        name, *arguments = words
        command = {
            "ls": self._ls,
            "cat": self._cat,
            "cd": self._cd,
            "pwd": self._pwd,
            "find": self._find,
            "tree": self._tree,
            "help": self._help,
        }.get(name)
        if command is None:
            print(f"{name}: unknown command; type help")
            return False
        return command(arguments)

    def interact(self, banner: str) -> None:
        """Read and run commands until the end of input."""
        self._install_tab_completion()
        print(f"{banner}. Type help for a list of commands, exit to leave.")
        while True:
            try:
                line = input("/" + "/".join(self._where) + "> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                continue
            try:
                words = shlex.split(line)
            except ValueError as error:
                print(f"{error}")
                continue
            if words and words[0] in ("exit", "quit"):
                return
            if words:
                self.run(words)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _ls(self, arguments: Sequence[str]) -> bool:
        found, succeeded = self._resolve("ls", arguments or ["."])
        listed = {path: list(node.names()) if isinstance(node, Folder) else [path] for path, node in found}
        if self._as_json:
            print_json(next(iter(listed.values())) if len(listed) == 1 else listed)
            return succeeded
        for path, names in listed.items():
            if len(listed) > 1:
                print(f"{path}:")
            for name in names:
                print(name)
        return succeeded

    def _cat(self, arguments: Sequence[str]) -> bool:
        found, succeeded = self._resolve("cat", arguments)
        if not arguments:
            print("cat: specify a path")
            return False
        if self._as_json:
            values = {path: nested(node) for path, node in found}
            print_json(next(iter(values.values())) if len(values) == 1 else values)
            return succeeded
        for path, node in found:
            if isinstance(node, Folder):
                print(f"cat: {path}: is a folder; use ls or tree")
                succeeded = False
            else:
                print(_formatted(node.value))
        return succeeded

    def _cd(self, arguments: Sequence[str]) -> bool:
        found, succeeded = self._resolve("cd", arguments or ["/"])
        if not succeeded:
            return False
        if len(found) != 1 or not isinstance(found[0][1], Folder):
            print(f"cd: {' '.join(arguments)}: is not a single folder")
            return False
        self._where = tuple(part for part in found[0][0].split("/") if part)
        return True

    def _pwd(self, arguments: Sequence[str]) -> bool:
        path = "/" + "/".join(self._where)
        print_json(path) if self._as_json else print(path)
        return True

    def _find(self, arguments: Sequence[str]) -> bool:
        found, succeeded = self._resolve("find", arguments or ["."])
        paths = (below for path, node in found for below, _ in walk(node, "" if path == "/" else path))
        if self._as_json:
            print_json(list(paths))
        else:
            for path in paths:
                print(path)
        return succeeded

    def _tree(self, arguments: Sequence[str]) -> bool:
        found, succeeded = self._resolve("tree", arguments or ["."])
        if self._as_json:
            print_json(nested(found[0][1]) if len(found) == 1 else {path: nested(node) for path, node in found})
            return succeeded
        for path, node in found:
            for line in _indented(path, node, 0):
                print(line)
        return succeeded

    def _help(self, arguments: Sequence[str]) -> bool:
        print(_HELP)
        return True

    # -- paths ---------------------------------------------------------------------------------------------------------

    def _resolve(self, command: str, arguments: Sequence[str]) -> tuple[list[tuple[str, Node]], bool]:
        """The nodes with their paths, and whether each argument matches one."""
        found: list[tuple[str, Node]] = []
        succeeded = True
        for argument in arguments:
            matches = list(self._matches(argument))
            if not matches:
                print(f"{command}: {argument}: no such path")
                succeeded = False
            found += matches
        return found, succeeded

    def _matches(self, path: str) -> Iterator[tuple[str, Node]]:
        parts = list(self._absolute(path))
        yield from _below(self._root, parts, "")
        if parts and parts[0] in _SHORT and path.startswith("/"):
            longer = _SHORT[parts[0]].strip("/").split("/")
            rest = parts[1:]
            if parts[0] == "topics" and rest[:1] in (["byName"], ["byId"]):
                longer = longer[:-1]
            yield from _below(self._root, [*longer, *rest], "")

    def _absolute(self, path: str) -> tuple[str, ...]:
        parts = [] if path.startswith("/") else list(self._where)
        for part in path.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        return tuple(parts)

    def _install_tab_completion(self) -> None:
        try:
            import readline
        except ImportError:
            return

        def complete(text: str, state: int) -> str | None:
            folder, _, start = text.rpartition("/")
            matches = list(self._matches((folder or ("/" if text.startswith("/") else ".")) + "/"))
            names = matches[0][1].names() if matches and isinstance(matches[0][1], Folder) else []
            prefix = text[: len(text) - len(start)]
            fitting = (f"{prefix}{name}" for name in names if name.startswith(start))
            return next(islice(fitting, state, min(state + 1, _COMPLETIONS)), None)

        readline.set_completer_delims(" \t\n")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")


def _below(node: Node, parts: Sequence[str], path: str) -> Iterator[tuple[str, Node]]:
    if not parts:
        yield path or "/", node
        return
    if isinstance(node, Leaf):
        return
    first, *rest = parts
    names = fnmatch.filter(node.names(), first) if any(sign in first for sign in "*?[") else [first]
    for name in names:
        child = node.child(name)
        if child is not None:
            yield from _below(child, rest, f"{path}/{name}")


def _indented(name: str, node: Node, depth: int) -> Iterator[str]:
    if isinstance(node, Leaf):
        yield f"{'  ' * depth}{name}: {_formatted(node.value, indent=None)}"
        return
    yield f"{'  ' * depth}{name}:"
    for below in node.names():
        child = node.child(below)
        if child is not None:
            yield from _indented(below, child, depth + 1)


def _formatted(value: Any, *, indent: int | None = 2) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=indent)
