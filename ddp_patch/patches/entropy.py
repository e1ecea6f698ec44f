"""Seeds that come from the system: rank 0 draws them, so that what the script makes of them agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.entropy import Entropy
from ..patcher import Patch, Wrapper

_DRAWN = (
    *(("os", "urandom"), ("uuid", "uuid1"), ("uuid", "uuid4")),
    *(("secrets", name) for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")),
)
_CUDA = ("manual_seed", "manual_seed_all")
_NUMPY = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_SEEDED = "rank 0's seed; without one, rank 0 draws it for all"


def patches(entropy: Entropy, reseeded: Callable[[], None]) -> list[Patch]:
    """Rows for what asks the system for random numbers.

    Args:
        entropy: shared by the ranks.
        reseeded: is told that the script seeded all of torch's generators.
    """

    def drawn(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return entropy.shared(what, lambda: wrapped(*args, **kwargs))

        return call

    def torch_seed(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        import torch  # noqa: PLC0415 — a name that is patched

        seed = entropy.shared("torch.seed", lambda: wrapped(*args, **kwargs))
        torch.manual_seed(seed)
        return int(seed)

    def manual(what: str, told: Callable[[], None] = lambda: None) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            def bind(seed: Any) -> Any:
                made = wrapped(entropy.given(what, seed))
                told()
                return made

            return bind(*args, **kwargs)

        return call

    return [
        *(Patch(module, name, drawn(f"{module}.{name}"), "rank 0 draws for all") for module, name in _DRAWN),
        Patch("torch.random", "seed", torch_seed, "rank 0 draws for all", also=("torch:seed",)),
        # Two objects once torch._dynamo is imported, which puts a wrapper of its own in the place of the first (2.13).
        *(
            Patch(module, "manual_seed", manual("torch.manual_seed", reseeded), _SEEDED)
            for module in ("torch", "torch.random")
        ),
        *(
            Patch("torch.cuda", name, manual(f"torch.cuda.{name}"), _SEEDED)
            for name in ("manual_seed", "manual_seed_all")
        ),
        Patch("random", "seed", seeded(entropy, "random.seed", "a"), _SEEDED),
        Patch("random", "Random.__init__", seeded(entropy, "random.Random", "x"), _SEEDED),
    ]


def patch_when_imported(entropy: Entropy, apply: Callable[[list[Patch]], None]) -> None:
    """Take over numpy as soon as the script imports it.

    Args:
        entropy: shared by the ranks.
        apply: applies patches, unless the session has ended.
    """
    rows = [
        Patch("numpy.random", "default_rng", seeded(entropy, "numpy.random.default_rng"), _SEEDED),
        *(Patch("numpy.random", name, seeded(entropy, f"numpy.random.{name}"), _SEEDED) for name in _NUMPY),
        Patch("numpy.random", "SeedSequence", seeded(entropy, "numpy.random.SeedSequence", "entropy"), _SEEDED),
        Patch("numpy.random", "seed", seeded(entropy, "numpy.random.seed", bits=32), _SEEDED),
        Patch(
            "numpy.random",
            "RandomState",
            seeded(entropy, "numpy.random.RandomState", bits=32),
            _SEEDED,
            also=("numpy.random.mtrand:RandomState",),
        ),
    ]
    wrapt.register_post_import_hook(lambda module: apply(rows), "numpy.random")


def seeded(entropy: Entropy, what: str, name: str = "seed", bits: int = 128) -> Wrapper:
    """A wrapper that gives rank 0's seed, or one where the script gives none."""

    def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(seed: Any = None, *rest: Any, **options: Any) -> Any:
            if seed is not None:
                return wrapped(entropy.given(what, seed), *rest, **options)
            drawn = entropy.seed(what)
            return wrapped(*rest, **options) if drawn is None else wrapped(drawn % (1 << bits), *rest, **options)

        if name in kwargs:
            args, kwargs = (kwargs[name],), {key: value for key, value in kwargs.items() if key != name}
        return bind(*args, **kwargs)

    return call
