"""Names of torch functions, as a script's author would write them; what torch means by them, and what is refused."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .sizes import BatchSize


class Unanswered(Exception):
    """An operator of torch's leaves the answer to the other operand, as in ``batch == None``."""


def function_name(func: Any) -> str:
    """Name a torch function."""
    name = getattr(func, "__name__", str(func))
    owner: Any = getattr(func, "__self__", None)
    if name in ("__get__", "__set__") and hasattr(owner, "__name__"):
        return f"Tensor.{owner.__name__}"
    where = getattr(func, "__objclass__", None)
    if where is not None:
        return f"Tensor.{name}"
    if getattr(Tensor, name, None) is func:  # written in Python
        return f"Tensor.{name}"
    if type(func).__module__ == "torch._ops":
        return f"torch.ops.{func}"
    module = getattr(func, "__module__", None) or "torch"
    if not module.startswith(("torch", "builtins", "_operator")):  # a script's, that was registered
        return str(getattr(func, "__qualname__", name))
    return f"{module}.{name}" if module.startswith("torch.nn") else f"torch.{name}"


def as_rules_have_them(
    rule: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give arguments where rules look for them.

    ``torch.mean(input=x, axis=1)`` is ``torch.mean(x, dim=1)``, ``x.unfold(dimension=1, size=4, step=2)`` is
    ``x.unfold(1, 4, 2)``.
    """
    if getattr(rule, "__module__", None) == _OF_SCRIPTS:  # whose parameters may have any name
        return args, kwargs
    if not args and "input" in kwargs and "condition" not in kwargs:
        args, kwargs = (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}
    if kwargs and args:
        for name in _POSITIONAL.get(getattr(func, "__name__", ""), ())[len(args) - 1 :]:
            if name not in kwargs:
                break
            args, kwargs = (*args, kwargs[name]), {other: value for other, value in kwargs.items() if other != name}
    if "axis" in kwargs or "keepdims" in kwargs:  # NumPy's names, which torch takes as well
        kwargs = {_NUMPYS.get(name, name): value for name, value in kwargs.items()}
    return args, kwargs


def as_int(value: Any) -> Any:
    """Write an integer of NumPy's, or a batch's size that somebody kept, as one of Python's: all that rules know."""
    if type(value) is BatchSize:
        return int(value)
    is_numpys = getattr(value, "ndim", None) == 0 and type(value).__module__ == "numpy"
    return int(value) if is_numpys and value.dtype.kind in "iu" else value


def writes_in_place(func: Any, kwargs: dict[str, Any]) -> bool:
    """Tell by torch's naming whether a function writes to its first argument or to ``out``."""
    name = getattr(func, "__name__", "")
    is_named = (name.endswith("_") and not name.endswith("__")) or name in _WRITERS
    return is_named or kwargs.get("out") is not None or bool(kwargs.get("inplace"))


_OF_SCRIPTS = f"{__package__}.registered"
_NUMPYS = {"axis": "dim", "keepdims": "keepdim"}
_POSITIONAL = {  # names of the arguments after the tensor, where rules take them by position
    "unfold": ("dimension", "size", "step"), "unflatten": ("dim", "sizes"), "transpose": ("dim0", "dim1"),
    "swapdims": ("dim0", "dim1"), "swapaxes": ("axis0", "axis1"), "reshape": ("shape",), "view": ("size",),
    "expand": ("size",), "broadcast_to": ("size",), "expand_as": ("other",), "matmul": ("other",), "mm": ("mat2",),
    "bmm": ("mat2",), "baddbmm": ("batch1", "batch2"), "addmm": ("mat1", "mat2"), "addmv": ("mat", "vec"),
    "mv": ("vec",), "index_select": ("dim", "index"), "bilinear": ("input2", "weight", "bias"),
}  # fmt: skip
_WRITERS = {
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "__set__",
}  # fmt: skip
