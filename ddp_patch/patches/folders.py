"""os.makedirs, os.remove, shutil.copy and their like: once per job, with the same outcome on every rank."""

from __future__ import annotations

from typing import Any

from ..effects.scratch import is_being_made
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

# Function -> the names of its paths, which come first.
_CHANGES = {
    ("os", "mkdir"): ("path",),
    ("os", "makedirs"): ("name",),
    ("os", "remove"): ("path",),
    ("os", "unlink"): ("path",),
    ("os", "rmdir"): ("path",),
    ("os", "removedirs"): ("name",),
    ("os", "rename"): ("src", "dst"),
    ("os", "renames"): ("old", "new"),
    ("os", "replace"): ("src", "dst"),
    ("os", "link"): ("src", "dst"),
    ("os", "symlink"): ("src", "dst"),
    ("os", "truncate"): ("path",),
    ("os", "chmod"): ("path",),
    ("os", "utime"): ("path",),
    ("shutil", "copy"): ("src", "dst"),
    ("shutil", "copy2"): ("src", "dst"),
    ("shutil", "copyfile"): ("src", "dst"),
    ("shutil", "copymode"): ("src", "dst"),
    ("shutil", "copystat"): ("src", "dst"),
    ("shutil", "copytree"): ("src", "dst"),
    ("shutil", "move"): ("src", "dst"),
    ("shutil", "rmtree"): ("path",),
    ("shutil", "make_archive"): ("base_name",),
    ("shutil", "unpack_archive"): ("filename", "extract_dir"),
}
_KEEPS_SOURCE = (
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copymode", "shutil.copystat", "shutil.copytree"),
    *("os.link", "os.symlink"),
)
_TEMPORARY_FILES = {"mkstemp": 2, "NamedTemporaryFile": 6}  # -> place of ``dir`` among the arguments
_FOLDER_OF_MKDTEMP = 2  # likewise


def _once(what: str, names: tuple[str, ...]) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        paths = [*args[: len(names)], *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        written = paths[1:] if what in _KEEPS_SOURCE else paths
        if len(paths) < len(names) and what != "shutil.unpack_archive":
            return wrapped(*args, **kwargs)  # which says what is missing
        return session.folders.call(what, wrapped, written, args, kwargs)

    return call


def _open_descriptor(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        return session.folders.open(wrapped, path, flags, rest, options)

    return bind(*args, **kwargs)


def _make_folder(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.folders.is_the_scripts(_folder(_FOLDER_OF_MKDTEMP, args, kwargs)):
        return session.folders.make(wrapped, args, kwargs)
    return _make_temporary(_FOLDER_OF_MKDTEMP)(session, wrapped, instance, args, kwargs)


def _make_temporary(place: int) -> Wrapper:
    def make(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        folder = _folder(place, args, kwargs)
        if session.folders.is_the_scripts(folder):
            session.files.written.comes_and_goes_in(session.files.key(folder))
        if folder is not None and session.folders.are_others:
            local_folder = session.owners.place(folder, session.files.is_made(folder))
            if len(args) > place:
                args = (*args[:place], local_folder, *args[place + 1 :])
            else:
                kwargs = {**kwargs, "dir": local_folder}
        made = wrapped(*args, **kwargs)
        path = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
        session.owners.made(path)
        is_scripts = session.owners.caller("tempfile") == "script" and not is_being_made()
        if session.rank_zero.in_lockstep() and is_scripts:
            session.places.made(path)
        return made

    return make


def _folder(place: int, args: Args, kwargs: Kwargs) -> Any:
    return args[place] if len(args) > place else kwargs.get("dir")


_ONCE = "rank 0 acts once all ranks are there; all get what it got"

PATCHES = (
    *(Patch(module, name, _once(f"{module}.{name}", names), _ONCE) for (module, name), names in _CHANGES.items()),
    Patch("os", "open", _open_descriptor, "as `open`"),
    Patch(
        "tempfile",
        "mkdtemp",
        _make_folder,
        "in a folder of the script's as `os.mkdir`; else every rank has a temporary folder of its own",
    ),
    *(
        Patch("tempfile", name, _make_temporary(place), "every rank has temporary files of its own")
        for name, place in _TEMPORARY_FILES.items()
    ),
)
