"""What the other files of a program say: ``main.py`` calls ``set_epoch`` for the sampler that ``data.py`` makes.

A program is a script and all files of the same call that it imports, in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os.path import commonpath
from pathlib import Path

from .file_summary import CallSite, FileSummary, heard
from .roles import Role

_ROUNDS = 4  # calls of functions in functions that are called under a test on the rank
# Methods that every module or optimizer has: a call of one runs the project's own only on an object of its class.
_COMMON = {"train", "eval", "forward", "step", "apply", "zero_grad", "backward", "close", "reset", "update"}


@dataclass(frozen=True)
class Elsewhere:
    """What the other files of the programs that a file is part of say, all together."""

    roles: frozenset[Role] = frozenset()
    words: frozenset[str] = frozenset()  # names, attributes, keywords, and strings that could be one
    guarded: frozenset[str] = frozenset()  # functions and classes that are called there under a test on the rank only
    trains: bool = False  # one that imports this file runs a backward
    training: frozenset[str] = frozenset()  # functions and methods called here that run a backward in another file
    uses_torch: bool = False  # one that this file imports does
    bound: Mapping[str, str] = field(default_factory=dict)  # what ``from other import *`` brings of other's imports
    folders: tuple[Path, ...] = ()  # of the call's files, from theirs all down to this one's
    seeds_by_rank: bool = False


class Programs:
    """Answers ``elsewhere(path)`` for the files of one call."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Read all files, if there are several: one has nothing else to hear of."""
        self._places = {file.resolve(): file for file in files}
        self._said = {place: _heard(place, self._places.keys()) for place in self._places} if len(files) > 1 else {}
        self._training: dict[Path, frozenset[str]] = {}

    def elsewhere(self, path: Path) -> Elsewhere:
        """Tell what the other files of this file's programs say."""
        place = path.resolve()
        if place not in self._said:
            return Elsewhere()
        above = self._reached(place, self._importers)
        below = self._reached(place, self._imports)
        around = {other for top in above for other in self._reached(top, self._imports)} | below | above
        others = [self._said[other] for other in around - {place}]
        calls = [call for said in others for call in said.calls]
        return Elsewhere(
            frozenset().union(*(said.roles for said in others)),
            frozenset().union(*(said.words for said in others)),
            _guarded(calls),
            any(self._said[other].trains or self._called_training(other) for other in above),
            self._called_training(place),
            any(self._said[other].uses_torch for other in below),
            self._brought(place, {place}),
            tuple(folder for folder in place.parents if folder != self._root and folder.is_relative_to(self._root)),
            any(said.seeds_by_rank for said in others),
        )

    @cached_property
    def _root(self) -> Path:
        return Path(commonpath([place.parent for place in self._places]))

    @cached_property
    def _imports(self) -> dict[Path, set[Path]]:
        return {place: said.imports for place, said in self._said.items()}

    @cached_property
    def _importers(self) -> dict[Path, set[Path]]:
        found: dict[Path, set[Path]] = defaultdict(set)
        for place, said in self._said.items():
            for imported in said.imports:
                found[imported].add(place)
        return found

    @staticmethod
    def _reached(start: Path, following: dict[Path, set[Path]]) -> set[Path]:
        found: set[Path] = set()
        left = [start]
        while left:
            new = following.get(left.pop(), set()) - found
            found |= new
            left.extend(new)
        return found

    def _brought(self, place: Path, seen: set[Path]) -> dict[str, str]:
        """What the imports of files that are imported by ``*`` bind, and theirs: ``torch``, ``nn`` for ``torch.nn``."""
        found: dict[str, str] = {}
        for other in self._said[place].stars - seen:
            if "__all__" not in self._said[other].words:
                found |= {**self._brought(other, seen | {other}), **self._said[other].bound}
        return found

    def _called_training(self, place: Path) -> frozenset[str]:
        """Name what a file calls that runs a backward in a file that it imports, in turn."""
        if place not in self._training:
            below = self._reached(place, self._imports) - {place}
            said = [self._said[other] for other in below]
            training = _training(said) if any(each.trains for each in said) else set()
            makers = {name for each in said for name, methods in each.classes.items() if methods & training}
            summary = self._said[place]
            self._training[place] = frozenset(
                call.name
                for call in summary.calls
                if _runs(call, summary, training - summary.functions, makers) or _may_run(call, summary, training)
            )
        return self._training[place]


def _heard(place: Path, files: Collection[Path]) -> FileSummary:
    try:
        return heard(place, files)
    except RecursionError:
        return FileSummary()  # nested too deeply, which is said where the file itself is read


def _training(files: Iterable[FileSummary]) -> set[str]:
    """Name the functions of some files that run a backward, by themselves or by calling one that does."""
    files = [*files]
    found: set[str] = {
        name
        for said in files
        for call in said.calls
        if call.name == "backward" and "backward" not in call.around
        for name in call.around
    }
    while True:
        makers = {name for said in files for name, methods in said.classes.items() if methods & found}
        new = set(_callers(files, found, makers)) - found
        if not new:
            return found
        found |= new


def _callers(files: Iterable[FileSummary], training: Collection[str], makers: Collection[str]) -> Iterator[str]:
    for said in files:
        for call in said.calls:
            if call.around and _runs(call, said, training, makers):
                yield from call.around


def _runs(call: CallSite, said: FileSummary, training: Collection[str], makers: Collection[str]) -> bool:
    """Tell whether a call is of one of these functions, or of such a method of an object of these classes."""
    if call.name not in training:
        return False
    if not call.receiver or call.receiver == "self":
        return True
    if said.made.get(call.receiver, call.receiver).rpartition(".")[2] in makers:
        return True
    return call.receiver in said.bound and call.receiver not in said.foreign


def _may_run(call: CallSite, said: FileSummary, training: Collection[str]) -> bool:
    """Tell whether it is of such a method of an object that came from elsewhere: ``engine = build(); engine.run()``."""
    if call.name not in training or call.name in _COMMON or not call.receiver:
        return False
    roots = {name.partition(".")[0] for name in (call.receiver, said.made.get(call.receiver, ""))}
    return not roots & said.foreign


def _guarded(calls: Iterable[CallSite]) -> frozenset[str]:
    """Name what is called under a test on the rank only, there or where the function around is called."""
    by_name: dict[str, list[CallSite]] = defaultdict(list)
    for call in calls:
        by_name[call.name].append(call)
    found: set[str] = set()
    for _ in range(_ROUNDS):
        before = len(found)
        found |= {
            name
            for name, made in by_name.items()
            if all(call.is_guarded or found.intersection(call.around) for call in made)
        }
        if len(found) == before:
            break
    return frozenset(found)
