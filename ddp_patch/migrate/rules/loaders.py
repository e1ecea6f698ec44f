"""Give each rank its rows: samplers, batch sizes, ``set_epoch``."""

from __future__ import annotations

import ast
import re

from ..plan import Plan
from ..script import dotted, keyword, tail

_SAMPLERS = {"WeightedRandomSampler", "RandomSampler", "SubsetRandomSampler"}  # they take a generator
_SHAPED = {
    *(
        "randn",
        "rand",
        "randint",
        "full",
        "ones",
        "zeros",
        "empty",
        "normal",
        "new_zeros",
        "new_ones",
        "new_full",
        "view",
    ),
    *("reshape", "expand", "init_hidden", "init_state", "arange", "FloatTensor", "LongTensor"),
}


def apply(plan: Plan) -> None:
    """Rewrite every DataLoader, and what has its number of rows."""
    _downloads(plan)
    for call in plan.script.calls():
        if tail(call) == "DataLoader":
            _Loader(plan, call).rewrite()
    _shapes(plan)


class _Loader:
    """One construction of a DataLoader."""

    def __init__(self, plan: Plan, call: ast.Call) -> None:
        self.plan, self.call, self.script = plan, call, plan.script
        self.shared: list[ast.expr] = []  # batch sizes in dictionaries that the call takes by **
        loops = [
            loop
            for loop, over in plan.flow.loader_loops.items()
            if over is call or call in plan.bindings.origins(over.value if isinstance(over, ast.Subscript) else over)
        ]
        pulled = any(
            call in plan.bindings.origins(c.args[0]) and (loop_trains(plan, c))
            for c in plan.script.calls()
            if tail(c) in ("iter", "next", "cycle") and c.args
        )
        self.loops = loops
        target = next((n for n in self.script.above(call) if isinstance(n, ast.Assign)), None)
        self.name = dotted(target.targets[0]).split(".")[-1] if target is not None else ""
        self.trains = pulled or any(plan.trains(loop) for loop in loops)
        if not loops and not pulled:
            low = self.name.lower()
            self.trains = not any(word in low for word in ("test", "val", "dev", "eval"))

    def rewrite(self) -> None:
        if self._is_left():
            return
        dataset = keyword(self.call, "dataset", 0)
        assert dataset is not None
        data = self._hoisted(dataset)
        if self._is_stream(dataset):
            if self.plan.dialect.name == "ddp":
                self.script.replace(dataset, f"{self.plan.use('RankStream')}({data})")
        elif not self.trains:
            world = self.plan.dialect
            self._sampler(f"range({world.rank}, len({data}), {world.world})")
        elif (sampler := keyword(self.call, "sampler")) is not None:
            self._drawn(sampler)
        else:
            shuffle = keyword(self.call, "shuffle", 2)
            given = self.script.code(shuffle) if shuffle is not None else "False"
            name = self._sampler_name()
            ranks = ""
            if self.plan.dialect.name == "accelerate":
                ranks = ", accelerator.num_processes, accelerator.process_index"
            self.script.before(self.call, f"{name} = DistributedSampler({data}{ranks}, shuffle={given})")
            self._sampler(name)
            if given != "False":
                self._set_epoch()
        self._batch()
        if self.plan.dialect.name == "accelerate" and self._is_stream(dataset):
            start, end = self.script.span(self.call)
            self.script.put(start, start, "accelerator.prepare(")
            self.script.put(end, end, ")")

    def _is_left(self) -> bool:
        """Leave what cannot be told to a person."""
        call, todo = self.call, self.plan.script.todo
        inside = (ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
        if any(isinstance(n, inside) for n in self.script.above(call)):
            todo(call, "several DataLoaders are made at once: write each out by itself, then migrate again")
            return True
        if keyword(call, "dataset", 0) is None:
            todo(
                call,
                "the arguments of this DataLoader are not seen here: give it a rank's sampler and share of the batch",
            )
            return True
        if keyword(call, "batch_sampler") is not None:
            todo(call, "a batch_sampler of one's own: let it give this rank's part of each batch")
            return True
        for given in call.keywords:
            if given.arg is None and self._hides(given.value):
                name = self.script.code(given.value)
                todo(call, f"**{name} may hold batch_size or shuffle. Write them out, then migrate again")
                return True
        sampler = keyword(call, "sampler")
        if sampler is not None and self.trains:
            made = {tail(c) for c in self.plan.bindings.origins(sampler)} | {tail(sampler)}
            empty = isinstance(sampler, ast.Constant) and sampler.value is None
            if not made & _SAMPLERS and not empty:
                todo(call, "a sampler of one's own: every rank must draw alike and take its share of what was drawn")
                return True
        return False

    def _hides(self, value: ast.expr) -> bool:
        name = dotted(value)
        if not name:
            return True
        keys: set[str] = set()
        for node in self.script.all(ast.Assign):
            if name not in [dotted(t) for t in node.targets]:
                continue
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Call):
                    keys |= {k.arg or "*" for k in inner.keywords} if tail(inner) == "dict" else {"*"}
                if isinstance(inner, ast.Dict):
                    keys |= {k.value if isinstance(k, ast.Constant) else "*" for k in inner.keys}  # type: ignore[misc]
        self.shared = [
            value
            for node in self.script.all(ast.Assign)
            if name in [dotted(t) for t in node.targets]
            for value in _named(node.value, "batch_size")
        ]
        updated = any(tail(c) in ("update", "setdefault") and dotted(getattr(c.func, "value", None)) == name
                      for c in self.script.calls())  # fmt: skip
        return updated or not keys or bool(keys & {"*", "shuffle", "sampler", "batch_sampler"})

    def _hoisted(self, dataset: ast.expr) -> str:
        if dotted(dataset):
            return self.script.code(dataset)
        if self._is_stream(dataset):
            return self.script.code(dataset)
        statement = self.script.statement(self.call)
        name = f"{self.name or 'loader'}_data"
        self.script.before(statement, f"{name} = {self.script.code(dataset)}")
        self.script.replace(dataset, name)
        return name

    def _sampler_name(self) -> str:
        base = re.sub(r"_?(data_?loader|loader|dl|iter|iterator|gen|generator)$", "", self.name, flags=re.I)
        taken = {n.id for n in self.script.all(ast.Name)}
        name = f"{base}_sampler" if base else "sampler"
        return name if name not in taken else f"ddp_{name}"

    def _is_stream(self, dataset: ast.expr) -> bool:
        made = self.plan.bindings.class_made(dataset)
        if isinstance(dataset, ast.Call) and isinstance(dataset.func, ast.Name):
            made = self.plan.bindings.classes.get(dataset.func.id)
        return made is not None and any(tail(base) == "IterableDataset" for base in made.bases)

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
        made = [sampler] if isinstance(sampler, ast.Call) else self.plan.bindings.origins(sampler)
        for call in made:
            if isinstance(call, ast.Call) and tail(call) in _SAMPLERS and keyword(call, "generator") is None:
                end = self.script.span([*call.args, *call.keywords][-1])[1]
                self.script.put(end, end, ", generator=torch.Generator().manual_seed(0)")
        start, end = self.script.span(sampler)
        self.script.put(start, start, f"{self.plan.use('RankSampler')}(")
        self.script.put(end, end, ")")

    def _batch(self) -> None:
        if self.plan.per_device:
            return
        size = keyword(self.call, "batch_size", 1)
        if size is None and self.shared:
            size = self.shared[0]
        if size is None:
            if self.trains:
                self.script.todo(
                    self.call, "batches of one row cannot be shared out: each rank takes one, so the batch grows"
                )
            return
        simple = isinstance(size, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
        code = self.script.code(size)
        if isinstance(size, ast.Constant) and size.value is None:
            return
        self.script.replace(size, f"{code if simple else f'({code})'} // {self.plan.dialect.world}")

    def _set_epoch(self) -> None:
        for loop in self.loops:
            if not self.plan.trains(loop):
                continue
            over = self._below_a_bar(loop, self.plan.flow.loader_loops[loop])
            if not dotted(over) or not set_epoch(self.plan, loop, over, 0):
                self.script.todo(
                    loop, "call sampler.set_epoch(epoch) before each epoch, or every epoch has the same order"
                )
        if not any(self.plan.trains(loop) for loop in self.loops):
            self.script.todo(
                self.call, "call sampler.set_epoch(epoch) before each epoch, or every epoch has the same order"
            )

    def _below_a_bar(self, loop: ast.For, over: ast.expr) -> ast.expr:
        """Find the loader of ``bar = tqdm(loader)``."""
        for node in self.script.all(ast.Assign):
            if self.script.function(node) is self.script.function(loop) and dotted(node.targets[0]) == dotted(over):
                value = node.value
                while isinstance(value, ast.Call) and tail(value) in ("tqdm", "enumerate", "iter") and value.args:
                    value = value.args[0]
                if value is not node.value and dotted(value):
                    return value  # type: ignore[no-any-return]
        return over


def _named(value: ast.expr, name: str) -> list[ast.expr]:
    """Find the values that a dictionary's literal gives to a name."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == name]
    return [k.value for k in value.keywords if k.arg == name] if isinstance(value, ast.Call) else []


def loop_trains(plan: Plan, node: ast.AST) -> bool:
    """Tell whether what stands around a node trains."""
    function = plan.script.function(node)
    return plan.trains(function) if function is not None else bool(plan.backwards)


def set_epoch(plan: Plan, node: ast.AST, loader: ast.expr, depth: int) -> bool:
    """Write ``set_epoch`` where both the loader and a number of the epoch have names."""
    script = plan.script
    function = script.function(node)
    epoch = None
    for outer in script.above(node):
        if outer is function:
            break
        if isinstance(outer, ast.For) and outer not in plan.flow.loader_loops and isinstance(outer.target, ast.Name):
            epoch = outer.target.id
            break
    if epoch is None and function is not None:
        epoch = next((a.arg for a in function.args.args if a.arg in ("epoch", "ep", "i_epoch", "epoch_i")), None)
    if epoch is not None:
        script.before(node, f"{script.code(loader)}.sampler.set_epoch({epoch})  # another order in every epoch")
        return True
    if function is None or depth > 4:
        return False
    done = False
    for call in plan.bindings.callers.get(function, ()):
        given = plan.bindings.arguments(call, function).get(dotted(loader), loader)
        if dotted(given) and set_epoch(plan, call, given, depth + 1):
            done = True
    return done


def _downloads(plan: Plan) -> None:
    """Let one rank download a dataset, and the others find it there."""
    done = set()
    barrier = plan.dialect.barrier.split("  #")[0]
    for call in plan.script.calls():
        given = keyword(call, "download")
        if not (isinstance(given, ast.Constant) and given.value is True):
            continue
        statement = plan.script.statement(call)
        if statement in done:
            continue
        done.add(statement)
        master = plan.dialect.master
        plan.script.before(statement, f"if not {master}:", f"    {barrier}  # until it is downloaded")
        plan.script.after(statement, f"if {master}:", f"    {barrier}")


def _shapes(plan: Plan) -> None:
    """Tensors made with a row for each of the batch have as many rows as this rank has."""
    if plan.per_device:
        return
    for call in plan.script.calls():
        if tail(call) not in _SHAPED or not plan.loop_of(call) or not plan.trains(plan.loop_of(call)):  # type: ignore[arg-type]
            continue
        for argument in call.args:
            for node in argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]:
                if dotted(node) and dotted(node) in plan.flow.sizes:
                    plan.script.replace(node, f"{plan.script.code(node)} // {plan.dialect.world}")
