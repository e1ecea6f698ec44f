"""Give each rank its rows: samplers, batch sizes, ``set_epoch``."""

from __future__ import annotations

import ast
import re
from itertools import count

from ..loaders import Loader, explicit_sampler, is_put_away
from ..plan import Plan
from ..tree import dotted, keyword, tail
from ..undealt import writes
from . import batches, epochs, whole_alike
from .draws import SAMPLED

_WRITTEN = "these are this rank's rows only, since a training takes them of the same loader"


def apply(plan: Plan) -> None:
    """Rewrite every DataLoader, and what has its number of rows."""
    batches.downloads(plan)
    for loader in plan.loaders.values():
        _Deal(plan, loader).rewrite()
    _unknown(plan)
    batches.shapes(plan)


def _unknown(plan: Plan) -> None:
    """Say of which loaders nobody here knows whose rows they give."""
    pulled = [(c, c.args[0]) for c in plan.script.calls() if tail(c) in ("iter", "cycle") and c.args]
    for node, over in [*plan.flow.loader_loops.items(), *pulled]:
        if (
            (isinstance(node, ast.For) or plan.in_training(node))
            and plan.flow.loader(over) is not None
            and not plan.flow.loader_calls(over)
        ):
            name = plan.script.code(over)
            plan.script.todo(node, f"{name} is made in another file: see to it there that each rank gets its rows")


class _Deal:
    """How the rows of one loader come to the ranks."""

    def __init__(self, plan: Plan, loader: Loader) -> None:
        self.plan, self.loader, self.call, self.script = plan, loader, loader.call, plan.script
        self.name, self.trains = loader.name, loader.trains

    def rewrite(self) -> None:
        if self.loader.whole:
            whole_alike.apply(self.plan, self.loader)
            return
        if self.loader.foreign:
            name = self.script.code(self.loader.node)
            self.script.after(self.call, f"{name} = {self.plan.use('rank_loader')}({name})")
            epochs.apply(self.plan, self.loader)
            return
        if self._is_left():
            self.plan.draws_alike = self.plan.draws_alike or self.loader.trains
            return
        if (batches := keyword(self.call, "batch_sampler")) is not None:
            self._batches(batches)
            return
        for loop in self.loader.loops if self.trains else ():
            written = any(writes(self.script, self.plan.flow, n, loop) for n in ast.walk(loop))
            if written and not self.plan.trains(loop):
                self.script.todo(loop, f"{_WRITTEN}: write them of a loader of its own")
        for taken in self.loader.comprehensions if self.trains else ():
            self.script.todo(taken.iter, f"{_WRITTEN}: take them of a loader of its own")
        for function, call in self.loader.handed:
            self.script.todo(call, f"{function}() of another file gets this loader, and sees this rank's rows only")
        dataset = keyword(self.call, "dataset", 0)
        assert dataset is not None
        if self.loader.stream:
            self.script.replace(dataset, f"{self.plan.use('RankStream')}({self.script.code(dataset)})")
            self._share()
            return
        data = self._hoisted(dataset)
        if not self.trains:
            size = self._size()
            rows = self.script.code(size) if size is not None else "1"
            self._sampler(f"{self.plan.use('rank_rows')}(len({data}), {'1' if rows == 'None' else rows})")
            return
        if self.loader.hides:
            self._hidden(data)
            return
        if (sampler := explicit_sampler(self.script, self.call)) is not None:
            self._drawn(sampler)
        else:
            self._distributed(data)
        self._share()

    def _distributed(self, data: str) -> None:
        shuffle = keyword(self.call, "shuffle", 2)
        order = self.script.code(shuffle) if shuffle is not None else "False"
        name = self._sampler_name()
        last = self.loader.drop_last
        dropped = f", drop_last={self.script.code(last)}" if last is not None else ""
        self.script.before(self.call, f"{name} = DistributedSampler({data}{self._ranks()}, shuffle={order}{dropped})")
        self._sampler(name)
        if order != "False":
            epochs.apply(self.plan, self.loader)

    def _batches(self, batches: ast.expr) -> None:
        """Take this rank's part of each batch that is drawn."""
        self.script.note(self.script.statement(self.call), SAMPLED)
        start, end = self.script.span(batches)
        self.script.put(start, start, f"{self.plan.use('RankBatches')}(")
        self.script.put(end, end, ")")

    def _ranks(self) -> str:
        accelerate = self.plan.dialect.name == "accelerate"
        return ", accelerator.num_processes, accelerator.process_index" if accelerate else ""

    def _is_left(self) -> bool:
        """Leave what cannot be told to a person."""
        call, todo = self.call, self.plan.script.todo
        inside = (ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
        if any(isinstance(n, inside) for n in self.script.above(call)):
            todo(call, "several DataLoaders are made at once: write each out by itself, then migrate again")
            return True
        if is_put_away(self.script, self.loader):
            todo(
                call,
                "a dictionary or a list holds it, where it is not followed: loop over it by name, then migrate again",
            )
            return True
        if keyword(call, "dataset", 0) is None:
            todo(
                call,
                "the arguments of this DataLoader are not seen here: give it a rank's sampler and share of the batch",
            )
            return True
        if self.loader.hides and not self._can_be_copied():
            todo(call, f"**{self.loader.hides} may hold batch_size or shuffle. Write them out, then migrate again")
            return True
        sampler = explicit_sampler(self.script, call)
        if sampler is not None:
            made = {tail(c) for c in self.plan.bindings.origins(sampler)} | {tail(sampler)}
            if not made & whole_alike.SAMPLERS:
                todo(call, "a sampler of one's own: every rank must draw alike and take its share of what was drawn")
                return True
        return False

    def _can_be_copied(self) -> bool:
        """Tell whether a dictionary that hides arguments can be asked for them when the script runs."""
        stars = [k.value for k in self.call.keywords if k.arg is None]
        return len(stars) == 1 and isinstance(stars[0], ast.Name)

    def _hidden(self, data: str) -> None:
        """Ask a dictionary for its order and batch size when the script runs."""
        unpacked = next(k.value for k in self.call.keywords if k.arg is None)
        name, options = self._sampler_name(), self._alone(f"{self.name or 'loader'}_options")
        shuffle, last = keyword(self.call, "shuffle", 2), keyword(self.call, "drop_last")
        order = self.script.code(shuffle) if shuffle is not None else f'{options}.pop("shuffle", False)'
        dropped = self.script.code(last) if last is not None else f'{options}.get("drop_last", False)'
        lines = [
            f"{options} = dict({self.loader.hides})",
            f"{name} = DistributedSampler({data}{self._ranks()}, shuffle={order}, drop_last={dropped})",
        ]
        sized = keyword(self.call, "batch_size", 1) is not None
        if not sized and not self.plan.per_device:
            lines.append(f'{options}["batch_size"] = {self.plan.use("rank_share")}({options}["batch_size"])')
        self.script.before(self.call, *lines)
        self.script.replace(unpacked, options)
        self._sampler(name)
        epochs.apply(self.plan, self.loader)
        if sized:
            self._share()

    def _hoisted(self, dataset: ast.expr) -> str:
        if dotted(dataset):
            return self.script.code(dataset)
        statement = self.script.statement(self.call)
        name = self._alone(f"{self.name or 'loader'}_data")
        self.script.before(statement, f"{name} = {self.script.code(dataset)}")
        self.script.replace(dataset, name)
        return name

    def _sampler_name(self) -> str:
        base = re.sub(r"_?(data_?loader|loader|dl|iter|iterator|gen|generator)$", "", self.name, flags=re.I)
        taken = {n.id for n in self.script.all(ast.Name)}
        name = f"{base}_sampler" if base else "sampler"
        return self._alone(name if name not in taken else f"ddp_{name}")

    def _alone(self, name: str) -> str:
        """Number a name that another loader of the same statement has: ``{"a": DataLoader(a), "b": DataLoader(b)}``."""
        statement, taken = self.script.statement(self.call), {n.id for n in self.script.all(ast.Name)}
        numbered = (name if n == 1 else f"{name}_{n}" for n in count(1))
        found = next(n for n in numbered if n not in taken and (statement, n) not in self.plan.samplers)
        self.plan.samplers.add((statement, found))
        return found

    def _sampler(self, text: str) -> None:
        shuffle = next((k for k in self.call.keywords if k.arg == "shuffle"), None)
        sampler = next((k for k in self.call.keywords if k.arg == "sampler"), None)
        if sampler is not None:
            self.script.replace(sampler.value, text)
            if shuffle is not None:
                self.script.replace(shuffle.value, "False")
        elif shuffle is not None:
            self.script.replace(shuffle, f"sampler={text}")
        elif len(self.call.args) > 2:
            self.script.replace(self.call.args[2], f"sampler={text}")
        else:
            last = [*self.call.args, *self.call.keywords][-1]
            end = self.script.span(last)[1]
            stars = next((k for k in self.call.keywords if k.arg is None), None)
            if stars is not None:
                end = self.script.span(self.call.args[-1])[1] if self.call.args else end
            self.script.put(end, end, f", sampler={text}")

    def _drawn(self, sampler: ast.expr) -> None:
        if isinstance(sampler, ast.Constant):
            return
        self.script.note(self.script.statement(self.call), SAMPLED)
        last = self.loader.drop_last
        start, end = self.script.span(sampler)
        self.script.put(start, start, f"{self.plan.use('RankSampler')}(")
        self.script.put(end, end, f", drop_last={self.script.code(last)})" if last is not None else ")")

    def _size(self) -> ast.expr | None:
        size = keyword(self.call, "batch_size", 1)
        return self.loader.sizes[0] if size is None and self.loader.sizes else size

    def _share(self) -> None:
        if self.plan.per_device:
            return
        size = self._size()
        if size is None:
            self.script.todo(
                self.call, "batches of one row cannot be shared out: each rank takes one, so the batch grows"
            )
        elif self._is_of_several(size):
            unpacked = next(k for k in self.call.keywords if k.arg is None).value
            name = self.script.code(unpacked)
            code = self.script.code(size) if isinstance(size, ast.Constant) else f'{name}["batch_size"]'
            self.script.replace(unpacked, f'{{**{name}, "batch_size": {self.plan.use("rank_share")}({code})}}')
        elif not (isinstance(size, ast.Constant) and size.value is None):
            self.script.replace(size, f"{self.plan.use('rank_share')}({self.script.code(size)})")

    def _is_of_several(self, size: ast.expr) -> bool:
        """Tell whether a batch size stands in a dictionary that others read, who keep it as it is."""
        if size not in self.loader.sizes:
            return False
        others = (loader for loader in self.plan.loaders.values() if loader is not self.loader)
        names = {dotted(k.value) for k in self.call.keywords if k.arg is None} - {""}
        return any(size in loader.sizes and not loader.trains for loader in others) or any(
            dotted(n) in names and isinstance(n.ctx, ast.Load) and not isinstance(self.script.parents[n], ast.keyword)
            for n in self.script.all(ast.Name, ast.Attribute)
        )
