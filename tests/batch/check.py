"""Runs on every rank: compare a call on batches with the same call on the whole, forward and backward."""

import os
import random
import traceback

import call_cases
import cases
import local_cases
import memory_cases
import network_cases
import torch
import tried_cases

from ddp_patch.batch.crossings import local_rows
from ddp_patch.batch.forms import full_tensor
from ddp_patch.batch.layout import Layout
from ddp_patch.batch.tensor import BatchTensor
from ddp_patch.batch.world import World

THOROUGH = bool(os.environ.get("THOROUGH"))
KINDS = (cases, network_cases, memory_cases, call_cases, local_cases, tried_cases)
CASES = {name: case for kind in KINDS for name, case in kind.CASES.items()}
REPEATS = {name: times for kind in KINDS for name, times in kind.REPEATS.items()}


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, (list, tuple)) else []


EVENLY, JOINED, DIFFERENTLY = "evenly", "joined", "differently"
DEALT = (EVENLY, JOINED, DIFFERENTLY)


def layout_of(rows, dim, dealt, r):
    """How rows are dealt: in one run each, or as batches that were joined, of any sizes, or of one and the same."""
    size = World.get().size
    if dealt == EVENLY or r.random() < (0.4 if dealt == DIFFERENTLY else 0):
        return Layout.deal(rows, dim, size)
    pieces = [rows // 2] * 2 if rows % 2 == 0 and r.random() < 0.5 else []
    while sum(pieces) < rows:
        pieces.append(r.randint(1, rows - sum(pieces)))
    layout = Layout.joined([Layout.evenly(piece, dim, size) for piece in pieces], dim)
    return layout if min(layout.counts) > 0 else Layout.deal(rows, dim, size)


def as_batch(tensor, dim, dealt, r):
    layout = layout_of(tensor.shape[dim], dim, dealt, r)
    batch = BatchTensor.from_local(local_rows(tensor, layout).clone(), layout)
    return batch.requires_grad_() if tensor.is_floating_point() else batch


def scalar(outputs, seed):
    total = None
    for index, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        weights = torch.rand(output.shape, generator=torch.Generator().manual_seed(seed + index))
        term = (output * weights).sum()
        total = term if total is None else total + term
    return total


def compare(name, seed, dealt):
    """Returns a complaint, or None."""
    call = CASES[name](random.Random(f"{name}{seed}"))
    r = random.Random(seed)
    world = World.get()
    plain = [t.clone().requires_grad_(t.is_floating_point()) for t, _ in call.inputs]
    wanted = call.function(*plain)
    mixed = [
        t.clone().requires_grad_(t.is_floating_point())
        if dim is None
        else as_batch(t, dim, dealt, r if dealt == DIFFERENTLY else random.Random(seed))
        for t, dim in call.inputs
    ]
    before = world.ledger.collectives["all_gather"]
    got = call.function(*mixed)
    gathers = world.ledger.collectives["all_gather"] - before
    if call.local and gathers and dealt != DIFFERENTLY:
        return f"{gathers} gathers where none is needed"
    if type(got) is not type(wanted) and not isinstance(wanted, torch.Tensor):
        return f"returned {type(got)} instead of {type(wanted)}"
    ours, theirs = tensors_in(got), tensors_in(wanted)
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    for mine, right in zip(ours, theirs, strict=True):
        if (mine.shape, mine.dtype, mine.requires_grad) != (right.shape, right.dtype, right.requires_grad):
            return f"{mine.shape} {mine.dtype} {mine.requires_grad} instead of {right.shape} {right.dtype} {right.requires_grad}"
        value = full_tensor(mine) if isinstance(mine, BatchTensor) else mine
        if not torch.allclose(value.double(), right.double(), rtol=1e-9, atol=1e-9, equal_nan=True):
            return f"value differs by {(value.double() - right.double()).abs().max().item()}"
    loss, right_loss = scalar(ours, seed), scalar(theirs, seed)
    if right_loss is None or not call.grads:
        return None
    loss.backward()
    right_loss.backward()
    for index, (mine, right) in enumerate(zip(mixed, plain, strict=True)):
        if not right.is_floating_point():
            continue
        if (mine.grad is None) != (right.grad is None):
            if right.grad is None or right.grad.abs().sum() == 0:
                continue
            return f"gradient of input {index} is {mine.grad} instead of {right.grad}"
        if mine.grad is None:
            continue
        grad = full_tensor(mine.grad) if isinstance(mine.grad, BatchTensor) else mine.grad
        if not torch.allclose(grad, right.grad, rtol=1e-9, atol=1e-9, equal_nan=True):
            return f"gradient of input {index} differs by {(grad - right.grad).abs().max().item()}"
    return None


def check(names, seeds):
    """Compare many random calls; returns the complaints of this rank."""
    torch.set_default_dtype(torch.float64)
    complaints = []
    for name in names:
        for dealt in DEALT:
            for seed in range(0, REPEATS.get(name, 6) * seeds, 1 if THOROUGH or dealt == EVENLY else 5):
                try:
                    complaint = compare(name, seed, dealt)
                except Exception:
                    complaint = " | ".join(traceback.format_exc().splitlines()[-14:])
                if complaint:
                    complaints.append(f"{name} #{seed}, dealt {dealt}: {complaint}")
                    break
    return complaints
