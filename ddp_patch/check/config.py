"""``[tool.ddp_patch.check]`` of the nearest ``pyproject.toml`` above a path."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..source import excluded


class ConfigError(ValueError):
    """The table cannot be used. Its message names the file and the key."""


@dataclass(frozen=True)
class Config:
    """What a project says about checking it."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = field(default_factory=dict)
    root: Path = Path()  # the folder of the file, which patterns count from

    def ignored(self, path: Path) -> tuple[str, ...]:
        """List the codes that are ignored in one file."""
        try:
            relative = path.resolve().relative_to(self.root)
        except ValueError:
            relative = path
        return tuple(
            code for pattern, codes in self.per_file_ignores.items() if excluded(relative, [pattern]) for code in codes
        )


def config_for(path: Path) -> Config:
    """Read the configuration that a path is under; an empty one where there is none.

    Raises:
        ConfigError: for a file or table that cannot be used.
    """
    start = path.resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Config()


def _read(file: Path) -> Config:
    content = file.read_text(encoding="utf-8")
    if "ddp_patch" not in content:
        return Config()
    toml = _toml(file)
    try:
        table = toml.loads(content).get("tool", {}).get("ddp_patch", {}).get("check", {})
    except toml.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    keys = {each.name.replace("_", "-") for each in fields(Config)} - {"root"}
    for key, value in table.items():
        if key not in keys:
            raise ConfigError(
                f"{file}: [tool.ddp_patch.check] has no key {key!r}. Write one of {', '.join(sorted(keys))}"
            )
        lists = value.values() if key == "per-file-ignores" and isinstance(value, dict) else [value]
        if not all(isinstance(each, list) and all(isinstance(item, str) for item in each) for each in lists):
            example = '{"tests/*" = ["DDP1"]}' if key == "per-file-ignores" else '["DDP104"]'
            raise ConfigError(f"{file}: {key} = {value!r} is no list of strings. Write {key} = {example}")
    options: dict[str, Any] = {key: tuple(table[key]) for key in ("select", "ignore", "exclude") if key in table}
    per_file = {pattern: tuple(codes) for pattern, codes in table.get("per-file-ignores", {}).items()}
    return Config(**options, per_file_ignores=per_file, root=file.parent)


def _toml(file: Path) -> Any:
    for name in ("tomllib", "tomli"):  # tomllib: Python 3.11 and later
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(f"{file} can only be read with tomli on this Python. Write pip install tomli, or --no-config")
