"""Seeds that come from the system: rank 0 draws them, so that what the script makes of them agrees."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_DRAWN = (
    *(("os", "urandom"), ("uuid", "uuid1"), ("uuid", "uuid4")),
    *(("secrets", name) for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")),
)
_EFFECT = "rank 0 draws for all, where the script itself asks"
_SEEDED = "rank 0's seed, which may be its clock; without a seed, rank 0 draws one for all"


def _drawn(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.system_random.shared(what, lambda: wrapped(*args, **kwargs))

    return call


def _torch_seed(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> int:
    import torch  # noqa: PLC0415 — a name that is patched

    seed = session.system_random.shared("torch.seed", lambda: wrapped(*args, **kwargs))
    torch.manual_seed(seed)
    return int(seed)


def _manual(what: str, *, of_all: bool = False) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        def bind(seed: Any) -> Any:
            made = wrapped(session.system_random.seed_of_rank_zero(what, seed))
            if of_all:  # torch's generators
                session.generators.reseeded()
            return made

        return bind(*args, **kwargs)

    return call


def seeded(what: str, name: str = "seed", bits: int = 128) -> Wrapper:
    """A wrapper that gives rank 0's seed, or one where the script gives none."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        def bind(seed: Any = None, *rest: Any, **options: Any) -> Any:
            if seed is not None:
                return wrapped(session.system_random.seed_of_rank_zero(what, seed), *rest, **options)
            drawn = session.system_random.seed(what)
            return wrapped(*rest, **options) if drawn is None else wrapped(drawn % (1 << bits), *rest, **options)

        if name in kwargs:
            args, kwargs = (kwargs[name],), {key: value for key, value in kwargs.items() if key != name}
        return bind(*args, **kwargs)

    return call


_MANUAL_SEED = _manual("torch.manual_seed", of_all=True)
_NUMPY_CLASSES = {
    **{name: seeded(f"numpy.random.{name}") for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")},
    "SeedSequence": seeded("numpy.random.SeedSequence", "entropy"),
}
_NUMPY_FUNCTIONS = {
    "default_rng": seeded("numpy.random.default_rng"),
    "seed": seeded("numpy.random.seed", bits=32),
}

PATCHES = (
    *(Patch(module, name, _drawn(f"{module}.{name}"), _EFFECT) for module, name in _DRAWN),
    Patch("torch.random", "seed", _torch_seed, _EFFECT, also=("torch:seed",)),
    # Two objects once torch._dynamo is imported, which puts a wrapper of its own in the place of the first (2.13); one
    # before, which the first row takes over.
    *(Patch(module, "manual_seed", _MANUAL_SEED, _SEEDED) for module in ("torch", "torch.random")),
    *(Patch("torch.cuda", name, _manual(f"torch.cuda.{name}"), _SEEDED) for name in ("manual_seed", "manual_seed_all")),
    Patch("random", "seed", seeded("random.seed", "a"), _SEEDED),
    # What __init__ calls it for comes from Python's own code, and is left alone.
    Patch("random", "Random.seed", seeded("random.Random.seed", "a"), _SEEDED),
    Patch("random", "Random.__init__", seeded("random.Random", "x"), _SEEDED),
    *(
        Patch("numpy.random", name, wrapper, _SEEDED, when_imported="numpy.random")
        for name, wrapper in (_NUMPY_FUNCTIONS | _NUMPY_CLASSES).items()
    ),
    Patch(
        "numpy.random",
        "RandomState",
        seeded("numpy.random.RandomState", bits=32),
        _SEEDED,
        also=("numpy.random.mtrand:RandomState",),
        when_imported="numpy.random",
    ),
)
