"""The local view: DDP around the script's models, DistributedSampler around its loaders, and values of one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel.data_parallel import DataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import has_torch_function_unary
from torch.utils.data import DataLoader

from ..batch.crossings import replicate
from ..batch.rules.autograd_calls import as_list
from ..calling.batch_norm import over_all_rows
from ..errors import BatchError
from ..gradients.averages import average
from ..gradients.graphs import leaves_of
from ..ledger import script_line
from ..loading.plan import is_distributed
from ..local.local_numbers import digest
from ..local.session import LocalSession
from ..patch import Args, Kwargs, Patch
from ..session import Session
from .below_modes import is_heard
from .data_loader import underlying_iter

_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def _iterate(session: LocalSession, wrapped: Any, instance: DataLoader[Any], args: Args, kwargs: Kwargs) -> Any:
    if session.world.fetching.get():  # within a dataset: this rank is at a row of its own
        return wrapped(*args, **kwargs)
    return session.local_loaders.iterate(underlying_iter(wrapped), instance)


def _iterate_stateful(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if not is_distributed(instance):
        raise BatchError(
            f"{script_line()}: a StatefulDataLoader keeps its position for checkpoints, so the local view cannot deal "
            "its rows, and every rank would train on the same ones. Write StatefulDataLoader(data, batch_size // "
            "ddp_patch.world_size(), sampler=DistributedSampler(data)), or view='global'."
        )
    session.world.ledger.has_grown = True
    return wrapped(*args, **kwargs)


def _length(session: LocalSession, wrapped: Any, instance: DataLoader[Any], args: Args, kwargs: Kwargs) -> int:
    return session.local_loaders.length(wrapped, instance)


def _add_param_group(session: LocalSession, wrapped: Any, instance: Optimizer, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    session.adopt(instance)


def count_steps(session: Session) -> list[Callable[[], None]]:
    """Register the step hooks; returns the functions that remove them."""
    assert isinstance(session, LocalSession)
    models, stepping = session.models, session.stepping

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        models.before_step(optimizer, stepping.begins(optimizer))
        if session.parameter_check is not None:
            session.parameter_check.before_step(optimizer, stepping.around(optimizer))
        if session.rates.are_scaled:
            session.rates.before(optimizer, stepping.around(optimizer))
            if len(args) > 1 or kwargs:
                return session.rates.with_closure(optimizer, args, kwargs)
        return None

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if session.rates.are_scaled:
            session.rates.after(optimizer, stepping.around(optimizer))
        session.stepped(optimizer, stepping.ended(optimizer))

    return [register_optimizer_step_pre_hook(before).remove, register_optimizer_step_post_hook(after).remove]


def _backward(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    if has_torch_function_unary(None) and is_heard(instance, args, kwargs, 1):  # as below_modes, in no call more
        wrapped(*args, **kwargs)
        return
    if not session.models.trained.has_optimizers:
        session.by_hand.note_leaves(leaves_of(args[0] if args else kwargs.get("tensors", ())))
    session.models.backward(wrapped, args, kwargs)


def _grad(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        if type(inputs) is dict:
            return dict(zip(inputs, bind(outputs, list(inputs.values()), *rest, **options), strict=True))
        sources = as_list(inputs)
        session.by_hand.note_leaves(source for source in sources if source.is_leaf)
        trained = [index for index, source in enumerate(sources) if session.models.averages(source)]
        if not trained or session.models.in_backward:
            return wrapped(outputs, sources, *rest, **options)
        weights = session.models.weights
        now, weights.is_backward = weights.begin(), True
        try:
            values = list(wrapped(outputs, sources, *rest, **options))
        finally:
            weights.is_backward = False
        weighted = [values[i] if now is None or values[i] is None else values[i] * now.weight for i in trained]
        means = average([sources[index] for index in trained], weighted, session.world)
        for index, mean in zip(trained, means, strict=True):
            # What comes back to it through losses of the ranks' own rows is averaged as well.
            values[index] = mean if mean is None else replicate(mean)
        return tuple(values)

    return bind(*args, **kwargs)


def _batch_norm(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Tensor:
    def bind(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        its = session.models.statistics
        if training and session.options.sync_batchnorm and its.are_of_all(session.models.inside, running_mean, weight):
            its.no_grad_syncs += not torch.is_grad_enabled()
            return over_all_rows(input, running_mean, running_var, weight, bias, momentum, eps)
        result: Tensor = wrapped(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return result

    return bind(*args, **kwargs)


def _update_bn(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    with session.models.statistics.renewed():
        wrapped(*args, **kwargs)


def _parallel(session: LocalSession, wrapped: Any, instance: DataParallel[Any], args: Args, kwargs: Kwargs) -> None:
    def build(module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        device = session.job.device
        wrapped(module, *((device_ids, output_device) if device.type == "cpu" else ([device], device)), dim)

    build(*args, **kwargs)


def _called_in_parallel(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(
        module: nn.Module,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        positional = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        positional, keywords = session.device_map.bring((positional, module_kwargs or {}))
        return module(*positional, **keywords)

    return bind(*args, **kwargs)


def _print(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    if session.rank_zero.in_lockstep() and session.owners.caller() == "script":
        session.local_numbers.note_output("printed", " ".join(map(str, args)))


def _logged(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    if session.rank_zero.in_lockstep():
        (record,) = args
        with contextlib.suppress(Exception):  # a message that cannot be put together, which logging reports
            session.local_numbers.note_output("logged", record.getMessage())
    wrapped(*args, **kwargs)


def _shown(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.rank_zero.in_lockstep():
        session.local_numbers.note_output("logged", digest((args, kwargs)))
    return wrapped(*args, **kwargs)


def _truth(session: LocalSession, wrapped: Any, instance: Tensor, args: Args, kwargs: Kwargs) -> bool:
    result: bool = wrapped(*args, **kwargs)
    if not session.models.is_at_work() and session.rank_zero.in_lockstep() and session.owners.caller() == "script":
        session.local_numbers.note_output("branched on", str(result))
    return result


def _alike(session: LocalSession, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if not session.rank_zero.in_lockstep():  # a dataset that loads this rank's rows
        return wrapped(*args, **kwargs)
    with session.generators.shared():
        return wrapped(*args, **kwargs)


_INITS = (
    *("uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_"),
    *("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"),
)
_DATA, _OPTIMIZER = "torch.utils.data.dataloader", "torch.optim.optimizer"
_DEALS = "reads this rank's rows, as under a DistributedSampler with set_epoch"
_PARALLEL = "torch.nn.parallel.data_parallel"

PATCHES = (
    Patch(_DATA, "DataLoader.__iter__", _iterate, _DEALS),
    Patch(_DATA, "DataLoader.__len__", _length, "counts the batches of a rank; of the one that has most"),
    Patch(
        _STATEFUL,
        "StatefulDataLoader.__iter__",
        _iterate_stateful,
        "refused without a sampler",
        when_imported=_STATEFUL,
    ),
    Patch(_PARALLEL, "DataParallel.__init__", _parallel, "binds to this rank's device"),
    Patch(_PARALLEL, "data_parallel", _called_in_parallel, "calls the module"),
    Patch(_OPTIMIZER, "Optimizer.add_param_group", _add_param_group, "tells which parameters are trained"),
    Patch("torch.autograd", "grad", _grad, "averages gradients of the model's parameters"),
    Patch("torch.autograd", "backward", _backward, "sees what DDP does not average"),
    Patch("torch.nn.functional", "batch_norm", _batch_norm, "sees the rows of all ranks in a model, as SyncBatchNorm"),
    Patch(
        "torch.optim.swa_utils",
        "update_bn",
        _update_bn,
        "statistics of all ranks' rows, also in a copy of a model",
        when_imported="torch.optim.swa_utils",
    ),
    *(Patch("torch.nn.init", name, _alike, "draws what all ranks draw") for name in _INITS),
    Patch(
        "torch.utils.data.dataset",
        "random_split",
        _alike,
        "draws what all ranks draw",
        also=("torch.utils.data:random_split",),
    ),
    Patch("builtins", "print", _print, "rank 0 is heard; the report names what the ranks print differently"),
    Patch("logging", "Logger.handle", _logged, "the report names what the ranks log differently"),
    *(
        Patch(
            writer, f"SummaryWriter.{name}", _shown, "the report names what differs on the ranks", when_imported=writer
        )
        for writer in ("torch.utils.tensorboard.writer", "tensorboardX.writer")
        for name in ("add_scalar", "add_scalars", "add_histogram", "add_text")
    ),
    Patch("torch", "Tensor.__bool__", _truth, "the report names what the ranks decide differently"),
)
