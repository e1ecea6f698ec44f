"""Every private name of torch and Accelerate that ddp_patch depends on: a new version says here what is gone."""

import ast
from pathlib import Path

import accelerate
import pytest
import torch
import torch._dynamo.trace_rules
import torch.distributed.distributed_c10d
import torch.jit._builtins
import torch.utils._python_dispatch
import torch.utils.data._utils.fetch

PACKAGE = Path(__file__).parent.parent / "ddp_patch"
WITHOUT_TORCH = ("check", "migrate", "source")

# Read in torch 2.13 and Accelerate 1.15. Dotted names, as the source reaches them, and what each is needed for.
NAMES = {
    "torch.Tensor._make_wrapper_subclass": "a batch: a tensor with the global shape and no memory of its own",
    "torch._C.DisableTorchFunction": "methods that no function mode hears of",
    "torch._C.DisableTorchFunctionSubclass": "torch's function below our override, for subclasses alone",
    "torch._C.TensorBase.data": "the descriptor behind .data, watched while there are replicas, or rows that were taken of batches",
    "torch._C.TensorBase.grad": "the descriptor behind Tensor.grad, which is watched while gradients wait",
    "torch._C._autograd": "hooks of saved tensors: whether a script has some, and to take ours out in time (profile)",
    "torch._C._dynamo.eval_frame.get_eval_frame_callback": "whether TorchDynamo traces",
    "torch._C._construct_storage_from_data_pointer": "what stands for a whole batch while it is traced, without memory",
    "torch._C._is_torch_function_enabled": "what rules do below our override",
    "torch._C._set_grad_enabled": "no_grad() in a graph",
    "torch._dynamo.external_utils.__file__": "a file whose functions TorchDynamo does not pass over",
    "torch._ops.HigherOrderOperator": "functions in a graph that have graphs of their own",
    "torch._dynamo.eval_frame.OptimizeContext.__init__": "whether anything is to be compiled",
    "torch._dynamo.eval_frame.cached_backends": "whether anything was, before ddp_patch was imported",
    "torch._C._storage_Use_Count": "whether the script keeps gradients in the memory of DDP's buckets",
    "torch._C._is_tracing": "whether torch.jit.trace runs, asked in each call of a model",
    "torch._C._nn._parse_to": "what module.to(batch) asks for a type and a device",
    "torch._C._functorch.peek_interpreter_stack": "whether vmap or grad of torch.func run",
    "torch._C._functorch.is_batchedtensor": "vectors that vmap goes over, in torch.autograd.grad",
    "torch._C._functorch.is_functorch_wrapped_tensor": "gradients that jacrev and its kin take by themselves",
    "torch._C._FunctionBase": "what Function.apply comes to where no transform of torch.func runs",
    "torch._C._functorch.get_unwrapped": "all of such vectors",
    "torch._C._functorch.maybe_get_bdim": "along which dimension vmap goes",
    "torch._C._functorch.maybe_get_level": "which vmap does",
    "torch._C._functorch._add_batch_dim": "what such products are handed back to vmap by",
    "torch._functorch.eager_transforms._wrap_tensor_for_grad": "where tensors enter grad, vjp and their kin",
    "torch._functorch.vmap._create_batched_inputs": "where tensors enter vmap",
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack": "batches that a transform closes over, gathered",
    "torch.utils._python_dispatch._disable_current_modes": "collectives that make_fx does not record",
    "torch.autograd.forward_ad._current_level": "whether forward-mode AD runs",
    "torch._C._get_dispatch_mode": "whether torch.export or make_fx trace, or tensors are fake",
    "torch._C._TorchDispatchModeKey.FAKE": "the same",
    "torch._C._TorchDispatchModeKey.PROXY": "the same",
    "torch.hub._get_cache_or_reload": "where torch.hub downloads a repository, so that each host does once",
    "torch._nested_tensor_from_mask_left_aligned": "whether nn.TransformerEncoder would leave out padding",
    "torch._VF": "where nn.functional's functions are looked up (verify)",
    "torch._foreach_mul_": "gradients scaled in one kernel",
    "torch.autograd.Variable._execution_engine": "callbacks at the end of a backward",
    "torch.distributed.distributed_c10d._world.pg_map": "process groups that a script made before",
    "torch.distributed.distributed_c10d._world.default_pg": "the default process group, asked before each collective",
    "torch.jit._builtins._find_builtin": "TorchScript's table of torch's functions, by identity",
    "torch.nn.Module._call_impl": "layers that a trace names (profile)",
    "torch.nn.Module._wrapped_call_impl.__code__": "frames that a debugger does not show",
    "torch._make_per_tensor_quantized_tensor": "quantized rows of all ranks, of the whole numbers that travel",
    "torch.nn.modules._functions.BackwardHookFunction": "what module hooks of a backward see, as batches",
    "torch.nn.modules.batchnorm._BatchNorm": "layers that see the whole batch",
    "torch.nn.modules.dropout._DropoutNd": "layers that draw",
    "torch.nn.modules.instancenorm._InstanceNorm": "layers with running statistics",
    "torch.nn.modules.module._has_any_global_hook": "hooks on all modules",
    "torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model": "buffers that DDP leaves",
    "torch.utils._python_dispatch.TorchDispatchMode": "operations below autograd, observed",
    "torch.utils.data.DataLoader._get_iterator": "loaders that change what their iterator gives",
    "torch.utils.data._utils.collate.default_collate_fn_map.items": "what default_collate was told of",
    "torch.utils.data._utils.collate.default_collate_fn_map": "likewise; its docstring has scripts write to it",
    "torch.utils.data._utils.fetch._MapDatasetFetcher": "rows that are fetched (verify)",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__": "the only name that a loader's iterators share",
}


def a_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    return Twice


def a_node():
    return (torch.ones(1, requires_grad=True) * 2).grad_fn


def an_optimizer_that_stepped():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    return optimizer


# Attributes of objects, with such an object.
ATTRIBUTES = {
    "_backward_cls": a_function,
    "_backward_hooks": lambda: torch.ones(1, requires_grad=True),
    "_cdata": lambda: torch.ones(1).untyped_storage(),
    "_check_reducer_finalized": lambda: torch.nn.parallel.DistributedDataParallel,
    "_buffers": lambda: torch.nn.BatchNorm1d(1),
    "_call_impl": lambda: torch.nn.Linear(1, 1),
    "_disallowed_callable_ids": lambda: torch._dynamo.trace_rules,
    "_forward_hooks": lambda: torch.nn.Linear(1, 1),
    "_forward_pre_hooks": lambda: torch.nn.Linear(1, 1),
    "_flat_weights": lambda: torch.nn.GRU(1, 1),
    "_get_iterator": lambda: torch.utils.data.DataLoader,
    "_get_sequence_number_for_group": lambda: torch.distributed.ProcessGroup,
    "_is_full_backward_hook": lambda: torch.nn.Linear(1, 1),
    "_base": lambda: torch.ones(2)[0],
    "_iterator": lambda: torch.utils.data.DataLoader([1]),
    "_is_view": lambda: torch.ones(1),
    "_metadata": lambda: torch.nn.Linear(1, 1).state_dict(),
    "_next_index": lambda: torch.utils.data.dataloader._BaseDataLoaderIter,
    "_nnz": lambda: torch.eye(2).to_sparse(),
    "_opt_called": an_optimizer_that_stepped,
    "_overloadpacket": lambda: torch.ops.aten.add.Tensor,
    "_pop_saved_tensors_default_hooks": lambda: torch._C._autograd,
    "_push_saved_tensors_default_hooks": lambda: torch._C._autograd,
    "_post_accumulate_grad_hooks": lambda: torch.ones(1, requires_grad=True),
    "_rebuild_buckets": lambda: torch.distributed.Reducer,
    "_register_builtin_comm_hook": lambda: torch.nn.parallel.DistributedDataParallel,
    "_reset": lambda: torch.utils.data.dataloader._BaseDataLoaderIter,
    "_saved_tensors_hooks_disable": lambda: torch._C._autograd,
    "_saved_tensors_hooks_is_enabled": lambda: torch._C._autograd,
    "_schema": lambda: torch.ops.aten.add.Tensor,
    "_sequence_nr": a_node,
    "_set_sequence_nr": a_node,
    "_shared_state": lambda: accelerate.state.PartialState,
    "_type": lambda: torch.jit.script(torch.nn.Linear(1, 1))._c,
    "_top_saved_tensors_default_hooks": lambda: torch._C._autograd,
    "_version": lambda: torch.ones(1),
}
# Of Python and other libraries; and of our own objects, met in another file.
OTHERS = {
    *("_as_dict", "_current_frames", "_exit", "_getframe", "_getval_except", "_handlerList", "_run_exitfuncs"),
    *(
        "_args_from_interpreter_flags",
        "_urandom",
        "_default_metadata",
        "_unwatch",
        "_ddp_patch_counts",
        "_ddp_patch_rows",
        "_ddp_patch_rule",
        "_self_parent",
        "_self_span",
        "_self_wrapper",
    ),
    "_exc_queue",  # of Ray Train's thread runner
}


def is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def used():
    """Give the private names of torch and Accelerate in the source, and private attributes of objects that are not self."""
    dotted, attributes, own = set(), set(), set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in WITHOUT_TORCH:
            continue
        tree = ast.parse(path.read_text())
        known = dict(imported(tree))
        dotted |= {name for name in known.values() if is_private(name)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
            elif isinstance(node, ast.Attribute):
                name = full(node, known)
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    own.add(node.attr)
                elif name and is_private(name):
                    dotted.add(name)
                elif not name and is_private(node.attr):
                    attributes.add(node.attr)
    return dotted, attributes - own


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in ("torch", "accelerate"):
                    yield (
                        alias.asname or alias.name.partition(".")[0],
                        alias.name if alias.asname else alias.name.partition(".")[0],
                    )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("torch", "accelerate"):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def full(node, known):
    if isinstance(node, ast.Name):
        return known.get(node.id)
    before = full(node.value, known) if isinstance(node, ast.Attribute) else None
    return before and f"{before}.{node.attr}"


@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_is_there(name):
    found = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_private_attribute_is_there(name):
    getattr(ATTRIBUTES[name](), name)


def test_the_source_depends_on_no_other_private_name():
    dotted, attributes = used()
    assert {name for name in dotted if not any(f"{known}.".startswith(f"{name}.") for known in NAMES)} == set()
    assert attributes == {*ATTRIBUTES, *OTHERS}
