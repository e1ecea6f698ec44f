"""Effects happen once: what writes, plots or removes files is left to one rank."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..bindings import Bindings
from ..for_rows import for_rows
from ..plan import Plan
from ..script import Script
from ..tree import dotted, keyword, tail

_FILES = {
    *("os.mkdir", "os.makedirs", "os.remove", "os.unlink", "os.rename", "os.rmdir", "os.system", "shutil.rmtree"),
    *(
        "shutil.copyfile",
        "shutil.copy",
        "shutil.copy2",
        "shutil.move",
        "shutil.copytree",
        "subprocess.call",
        "subprocess.run",
    ),
    *(
        "np.save",
        "np.savez",
        "np.savetxt",
        "numpy.save",
        "numpy.savetxt",
        "np.savez_compressed",
        "plt.savefig",
        "plt.show",
    ),
    *(
        "save_image",
        "vutils.save_image",
        "torchvision.utils.save_image",
        "utils.save_image",
        "cv2.imwrite",
        "imageio.imwrite",
    ),
    *(
        "wandb.log",
        "wandb.watch",
        "wandb.finish",
        "wandb.save",
        "wandb.config.update",
        "copyfile",
        "rmtree",
        "scipy.io.savemat",
    ),
    *(
        "log_value",
        "log_histogram",
        "imsave",
        "plt.imsave",
        "imageio.mimsave",
        "sio.savemat",
        "joblib.dump",
        "mlflow.log_metric",
        "mlflow.log_param",
    ),
}
_METHODS = {
    *("add_scalar", "add_scalars", "add_image", "add_images", "add_histogram", "add_graph", "add_text", "add_figure"),
    *(
        "add_embedding",
        "add_hparams",
        "add_video",
        "add_pr_curve",
        "savefig",
        "to_csv",
        "write_text",
        "write_bytes",
        "mkdir",
    ),
    *("unlink", "to_json", "to_pickle", "imsave", "scalar_summary", "image_summary", "histo_summary"),
}
_TRACKERS = {"SummaryWriter", "Logger"}


def apply(plan: Plan, script: Script) -> None:
    """Guard every statement that has an effect outside, and open files for nothing on the other ranks."""
    bindings = Bindings(script)
    master = plan.dialect.master
    rows = for_rows(script)
    effects = {
        n
        for n in script.all(ast.Expr)
        if _is_effect(script, bindings, n) and not _guarded(script, n, master) and rows.isdisjoint(script.above(n))
    }
    done: set[ast.AST] = set()
    for node in script.all(ast.Expr):
        if node not in effects or node in done:
            continue
        block = script.block(node)
        if not _is_alone(script, node):
            script.todo(node, "one rank alone should do this: put it on a line of its own")
            continue
        first = block.index(node)
        last = first
        while last + 1 < len(block) and block[last + 1] in effects and _is_alone(script, block[last + 1]):
            last += 1
        run = block[first : last + 1]
        done.update(run)
        parent = script.parents[node]
        if (
            isinstance(parent, ast.If)
            and block is parent.body
            and run == block
            and not parent.orelse
            and not _is_elif(script, parent)
        ):
            test = script.code(parent.test)
            script.replace(parent.test, f"{master} and {f'({test})' if isinstance(parent.test, ast.BoolOp) else test}")
        else:
            script.guard(run[0], run[-1], master)
    for call in script.calls():
        if _makes_a_folder(script, call) and keyword(call, "exist_ok", 2) is None:
            end = script.span([*call.args, *call.keywords][-1])[1]
            script.put(end, end, ", exist_ok=True")
            if tail(call) == "mkdir":
                script.replace(call.func, "os.makedirs")
        elif rows.isdisjoint(script.above(call)):
            _rewrite(plan, script, call, bindings.classes)


def _rewrite(plan: Plan, script: Script, call: ast.Call, classes: Collection[str]) -> None:
    name, master = tail(call), plan.dialect.master
    if isinstance(call.func, ast.Name) and name == "open" and call.args:
        mode = keyword(call, "mode", 1)
        if isinstance(mode, ast.Constant) and str(mode.value)[:1] in ("w", "a", "x"):
            path = call.args[0]
            if _is_dumped(script, call) and mode.value == "wb":
                _write_whole(script, call, path, master)
            elif "devnull" not in script.code(path):
                script.replace(path, f"{script.code(path)} if {master} else os.devnull")
    elif (
        name == "open" and isinstance(call.func, ast.Attribute) and call.args and isinstance(call.args[0], ast.Constant)
    ):
        if str(call.args[0].value)[:1] in ("w", "a", "x") and dotted(call.func.value) != "os":
            script.todo(call, "every rank writes this file: open it on one rank only")
    elif name in ("tqdm", "trange") and keyword(call, "disable") is None and (call.args or call.keywords):
        end = script.span([*call.args, *call.keywords][-1])[1]
        script.put(end, end, f", disable=not {master}")
    elif dotted(call.func) == "wandb.init":
        mode = keyword(call, "mode")
        if mode is not None:
            script.replace(mode, f'{script.code(mode)} if {master} else "disabled"')
        else:
            end = script.span(call)[1] - 1
            comma = ", " if call.args or call.keywords else ""
            script.put(end, end, f'{comma}mode=None if {master} else "disabled"')
    elif name in _TRACKERS and name not in classes:
        parent = script.parents[call]
        if isinstance(parent, ast.Assign) and dotted(parent.targets[0]).startswith("sys."):
            script.guard(parent, parent, master)
        elif isinstance(parent, ast.withitem):
            script.todo(call, "one rank alone should write this log: it is opened on all")
        elif not isinstance(parent, ast.Expr):
            start, end = script.span(call)
            opened, closed = ("", "") if isinstance(parent, ast.Assign) else ("(", ")")
            folder = keyword(call, "log_dir", 0) or keyword(call, "logdir")
            silent = f"{plan.use('SilentWriter')}({script.code(folder) if folder is not None else ''})"
            script.put(start, start, opened)  # `if writer is not None:` is entered by all ranks
            script.put(end, end, f" if {master} else {silent}{closed}")


def _is_dumped(script: Script, call: ast.Call) -> bool:
    """Tell whether a file is opened to be written at once: ``pickle.dump(words, open(path, "wb"))``."""
    outer = script.parents[call]
    statement = script.parents.get(outer)
    return tail(outer) == "dump" and isinstance(statement, ast.Expr) and _is_alone(script, statement)


def _write_whole(script: Script, call: ast.Call, path: ast.expr, master: str) -> None:
    """Let a rank that looks for the file find all of it, or none."""
    code, statement = script.code(path), script.statement(call)
    script.replace(path, f'str({code}) + ".tmp" if {master} else os.devnull')
    unit = script.part(statement).unit
    script.after(statement, f"if {master}:", f'{unit}os.replace(str({code}) + ".tmp", {code})')


def _is_effect(script: Script, bindings: Bindings, node: ast.Expr) -> bool:
    call = node.value
    if not isinstance(call, ast.Call) or _makes_a_folder(script, call):
        return False
    if dotted(call.func) in _FILES:
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in _METHODS:
        return True
    made = {tail(c) for c in bindings.origins(call.func.value)}
    foreign = bool(made & _TRACKERS) and not made & set(bindings.classes)
    return foreign and dotted(call.func.value) not in ("self", "")


def _makes_a_folder(script: Script, call: ast.Call) -> bool:
    """Tell whether all ranks may make a folder, so that none comes before it is there."""
    if dotted(call.func) == "os.makedirs":
        return bool(call.args)
    plain = dotted(call.func) == "os.mkdir" and len(call.args) == 1
    return plain and not any(isinstance(outer, ast.Try) for outer in script.above(call))


def _is_elif(script: Script, node: ast.If) -> bool:
    parent = script.parents[node]
    return isinstance(parent, ast.If) and parent.orelse == [node] and script.code(node).startswith("elif")


def _guarded(script: Script, node: ast.stmt, master: str) -> bool:
    return any(isinstance(n, ast.If) and master in ast.unparse(n.test) for n in script.above(node))


def _is_alone(script: Script, node: ast.stmt) -> bool:
    """Tell whether a statement has its lines for itself."""
    if script.statement(node) is not node:
        return False
    rest = script.rest_of_line(node)
    return not rest or rest.startswith(b"#")
