"""torch.hub: what is downloaded into its cache comes once to each host."""

from __future__ import annotations

import os
from typing import Any

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _get_repository(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(github: str, force_reload: bool, trust_repo: Any, *rest: Any, **options: Any) -> Any:
        def get(is_new: bool, trust: Any) -> Any:
            return wrapped(github, is_new, trust, *rest, **options)

        # Who takes it is not asked whether it trusts what rank 0 has trusted.
        return session.per_host.call("torch.hub.load", lambda: get(force_reload, trust_repo), lambda: get(False, True))

    return bind(*args, **kwargs)


def _load_from_url(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def load() -> Any:
        return wrapped(*args, **kwargs)

    return session.per_host.call("torch.hub.load_state_dict_from_url", load, load)


def _download(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(url: str, dst: Any, *rest: Any, **options: Any) -> None:
        def download() -> None:
            wrapped(url, dst, *rest, **options)

        what, path = "torch.hub.download_url_to_file", os.path.expanduser(dst)
        if session.owners.is_temporary(path):
            download()  # each rank has its own
        elif session.owners.covers(path):
            session.folders.call(what, wrapped, [path], (url, dst, *rest), options)
        else:
            session.per_host.call(what, download, lambda: None)

    bind(*args, **kwargs)


_ONCE = "rank 0 downloads, then the first rank of each other host; the others take it from the cache of their host"

PATCHES = (
    Patch("torch.hub", "_get_cache_or_reload", _get_repository, _ONCE),
    Patch("torch.hub", "load_state_dict_from_url", _load_from_url, _ONCE),
    Patch("torch.hub", "download_url_to_file", _download, f"{_ONCE}; rank 0 alone, where it is a file of the script's"),
)
