"""The shell of `fenceline metadata shell`: a place in a tree, and commands on it. Knows nothing of files."""

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
"""First parts of absolute paths that are short for others. `/topics/byName` works as well."""

_HELP: Final = """\
ls [PATH...]     what is there
cat PATH...      what it says
cd [PATH]        go there
pwd              where am I
find [PATH...]   everything below, one path a line
tree [PATH]      everything below, indented, with its values
help             this
exit             leave (also quit, or end of input)
Paths may have * and ?. Short paths: """ + ", ".join("/" + name for name in _SHORT)
_COMPLETIONS: Final = 1000


class Shell:
    """See the module."""

    def __init__(self, root: Folder, *, as_json: bool) -> None:
        self._root = root
        self._as_json = as_json
        self._where: tuple[str, ...] = ()

    def run(self, words: Sequence[str]) -> bool:
        """One command, printed; whether it succeeded."""
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
            print(f"{name}: there is no such command; try help")
            return False
        return command(arguments)

    def interact(self, banner: str) -> None:
        """Ask for commands until the end of input."""
        self._complete_by_tab()
        print(f"{banner}. Type help for the commands, exit to leave.")
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
        found, is_good = self._resolve("ls", arguments or ["."])
        listed = {path: list(node.names()) if isinstance(node, Folder) else [path] for path, node in found}
        if self._as_json:
            print_json(next(iter(listed.values())) if len(listed) == 1 else listed)
            return is_good
        for path, names in listed.items():
            if len(listed) > 1:
                print(f"{path}:")
            for name in names:
                print(name)
        return is_good

    def _cat(self, arguments: Sequence[str]) -> bool:
        found, is_good = self._resolve("cat", arguments)
        if not arguments:
            print("cat: name a path")
            return False
        if self._as_json:
            told = {path: nested(node) for path, node in found}
            print_json(next(iter(told.values())) if len(told) == 1 else told)
            return is_good
        for path, node in found:
            if isinstance(node, Folder):
                print(f"cat: {path}: it is a folder; try ls or tree")
                is_good = False
            else:
                print(_told(node.value))
        return is_good

    def _cd(self, arguments: Sequence[str]) -> bool:
        found, is_good = self._resolve("cd", arguments or ["/"])
        if not is_good:
            return False
        if len(found) != 1 or not isinstance(found[0][1], Folder):
            print(f"cd: {' '.join(arguments)}: it is not one folder")
            return False
        self._where = tuple(part for part in found[0][0].split("/") if part)
        return True

    def _pwd(self, arguments: Sequence[str]) -> bool:
        path = "/" + "/".join(self._where)
        print_json(path) if self._as_json else print(path)
        return True

    def _find(self, arguments: Sequence[str]) -> bool:
        found, is_good = self._resolve("find", arguments or ["."])
        paths = (below for path, node in found for below, _ in walk(node, "" if path == "/" else path))
        if self._as_json:
            print_json(list(paths))
        else:
            for path in paths:
                print(path)
        return is_good

    def _tree(self, arguments: Sequence[str]) -> bool:
        found, is_good = self._resolve("tree", arguments or ["."])
        if self._as_json:
            print_json(nested(found[0][1]) if len(found) == 1 else {path: nested(node) for path, node in found})
            return is_good
        for path, node in found:
            for line in _indented(path, node, 0):
                print(line)
        return is_good

    def _help(self, arguments: Sequence[str]) -> bool:
        print(_HELP)
        return True

    # -- paths ---------------------------------------------------------------------------------------------------------

    def _resolve(self, command: str, arguments: Sequence[str]) -> tuple[list[tuple[str, Node]], bool]:
        """Nodes by path, and whether each argument names one."""
        found: list[tuple[str, Node]] = []
        is_good = True
        for argument in arguments:
            matches = list(self._matches(argument))
            if not matches:
                print(f"{command}: {argument}: there is no such path")
                is_good = False
            found += matches
        return found, is_good

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

    def _complete_by_tab(self) -> None:
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
        yield f"{'  ' * depth}{name}: {_told(node.value, indent=None)}"
        return
    yield f"{'  ' * depth}{name}:"
    for below in node.names():
        child = node.child(below)
        if child is not None:
            yield from _indented(below, child, depth + 1)


def _told(value: Any, *, indent: int | None = 2) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=indent)
