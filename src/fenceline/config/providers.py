"""Values that stand elsewhere: `${provider:path:key}` in a property, as Kafka's config providers resolve it (KIP-297).

    config.providers=file,env
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.file.param.allowed.paths=/etc/secrets
    sasl.password=${file:/etc/secrets/users.properties:anna}

Owns the three providers that Kafka has: a property file, the files of a directory, environment variables. Without
`config.providers` nothing is replaced. A value that is not found is an error: Kafka goes on with the text of the
variable, which would then be a password that anybody knows. Values are never part of an error.

Rules: security.md A65, A68.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from fenceline.config.properties import read_properties
from fenceline.errors import OperatorError

PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_VARIABLE: Final = re.compile(r"\$\{(?P<provider>[^}:]*):(?:(?P<path>[^}]*):)?(?P<key>[^}:]*)\}")
_ALLOWED_PATHS: Final = "allowed.paths"
_ALLOWED_NAMES: Final = "allowlist.pattern"

Provider = Callable[[str, str], str]
"""The value of a key at a path. Raises OperatorError."""


def resolve(values: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The same properties with their variables replaced. `environ`: of the process. Raises OperatorError."""
    providers = {name: _provider(name, values, environ) for name in _names(values.get(PROVIDERS, ""))}
    if not providers:
        return dict(values)
    return {
        key: value if key.startswith(PROVIDERS) else _replaced(key, value, providers) for key, value in values.items()
    }


def _replaced(key: str, value: str, providers: Mapping[str, Provider]) -> str:
    def found(match: re.Match[str]) -> str:
        provider = providers.get(match["provider"])
        if provider is None:
            return match[0]
        try:
            return provider(match["path"] or "", match["key"])
        except OperatorError as error:
            raise OperatorError(f"{key}: {match[0]} cannot be resolved: {error.message}", error.advice) from None

    return _VARIABLE.sub(found, value)


def _provider(name: str, values: Mapping[str, str], environ: Mapping[str, str]) -> Provider:
    prefix = f"{PROVIDERS}.{name}."
    class_name = values.get(f"{prefix}class", "")
    parameters = {key.removeprefix(f"{prefix}param."): value for key, value in values.items()}
    match class_name.removeprefix(_PACKAGE):
        case "FileConfigProvider":
            return _of_files(_allowed_paths(prefix, parameters))
        case "DirectoryConfigProvider":
            return _of_directories(_allowed_paths(prefix, parameters))
        case "EnvVarConfigProvider":
            return _of_environment(prefix, parameters, environ)
    raise OperatorError(
        f"{prefix}class={class_name} is not supported: JVM plug-ins cannot be loaded",
        f"Choose from {', '.join(_PACKAGE + each for each in _CLASSES)}.",
    )


_CLASSES: Final = ("FileConfigProvider", "DirectoryConfigProvider", "EnvVarConfigProvider")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _allowed_paths(prefix: str, parameters: Mapping[str, str]) -> tuple[Path, ...] | None:
    """None: all."""
    names = _names(parameters.get(_ALLOWED_PATHS, ""))
    for name in names:
        if not Path(name).is_absolute() or not Path(name).exists():
            raise OperatorError(
                f"{prefix}param.{_ALLOWED_PATHS}: {name} is not an absolute path that exists", "Correct the path."
            )
    return tuple(Path(name).resolve() for name in names) or None


def _checked(path: str, allowed: tuple[Path, ...] | None) -> Path:
    """The path, without links: a link must not lead out of what is allowed."""
    if not path:
        raise OperatorError("it names no path", "Write ${provider:path:key}.")
    real = Path(path).resolve()
    if allowed is not None and not any(real.is_relative_to(each) for each in allowed):
        raise OperatorError(f"{path} is not in the provider's param.{_ALLOWED_PATHS}", "Add it, or correct the path.")
    return real


def _of_files(allowed: tuple[Path, ...] | None) -> Provider:
    read = cache(read_properties)

    def value(path: str, key: str) -> str:
        found = read(_checked(path, allowed)).get(key)
        if found is None:
            raise OperatorError("the file has no such key", "Correct the key.")
        return found

    return value


def _of_directories(allowed: tuple[Path, ...] | None) -> Provider:
    def value(path: str, key: str) -> str:
        if not key or "/" in key or key in (".", ".."):
            raise OperatorError("the key is not the name of a file", "Write ${provider:directory:file}.")
        file = _checked(str(_checked(path, allowed) / key), allowed)
        try:
            return file.read_text()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not a text file"
            raise OperatorError(f"the file cannot be read: {reason}", "Check the path and its permissions.") from None

    return value


def _of_environment(prefix: str, parameters: Mapping[str, str], environ: Mapping[str, str]) -> Provider:
    pattern = parameters.get(_ALLOWED_NAMES)
    try:
        allowed = re.compile(pattern or ".*")
    except re.error as error:
        raise OperatorError(f"{prefix}param.{_ALLOWED_NAMES} is no pattern: {error}", "Correct it.") from None

    def value(path: str, key: str) -> str:
        if path:
            raise OperatorError("a variable of the environment has no path", "Write ${provider:NAME}.")
        if allowed.fullmatch(key) is None:
            raise OperatorError(f"it does not match the provider's param.{_ALLOWED_NAMES}", "Correct the pattern.")
        found = environ.get(key)
        if found is None:
            raise OperatorError("the environment has no such variable", "Set it.")
        return found

    return value
