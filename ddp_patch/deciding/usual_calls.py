"""Calls that are like the last one of their module: a model is given one batch after another, all of a form and size.

Cutting its arguments, fingerprinting them and looking up the decision would give what they gave then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..batch.forms import to_local
from ..batch.layout import Layout
from ..batch.tensor import BatchTensor
from ..calling.call_mode import CallMode
from ..calling.calls import Call
from ..calling.census import ModuleContents
from ..calling.local_arguments import LocalArgs
from .call_forms import CallForm, Forms
from .fingerprint import Fingerprints
from .trial_verdict import SplitDecision


class UsualCall(NamedTuple):
    """What a call was given that was computed on rows: a batch, and nothing else."""

    layout: Layout
    shape: torch.Size  # of this rank's rows
    dtype: torch.dtype
    requires_grad: bool
    forms: Forms
    form: CallForm
    sizes: Any  # as decisions are remembered by
    decision: SplitDecision


def expected(
    call: Call, local: LocalArgs, forms: Forms, form: CallForm, sizes: Any, decision: SplitDecision
) -> UsualCall | None:
    """Describe a call, if the next one may be like it.

    Args:
        call: of the script.
        local: how its arguments were cut.
        forms: what was decided on its module.
        form: of the call.
        sizes: of its tensors.
        decision: on it.
    """
    is_on_rows = decision.mode is CallMode.ROWS and local.is_of_batches_alone and len(local.args) == 1
    if not is_on_rows or call.gathers_scalars:
        return None
    rows = local.args[0]
    return UsualCall(local.layout, rows.shape, rows.dtype, rows.requires_grad, forms, form, sizes, decision)


def usual(call: Call, contents: ModuleContents, fingerprints: Fingerprints) -> tuple[LocalArgs, SplitDecision] | None:
    """Give how a call's arguments are cut and the decision on it, if it is like the last one; None if not.

    Args:
        call: of the script.
        contents: of the module that is called.
        fingerprints: of modules.
    """
    last: UsualCall | None = contents.usual
    if last is None or len(call.args) != 1 or call.kwargs or call.dim is not None or call.gathers_scalars:
        return None
    batch = call.args[0]
    if type(batch) is not BatchTensor or not (batch._layout is last.layout or batch._layout == last.layout):
        return None
    rows, form = to_local(batch), last.form
    is_like = rows.shape == last.shape and rows.dtype is last.dtype and rows.requires_grad is last.requires_grad
    if not is_like or torch.is_grad_enabled() is not form.with_grad or contents.trainable is not form.trained:
        return None
    stored = last.forms.entries.get(form)
    if stored is None or stored.is_to_be_reported or fingerprints.of(call.module, contents) != form.state:
        return None
    decision = stored.decision if stored.holds_for_all_sizes else stored.by_sizes.get(last.sizes)
    if decision is not last.decision:
        return None
    local = LocalArgs((rows,), {}, last.layout, is_of_batches_alone=True)
    vars(local)["leaves"] = [(call.leaves[0][0], rows)]
    return local, last.decision
