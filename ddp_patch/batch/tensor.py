"""BatchTensor: the whole batch as the script sees it, this rank's rows as memory holds it.

Functions that keep rows apart are in ``rules``; every other one sees the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import BatchError, DdpPatchError
from ..structure import leaves
from .aliases import ALIASED, EXPORTS, can_delay_copy
from .below_torch import computed_below
from .forms import copy_whole_to_rows, full_tensor, mark_in_sync, whole_in_worker
from .layout import Layout
from .likeness import LikeTensor
from .names import Unanswered, as_int, as_rules_have_them, function_name, writes_in_place
from .nested import nested
from .shared_memory import in_shared_memory, note_sharing
from .sizes import numbers
from .transforms import is_transformed
from .versions import node_of, note_write, version
from .world import World

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

# torch function -> rule(func, args, kwargs). A rule that cannot do these arguments returns NotImplemented, and the
# whole batch is gathered. Filled by the modules in ``rules``.
RULES: dict[Any, Rule] = {}
# torch function -> what computes the usual calls with fewer questions; None for all others. Likewise.
QUICK: dict[Any, Callable[..., Any]] = {}
AS_EVER = tuple(f"{__package__}.rules.{name}" for name in ("autograd", "autograd_calls", "metadata"))  # if transformed


class BatchTensor(Tensor, metaclass=LikeTensor):
    """A tensor of the global shape of which this rank holds its rows.

    ``size``, ``shape``, ``len``, ``dtype`` and ``device`` answer for the whole batch at no cost. Functions that keep
    rows apart run on the rows; known reductions cost one small all-reduce; everything else gathers the batch.
    """

    _rows: Tensor | None = None
    _whole: Tensor | None = None
    _rows_version: int = 0  # of the rows when both forms were last in sync
    _whole_version: int = 0
    _nodes: tuple[int, int] = (-1, -1)  # that rows and whole were of, likewise, if there were both
    _whole_copy: Tensor | None = None  # what the whole held when its memory was handed to numpy
    _layout: Layout
    _lies_as_whole: bool = False  # in memory as one process has it, and the rows are a copy without its holes
    _is_whole_source: bool | None = False  # the rows are computed from it; False: it from them; None: neither
    _is_slice: bool = False  # the whole is a view of another batch's
    _is_of_size: bool = False  # a forward made it of the batch size
    _is_aliased: bool = False  # its rows may be written to through ``.data``, which counts no version
    _grad: BatchTensor | None = None  # what the script has of ``.grad``, in true scale
    _halved: bool = False  # the gradient hook that undoes the crossing's factor is on the rows

    @staticmethod
    def from_local(rows: Tensor, layout: Layout) -> BatchTensor:
        """Make a batch of this rank's rows; the other ranks hold the rest."""
        batch = _made_like(rows, layout)
        batch._rows, batch._rows_version = rows, version(rows)
        return batch

    @staticmethod
    def from_full(whole: Tensor, layout: Layout) -> BatchTensor:
        """Make a batch of a tensor that every rank has whole."""
        batch = _made_like(whole, layout)
        batch._whole, batch._whole_version = whole, version(whole)
        batch._lies_as_whole = batch._is_whole_source = True
        return batch

    @staticmethod
    def from_both(rows: Tensor, whole: Tensor, layout: Layout) -> BatchTensor:
        """Make a batch of a tensor that every rank has whole, and this rank's rows of it."""
        batch = _made_like(rows, layout)
        batch._rows, batch._whole = rows, whole
        mark_in_sync(batch)
        return batch

    @property
    def forms(self) -> list[Tensor]:
        """The tensors that hold it: this rank's rows, the whole, or both."""
        return [form for form in (self._rows, self._whole) if form is not None]

    def with_forms(self, instead: dict[int, Tensor]) -> BatchTensor:
        """The same batch, held instead of some tensors, by identity, by others that share memory with them."""
        batch = _made_like(self.forms[0], self._layout)
        batch.__dict__.update(self.__dict__, _grad=None)
        batch.hold(instead)
        return batch

    def hold(self, instead: dict[int, Tensor]) -> None:
        """Be held by others: see ``with_forms``."""
        before = self._rows, self._whole
        self._rows, self._whole = (f if f is None else instead.get(id(f), f) for f in before)
        if len(self.forms) == 2 and tuple(map(node_of, before)) == self._nodes:
            self._nodes = node_of(self._rows), node_of(self._whole)  # else one is to be written to, as the other was

    def dim(self) -> int:
        """Without a way through torch: rules ask."""
        return (self._whole if self._rows is None else self._rows).dim()  # type: ignore[union-attr]

    def __copy__(self) -> BatchTensor:
        """Share its memory, without its graph, as ``copy.copy`` has it of tensors."""
        return self.detach().requires_grad_(self.requires_grad)  # type: ignore[return-value]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch function on rows where a rule allows it, on the whole batch otherwise."""
        if World.is_child:
            return func(*nested(whole_in_worker, list(args)), **nested(whole_in_worker, kwargs or {}))
        if World.current is None:
            return _computed(func, args, kwargs or {})
        if (seen := World.current.observation) is None:
            if func in QUICK and not ALIASED and (result := QUICK[func](func, args, kwargs)) is not None:
                return result
            return _computed(func, args, kwargs or {})
        with seen.calling(function_name(func), func in RULES):
            seen.picks.note_use(seen, func, args, kwargs)
            return _computed(func, numbers(args), {name: numbers(value) for name, value in (kwargs or {}).items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types its own as a C function
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse to compute below torch functions, where a gradient would be lost."""
        return computed_below(func, args)


def _made_like(form: Tensor, layout: Layout) -> BatchTensor:
    shape = list(form.shape)
    shape[layout.dim] = layout.total
    # Registered as a wrapper: it owns no memory, so that anything that bypasses the rules fails instead of computing.
    batch: BatchTensor = Tensor._make_wrapper_subclass(BatchTensor, shape, dtype=form.dtype, device=form.device)
    batch._layout = layout
    if World.current is not None and World.current.observation is not None:
        World.current.observation.kept.note_made(batch)
    return batch


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rule = RULES.get(func)
    if getattr(rule, "__module__", None) not in AS_EVER and is_transformed():
        from .constants import on_constants  # noqa: PLC0415 — rarely, and it is made of batches

        return on_constants(func, args, kwargs)
    if rule is None:
        from .trying import unruled  # noqa: PLC0415 — not often, and it is made of batches

        result = unruled(func, args, kwargs)
    else:
        result = by_rule(rule, func, args, kwargs)
    target = kwargs.get("out", args[0] if args else None)
    if isinstance(target, BatchTensor) and (target._is_slice or ALIASED):
        return in_shared_memory(func, args, kwargs, target, result, writes_in_place(func, kwargs))
    return result


def by_rule(rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function by its rule, and on the whole batch where the rule does not apply."""
    args, kwargs = as_rules_have_them(rule, func, args, kwargs)
    world = World.current  # none after disable(), when a batch still knows its shape
    operation, before = 0, None
    if world is not None:
        operation = world.operations = world.operations + 1
        before, world.working_for = world.working_for, func
        world.rules_at_work += 1
        if world.tells_batch_sizes:
            args, kwargs = numbers(args), {name: numbers(value) for name, value in kwargs.items()}
    try:
        result = rule(func, args, kwargs)
        if result is NotImplemented:
            arguments = args, *kwargs.values()
            if (converted := nested(as_int, arguments)) is not arguments:
                result = rule(func, converted[0], dict(zip(kwargs, converted[1:], strict=True)))
    except Unanswered:
        return NotImplemented
    except DdpPatchError:
        raise
    except Exception as error:  # a target out of range in one rank's rows, say
        if world is not None:
            world.check_all_failed(error, f"{function_name(func)} (operation {operation} on batches)")
        raise
    finally:
        if world is not None:
            # What a rule calls is not counted: some ranks may get by another way to where the others are.
            world.working_for, world.operations, world.rules_at_work = before, operation, world.rules_at_work - 1
    if result is NotImplemented:
        from .redealt import dealt_alike  # noqa: PLC0415 — made of batches

        alike = dealt_alike(func, args, kwargs)
        return on_whole(func, args, kwargs) if alike is None else by_rule(rule, func, *alike)
    target = kwargs.get("out", args[0] if args else None)
    rows = target._rows if result is target and isinstance(target, BatchTensor) else None
    if rows is not None and writes_in_place(func, kwargs):
        note_write(rows)
    return result


def on_whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], deal: Callable[[Any], Any] | None = None) -> Any:
    """Gather the arguments, call the function on every rank, and see in-place writes back into the batches.

    Args:
        func: a function of torch.
        args: for it.
        kwargs: likewise.
        deal: makes batches of its results, which are tensors; None where they are not dealt.
    """
    batches: list[BatchTensor] = []
    world = World.get()

    def take(value: Any) -> Any:
        if isinstance(value, BatchTensor):
            batches.append(value)
            return full_tensor(value)
        return value

    with world.working_on_whole(func):
        result = func(*nested(take, args), **nested(take, kwargs))
    seen = world.observation
    if seen is not None and not any(isinstance(leaf, Tensor) for _, leaf in leaves(result)):
        seen.note_value_read()
    elif deal is not None and (dealt := deal(result)) is not None:
        return dealt
    writes = writes_in_place(func, kwargs)
    target = kwargs.get("out", args[0] if args else None)
    written = [leaf._whole for _, leaf in leaves(target) if isinstance(leaf, BatchTensor)] if writes else []
    for whole in written:
        if whole is not None:
            note_write(whole)
    for batch in batches:
        whole = batch._whole
        if whole is not None and (version(whole) != batch._whole_version or any(whole is its for its in written)):
            if whole.shape != batch.shape:
                raise BatchError(
                    f"{function_name(func)} changed the shape of a batch in place from {tuple(batch.shape)} to "
                    f"{tuple(whole.shape)}. Write the form that returns a new tensor."
                )
            if not can_delay_copy(batch):
                copy_whole_to_rows(batch)
    for batch in batches:
        note_sharing(batch, result, getattr(func, "__name__", "") in EXPORTS)
    return nested(lambda value: next((batch for batch in batches if value is batch._whole), value), result)
