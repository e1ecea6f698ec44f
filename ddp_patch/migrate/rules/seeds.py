"""Random numbers: alike on all ranks while the model and the data are made, each rank's own for its rows."""

from __future__ import annotations

import ast
import sys

from ..parts import Part
from ..plan import Plan
from ..tree import Function, dotted, tail

_GENERATORS = {"RandomState", "default_rng", "Random", "SystemRandom", "Generator"}
_LIBRARIES = {"torch", "numpy", "torchvision", "torchaudio", "sklearn", "scipy", "pandas", "matplotlib", "tqdm", "PIL"}
ALIKE = "alike on every rank"
OWN_DRAWS = "dropout and augmentation: each rank its own"
_STREAMS = {"numpy": "numpy.random.", "random": "random."}  # that a library draws from, if nothing else is said
_SPLITS = {
    "train_test_split",
    "shuffle",
    "resample",
    "KFold",
    "StratifiedKFold",
    "ShuffleSplit",
    "StratifiedShuffleSplit",
}
_SHUFFLES = {"randperm", "permutation", "shuffle", "sample", "choice", "choices", "random_split"}
_MAKES_DATA = {
    "random_split",
    "randperm",
    "permutation",
    "shuffle",
    "train_test_split",
    "rand",
    "randn",
    "randint",
    "normal",
}


def apply(plan: Plan) -> None:
    """Give each rank draws of its own once the models are wrapped; ``unseeded`` scripts are seeded in the setup."""
    if not plan.wraps or not (is_seeded(plan) or needs_seed(plan)):
        return
    if not plan.is_fed or plan.draws_alike:
        return  # all ranks draw the same batches
    named = _called(plan)
    calls = [c for c, name in named.items() if (tail(c) in _SHUFFLES and _is_random(name)) or _is_of_numpy(c, name)]
    if any(plan.loop_of(c) is None and any(plan.trains(f) for f in [plan.script.function(c)] if f) for c in calls):
        return  # the script draws an order of its own while it trains, which must be alike
    after, behind = plan.wraps[-1]
    training = _training(plan, after)
    lines = [f"torch.manual_seed(torch.initial_seed() + 1 + {plan.dialect.rank})  # {OWN_DRAWS}"]
    for library in _STREAMS:
        if _is_seeded_by_hand(plan, library) or library in _unseeded(plan):
            lines.append(f"{_seed(plan, library, plan.script.part(after))}(torch.initial_seed() % 2**32)")
    if training is not None:  # behind all that is made with random numbers
        plan.script.before(training, *lines)
    else:
        behind += lines


def _training(plan: Plan, after: ast.stmt) -> ast.stmt | None:
    """Find what trains a model that is wrapped here, in this block or in one that runs later: ``trainer.fit()``."""
    script, part, above = plan.script, plan.script.part(after), set()
    while after not in above:
        above.add(after)
        block = script.block(after)
        later = block[block.index(after) + 1 :]
        training = (s for s in later if not isinstance(s, (ast.FunctionDef, ast.ClassDef)) and plan.trains(s))
        if (found := next(training, None)) is not None:
            return found
        function = script.function(after)
        callers = plan.bindings.callers.get(function, ()) if function is not None else ()
        if function is None or len(callers) != 1 or script.part(callers[0]) is not part:
            break
        after = script.statement(callers[0])
        if plan.trains(after):  # `Trainer().fit()`
            break
    first = [
        f
        for f in script.all(ast.FunctionDef)
        if plan.trains(f)
        and script.part(f) is part
        and f.body[0].lineno > f.lineno
        and not _is_called_to_train(plan, f)
    ]
    return first[0].body[ast.get_docstring(first[0]) is not None] if len(first) == 1 else None


def _is_called_to_train(plan: Plan, function: Function) -> bool:
    """Tell whether a function that trains calls this one, maybe in each of its epochs."""
    around = map(plan.script.function, plan.bindings.callers.get(function, ()))
    return any(outer is not None and plan.trains(outer) for outer in around)


def alike(plan: Plan, part: Part) -> list[str]:
    """Write seeds for what the script draws from and does not seed: ranks must draw the same data and orders."""
    lines = [f"torch.manual_seed(0)  # {ALIKE}: splits, orders, data"] if needs_seed(plan) else []
    return lines + [f"{_seed(plan, library, part)}(0)  # {ALIKE}" for library in _unseeded(plan)]


def libraries(plan: Plan, imported: set[str]) -> list[str]:
    """List the imports that these seeds need."""
    anywhere = {a.name for n in plan.script.all(ast.Import) for a in n.names}
    unseeded = _unseeded(plan)
    wanted = [
        library
        for library in _STREAMS
        if library in unseeded or (library not in anywhere and _is_seeded_by_hand(plan, library))
    ]
    names = {library: _name(plan, library) for library in wanted if library not in imported}
    return [f"import {library}" + (f" as {name}" if name != library else "") for library, name in names.items()]


def _name(plan: Plan, library: str) -> str:
    """Name a library that the script does not import whole: ``from random import random`` takes its name."""
    hidden = {a.asname or a.name for n in plan.script.all(ast.ImportFrom) for a in n.names}
    return f"ddp_{library}" if library in hidden else library


def _unseeded(plan: Plan) -> list[str]:
    everywhere = any(tail(c) in ("seed_everything", "set_seed") for c in plan.script.calls())
    return [
        library
        for library in _STREAMS
        if not everywhere
        and not _is_seeded_by_hand(plan, library)
        and (_draws(plan, library) or (not plan.is_fed and _imports_local_modules(plan)))
    ]


def _draws(plan: Plan, library: str) -> bool:
    return any(
        (name.startswith(_STREAMS[library]) and tail(call) not in _GENERATORS)
        or (library == "numpy" and _is_of_numpy(call, name))
        for call, name in _called(plan).items()
    )


def _is_of_numpy(call: ast.Call, name: str) -> bool:
    """Tell whether scikit-learn or pandas draws, which do so from numpy where no ``random_state`` is given."""
    if any(k.arg == "random_state" for k in call.keywords):
        return False
    rows = tail(call) == "sample" and any(k.arg in ("frac", "n") for k in call.keywords)
    return rows or (tail(call) in _SPLITS and name.startswith("sklearn."))


def _called(plan: Plan) -> dict[ast.Call, str]:
    """Name what each call runs by the module that it is of: ``random.shuffle`` for ``shuffle``."""
    script = plan.script
    imported = {(script.part(n), a.asname): a.name for n in script.all(ast.Import) for a in n.names if a.asname}
    for node in script.all(ast.ImportFrom):
        imported |= {(script.part(node), a.asname or a.name): f"{node.module}.{a.name}" for a in node.names}
    found = {}
    for call in script.calls():
        head, dot, rest = dotted(call.func).partition(".")
        found[call] = imported.get((script.part(call), head), "numpy" if head == "np" else head) + dot + rest
    return found


def _imports_local_modules(plan: Plan) -> bool:
    """Tell whether a script imports what may be a file beside it, which may draw."""
    names = [a.name for n in plan.script.all(ast.Import) for a in n.names]
    names += [n.module or "." for n in plan.script.all(ast.ImportFrom)]
    return any(name.split(".")[0] not in sys.stdlib_module_names | _LIBRARIES for name in names)


def _is_seeded_by_hand(plan: Plan, library: str) -> bool:
    return any(name == f"{_STREAMS[library]}seed" and call.args for call, name in _called(plan).items())


def _imports(plan: Plan, part: Part) -> list[ast.Import]:
    return [n for n in plan.script.all(ast.Import) if plan.script.part(n) is part]


def _seed(plan: Plan, library: str, part: Part) -> str:
    names = (a.asname or a.name for n in _imports(plan, part) for a in n.names if a.name == library)
    name = next(names, _name(plan, library))
    return f"{name}.random.seed" if library == "numpy" else f"{name}.seed"


def is_seeded(plan: Plan) -> bool:
    """Tell whether the script seeds torch."""
    return any(
        tail(c) in ("manual_seed", "seed_everything", "set_seed", "manual_seed_all") for c in plan.script.calls()
    )


def needs_seed(plan: Plan) -> bool:
    """Tell whether a script that seeds nothing draws what must be alike on all ranks: a split, an order, its data."""
    if is_seeded(plan):
        return False
    return not plan.is_fed or any(
        tail(c) in _MAKES_DATA and _is_random(dotted(c.func)) and plan.loop_of(c) is None and not _is_of_rows(plan, c)
        for c in plan.script.calls()
    )


def _is_of_rows(plan: Plan, call: ast.Call) -> bool:
    """Tell whether a model draws, whose weights DDP makes alike, or a dataset for one of its rows."""
    owner, function = plan.bindings.class_of(call), plan.script.function(call)
    bases = {tail(base) for base in owner.bases} if owner is not None else set()
    return "Module" in bases or ("Dataset" in bases and function is not None and function.name != "__init__")


def _is_random(name: str) -> bool:
    return name.split(".")[0] in ("torch", "np", "numpy", "random") or name in _SHUFFLES | {"train_test_split"}
