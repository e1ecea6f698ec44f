"""Names of torch functions, as a script's author would write them."""

from __future__ import annotations

from typing import Any


def function_name(func: Any) -> str:
    """Name a torch function."""
    name = getattr(func, "__name__", str(func))
    owner: Any = getattr(func, "__self__", None)
    if name in ("__get__", "__set__") and hasattr(owner, "__name__"):
        return f"Tensor.{owner.__name__}"
    where = getattr(func, "__objclass__", None)
    if where is not None:
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None)
    return f"{module}.{name}" if module and module.startswith("torch.nn") else f"torch.{name}"
