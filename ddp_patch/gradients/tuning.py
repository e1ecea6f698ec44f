"""Options that are chosen by measurement: ``bucket_cap_mb``, ``gradient_as_bucket_view`` and ``comm_hook`` as "auto".

The first steps of each model run under the values in turn, one model after the other; a step's backwards are timed on
every rank, and one exchange of the times settles an option, alike on all ranks.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.world import World
from ..errors import GradientError
from ..ledger import script_line
from ..option_forms import AUTO
from ..options import Options
from .kept_gradients import KeptGradients
from .option_trial import DEFAULTS, Built, OptionTrial

_VIEW = "gradient_as_bucket_view"
_MOST_OTHERS = 100  # steps of other models while one that is tried has none


class Tuning:
    """What is tried for the models of a session."""

    def __init__(self, options: Options, world: World, is_compiled: Callable[[], bool]) -> None:
        """Begin without models.

        Args:
            options: of the session.
            world: the ranks.
            is_compiled: tells whether anything is compiled: that would have to be done anew for each value.
        """
        self.is_on = any(getattr(options, name) == AUTO for name in DEFAULTS)
        self._options = options
        self._plain = Built(options)
        self._world = world
        self._is_compiled = is_compiled
        self._models: list[_Model] = []  # in the order in which they were met, alike on every rank
        self._others = 0  # steps of others since the one that is tried had one
        self._began: float | None = None

    def built(self, module: nn.Module, name: str, parameters: Sequence[Tensor]) -> Built:
        """Give what a DDP that is being made is to be built with.

        Args:
            module: that it is for.
            name: of that, in words.
            parameters: that it reduces.
        """
        if not self.is_on:
            return self._plain
        model = self._of(module)
        if model is None:
            self._forget()
            size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
            model = _Model(module, name, OptionTrial(self._options, size))
            self._models.append(model)
        model.parameters = [weakref.ref(parameter) for parameter in parameters]
        if self._options.gradient_as_bucket_view == AUTO:
            model.kept = model.kept or KeptGradients(parameters)
            model.kept.on_buckets_rebuilt()
        model.built = model.trial.built
        return model.built

    def wants(self, module: nn.Module, built: Built) -> bool:
        """Tell whether a module's DDP is to be built anew, with other values."""
        model = self._of(module) if self.is_on else None
        return model is not None and model.trial.built is not built

    # --- steps --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A backward of the script begins.

        Raises:
            GradientError: when it would overwrite gradients that the script keeps.
        """
        if not self.is_on:
            return
        for model in self._models:
            if model.kept is not None and model.kept.on_backward_begin():
                raise GradientError(
                    f"{script_line()}: the script still holds a gradient of an earlier step of {model.name}, whose "
                    f"memory this backward would write to, since {_VIEW}='auto' was found to be faster on. Write "
                    f"{_VIEW}=False, or keep copies: p.grad.clone()."
                )
        self._synchronize()
        self._began = perf_counter()

    def end(self) -> None:
        """It has ended."""
        if self._began is None:
            return
        self._synchronize()
        seconds = perf_counter() - self._began
        self._began = None
        for model in self._models:
            model.seconds += seconds
            if model.kept is not None:
                model.kept.on_backward_end(bool(model.trial.built.options.gradient_as_bucket_view))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped. Every rank comes here at the same point of the script."""
        if not self.is_on:
            return
        model = self._tried()
        if model is None or not model.seconds:
            return
        if not model.is_trained_by(optimizer):
            self._others += 1
            if self._others > _MOST_OTHERS:
                self._give_up(model, "not tried any further: it is not trained any more")
            return
        self._others = 0
        seconds, model.seconds = model.seconds, 0.0
        if model.built is not model.trial.built:
            return  # its DDP could not be built anew yet
        if self._is_compiled():
            self._give_up(model, "not tried: torch.compile would compile anew for each value")
        elif model.trial.stepped(seconds):
            self._settle(model)
        while model.trial.next_option() is not None and not self._begin(model):
            pass

    def _tried(self) -> _Model | None:
        return next((model for model in self._models if not model.trial.is_over), None)

    def _of(self, module: nn.Module) -> _Model | None:
        return next((model for model in self._models if model.module() is module), None)

    def _give_up(self, model: _Model, why: str) -> None:
        model.trial.give_up()
        if not model.trial.built.options.gradient_as_bucket_view:
            model.kept = None
        self._others = 0
        self._say(model, "options by measurement", why)

    def _forget(self) -> None:
        """Let go of models that are gone on every rank."""
        if not self._models:
            return
        gc.collect()  # DDP is in cycles, and a rank's garbage collector comes by when it likes
        of_ranks = [entry[0] for entry in self._world.share([[model.module() is None for model in self._models]])]
        are_gone = [all(flags) for flags in zip(*of_ranks, strict=True)]
        self._models = [model for model, is_gone in zip(self._models, are_gone, strict=True) if not is_gone]

    def _begin(self, model: _Model) -> bool:
        name = model.trial.next_option()
        assert name is not None
        if name == _VIEW and any(entry[0] for entry in self._world.share([model.keeps])):
            self._say(model, model.trial.skip(), "False: the script keeps gradients of earlier steps")
            model.kept = None
            return False
        if model.trial.begin():
            self._say(model, name, f"still being tried when this was written; it takes {model.trial.length} steps")
            return True
        self._say(model, name, f"{model.trial.values[0]}: all gradients are in one bucket, whatever its size")
        return False

    def _settle(self, model: _Model) -> None:
        name, values = model.trial.name, model.trial.values
        assert name is not None
        # Each rank sees what it keeps itself, as rank 0 alone may for its log.
        entries = self._world.share([model.trial.times(), model.keeps])
        by_rank, keeps = [entry[0] for entry in entries], any(entry[1] for entry in entries)
        chosen, times = model.trial.choose(by_rank, refused=name == _VIEW and keeps)
        if name == _VIEW and not chosen:
            model.kept = None
        taken = dict(zip(values, times, strict=True))
        others = ", ".join(f"{1000 * its:.2f} ms with {value}" for value, its in taken.items() if value != chosen)
        self._say(
            model,
            name,
            f"{chosen}: {1000 * taken[chosen]:.2f} ms for a step's backwards on the slowest rank; {others}; "
            f"{times[0] / taken[chosen]:.2f} times as fast as with {values[0]}",
        )

    def _say(self, model: _Model, name: str, text: str) -> None:
        self._world.ledger.choices[f"{name} of {model.name}"] = text

    def _synchronize(self) -> None:
        if self._world.accelerated and self._tried() is not None:
            torch.accelerator.synchronize()


class _Model:
    def __init__(self, module: nn.Module, name: str, trial: OptionTrial) -> None:
        self.module = weakref.ref(module)
        self.name = name
        self.trial = trial
        self.parameters: list[weakref.ref[Tensor]] = []
        self.built: Built | None = None  # what its DDP was built with
        self.kept: KeptGradients | None = None
        self.seconds = 0.0  # of backwards since its last step

    def is_trained_by(self, optimizer: Any) -> bool:
        """Tell whether an optimizer has parameters of it."""
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return any(id(parameter()) in ids for parameter in self.parameters)

    @property
    def keeps(self) -> bool:
        """Whether the script was seen to keep gradients on this rank."""
        return self.kept is not None and self.kept.found
