"""The complete answer to "which functions stay on rows?": one list per kind of rule.

A name is looked up on ``torch``, ``torch.Tensor``, ``torch.nn.functional``, ``torch.special`` and ``torch.linalg``;
names that a torch version lacks are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ..tensor import QUICK, RULES, Rule
from . import (
    autograd,
    autograd_calls,
    contractions,
    copies,
    dims,
    draws,
    dropout,
    elementwise,
    factories,
    groups,
    hooked,
    indexing,
    joining,
    listed_entries,
    losses,
    masked_rows,
    matrices,
    metadata,
    networks,
    products,
    quantizing,
    quick,
    reductions,
    samples_as_channels,
    selecting,
    sequences,
    shapes,
    shapes_in_place,
    sorted_rows,
    writes,
)

# Rules that look at more than a name; a later one counts.
_MODULES = (
    metadata, listed_entries, masked_rows, shapes, indexing, selecting, joining, losses, factories, autograd,
    autograd_calls, dims, networks, samples_as_channels, products, contractions, sequences, dropout, draws, copies,
    writes, shapes_in_place, sorted_rows, groups, matrices, quantizing,
)  # fmt: skip
_OWNERS = (torch, torch.Tensor, F, torch.special, torch.linalg)


def _words(text: str) -> list[str]:
    return text.split()


# One value in, one value out; or several that broadcast against each other.
ELEMENTWISE = _words("""
abs absolute neg negative positive sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos
tan asin acos atan arcsin arccos arctan sinh cosh tanh asinh acosh atanh arcsinh arccosh arctanh sinc sigmoid relu
relu6 gelu elu selu celu silu mish leaky_relu softplus softsign tanhshrink hardtanh hardsigmoid hardswish hardshrink
softshrink threshold logsigmoid erf erfc erfinv expit logit i0 entr digamma lgamma ceil floor round trunc fix frac
deg2rad rad2deg isnan isinf isfinite isposinf isneginf isreal signbit logical_not bitwise_not nan_to_num clamp clip
clamp_min clamp_max conj conj_physical angle real imag add sub subtract rsub mul multiply div divide true_divide
floor_divide remainder fmod pow float_power maximum minimum fmax fmin atan2 arctan2 copysign hypot ldexp logaddexp
logaddexp2 xlogy xlog1py heaviside nextafter eq ne lt le gt ge not_equal less less_equal greater greater_equal isclose
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift lerp
addcmul addcdiv masked_fill __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__
__rdiv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __neg__ __pos__ __abs__ __invert__ __eq__ __ne__
__lt__ __le__ __gt__ __ge__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rshift__
""")

# The same, written into the first argument.
IN_PLACE = [
    "__iadd__",
    "__isub__",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "__ifloordiv__",
    "__imod__",
    "__ipow__",
    "__iand__",
    "__ior__",
    "__ixor__",
    "zero_",
    "fill_",
    "relu_",
    "elu_",
    "selu_",
    "celu_",
    "leaky_relu_",
    "hardtanh_",
    "threshold_",
    "copy_",
] + [f"{name}_" for name in ELEMENTWISE if not name.startswith("__") and not name.endswith("_")]

CASTS = _words("""
to type type_as float double half bfloat16 int long short char byte bool cfloat cdouble cuda cpu xpu clone detach
contiguous pin_memory alias_copy detach_copy resolve_conj resolve_neg
""")

METADATA = _words("""
size dim ndimension numel nelement __len__ is_floating_point is_complex is_signed element_size get_device is_tensor
__hash__
""")

METADATA_PROPERTIES = _words("""
shape ndim dtype device layout is_cuda is_cpu is_xpu is_mps is_meta is_sparse is_quantized is_nested itemsize nbytes
is_mkldnn is_ipu is_maia is_mtia is_vulkan is_xla is_sparse_csr names
""")

ROWS_PROPERTIES = _words("""
requires_grad is_leaf grad_fn output_nr retains_grad _version
""")

# Functions of whole dimensions: position of ``dim``, its default, and the names.
ALONG_DIMENSIONS: list[tuple[int, Any, list[str]]] = [
    (1, None, _words("softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin")),
    (1, None, _words("sum mean nansum prod argmax argmin amax amin max min median nanmedian all any count_nonzero")),
    (1, None, _words("std var std_mean var_mean logsumexp")),
    (1, -1, _words("sort argsort glu mode")),
    (2, -1, _words("topk kthvalue")),
    (2, 1, _words("normalize")),
    (2, None, _words("norm vector_norm")),
    (2, (-2, -1), ["matrix_norm"]),
]

# Of all entries, the function of the ranks' values.
OF_ALL_ENTRIES = _words("any all max min amax amin count_nonzero _is_any_true")

# Layers that treat every sample by itself, for 1, 2 and 3 dimensions of space; the samples are in dimension 0.
OF_SAMPLES = _words("""
conv{}d conv_transpose{}d avg_pool{}d lp_pool{}d adaptive_avg_pool{}d max_pool{}d max_pool{}d_with_indices
adaptive_max_pool{}d adaptive_max_pool{}d_with_indices
""")

# The same under one name for any number of them.
OF_SAMPLES_IN_ANY_SPACE = _words("interpolate local_response_norm channel_shuffle")

# Layers that compute their last dimensions together: how many, and the names.
OF_LAST_DIMENSIONS: list[tuple[int, list[str]]] = [(3, _words("pixel_shuffle pixel_unshuffle"))]


def _fill() -> None:
    for name in ELEMENTWISE:
        _set(name, elementwise.out_of_place)
    for name in IN_PLACE:
        _set(name, elementwise.in_place)
    for name in CASTS:
        _set(name, elementwise.cast)
    for name in METADATA:
        _set(name, metadata.of_the_whole)
    for name in METADATA_PROPERTIES:
        _set_property(name, metadata.of_the_whole)
    for name in ROWS_PROPERTIES:
        _set_property(name, metadata.of_the_rows)
    _set_property("grad_fn", hooked.grad_fn)
    for position, default, names in ALONG_DIMENSIONS:
        for name in names:
            _set(name, dims.along(name, position, default))
    for name in ("sum", "mean"):
        _set(name, reductions.over(name))
    for name in ("var", "std", "var_mean", "std_mean"):
        _set(name, reductions.variance(name))
    for name in OF_ALL_ENTRIES:
        _set(name, reductions.of_all(name))
    _set("_is_all_true", reductions.all_true)
    for name in ("equal", "allclose"):
        _set(name, reductions.compare)
    for name in OF_SAMPLES:
        for space in (1, 2, 3):
            _set(name.format(space), networks.samples((space + 2,)))
    for name in OF_SAMPLES_IN_ANY_SPACE:
        _set(name, networks.samples((3, 4, 5)))
    for mixed, names in OF_LAST_DIMENSIONS:
        for name in names:
            _set(name, networks.last_dims(mixed))
    for module in _MODULES:
        for func, rule in module.rules():
            RULES[func] = rule
    for position, default, names in ALONG_DIMENSIONS:
        QUICK.update((func, quick.along(position, default)) for name in names for func in _named(name))
    QUICK.update((func, quick.side_by_side) for func, rule in RULES.items() if rule is elementwise.out_of_place)
    for func in QUICK:
        if "inplace" in getattr(getattr(func, "__code__", None), "co_varnames", ()):  # of torch.nn.functional
            QUICK[func] = quick.may_write
    QUICK.update(quick.rules())


def _set(name: str, rule: Rule) -> None:
    for func in _named(name):
        RULES[func] = rule


def _named(name: str) -> Iterator[Any]:
    for owner in _OWNERS if not name.startswith("__") else (torch.Tensor,):
        func = getattr(owner, name, None)
        if callable(func):
            yield func


def _set_property(name: str, rule: Rule) -> None:
    descriptor = getattr(torch.Tensor, name, None)
    if hasattr(descriptor, "__get__"):
        RULES[descriptor.__get__] = rule  # type: ignore[union-attr]


_fill()
