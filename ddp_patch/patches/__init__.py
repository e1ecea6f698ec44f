"""What is patched: one file per subject, each with a table ``PATCHES`` of rows beside their wrappers.

A wrapper is called as ``wrapper(session, wrapped, instance, args, kwargs)``: the running session, then wrapt's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import extending
from ..patch import Patch
from ..session import Session
from . import (
    activation_checkpointing,
    already_distributed,
    attention_masks,
    autograd,
    batch_norm,
    commands,
    compiled,
    data_loader,
    data_parallel,
    debuggers,
    device,
    dlpack,
    exits,
    files,
    folders,
    hooks,
    hub,
    instance_norm,
    ipython,
    listing,
    local,
    loggers,
    losses,
    modules,
    native_files,
    on_accelerators,
    optimizer,
    packed,
    parallel_functions,
    plots,
    profiles,
    prompts,
    random_states,
    ray_train,
    saving,
    scripted,
    shared,
    signals,
    state_dict,
    system_random,
    tensorboard,
    trackers,
    transformer,
    transforms,
    warned,
    without_cuda,
)

# In the order in which they are applied: first what tells that the script needs none of the rest.
SUBJECTS = (
    already_distributed,
    *(
        data_loader,
        data_parallel,
        parallel_functions,
        optimizer,
        autograd,
        packed,
        instance_norm,
        hooks,
        losses,
        dlpack,
        compiled,
        modules,
    ),
    *(saving, state_dict, device, on_accelerators, without_cuda, system_random, random_states, files, native_files),
    *(hub, profiles),
    *(folders, commands, loggers, prompts, debuggers, ipython, warned, tensorboard, trackers, plots, ray_train),
    *(activation_checkpointing, batch_norm, scripted, transformer, attention_masks, transforms, exits, signals),
)
# Beside the rows, for what is no name.
OTHERS = (compiled.keep_dynamo_out, optimizer.count_steps, plots.keep_off_screen)

# The same in the local view, where models and loaders are hand-written DDP's, and a batch is a tensor.
LOCAL_SUBJECTS = (
    already_distributed,
    local,
    parallel_functions,
    *(saving, state_dict, device, on_accelerators, without_cuda, system_random, random_states, files, native_files),
    *(hub, profiles, folders, commands, loggers, prompts, debuggers, ipython, warned, tensorboard, trackers, plots),
    *(scripted, exits, signals),
)
LOCAL_OTHERS = (compiled.keep_dynamo_out, local.count_steps, plots.keep_off_screen)


def rows(*, has_cuda: bool | None = None, view: str = "global") -> list[Patch]:
    """Give every row of this folder, in the order in which they are applied.

    Args:
        view: of the session.
        has_cuda: of a host with CUDA, or of one without; by default of this one.
    """
    cuda = torch.cuda.is_available() if has_cuda is None else has_cuda
    of_others = without_cuda if cuda else on_accelerators
    return [
        row
        for subject in (SUBJECTS if view == "global" else LOCAL_SUBJECTS)
        if subject is not of_others
        for row in subject.PATCHES
    ]


def begin(session: Session) -> None:
    """Put everything in place."""
    scripted.fill_builtin_table()
    view = session.options.view
    registered = (shared.tracker(module, name) for module, name in extending.trackers)
    session.begin([*rows(view=view), *registered], OTHERS if view == "global" else LOCAL_OTHERS)


def command(argv: Sequence[str]) -> int:
    """``python -m ddp_patch patches``."""
    return listing.command(argv)
