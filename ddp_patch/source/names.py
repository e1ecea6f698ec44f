"""What a name in a script stands for: ``nn.Linear`` is ``torch.nn.Linear`` where ``from torch import nn`` says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from .tree import Tree

# Names that torch has under several addresses, by the one that is in its documentation.
_ADDRESSES = {
    "torch.nn.parallel.distributed.": "torch.nn.parallel.",
    "torch.nn.parallel.data_parallel.": "torch.nn.parallel.",
    "torch.utils.data.distributed.": "torch.utils.data.",
    "torch.utils.data.dataloader.": "torch.utils.data.",
    "torch.utils.data.dataset.": "torch.utils.data.",
    "torch.utils.data.sampler.": "torch.utils.data.",
    "torch.nn.modules.loss.": "torch.nn.",
    "torch.nn.modules.module.": "torch.nn.",
    "torch.nn.modules.batchnorm.": "torch.nn.",
    "torch.nn.utils.clip_grad.": "torch.nn.utils.",
    "torch.distributed.distributed_c10d.": "torch.distributed.",
    "torch.serialization.": "torch.",
    "torch.autograd.variable.": "torch.autograd.",
    "torch.random.": "torch.",
}
_EXACT = {
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler",
}


def imports(tree: Tree) -> dict[str, str]:
    """Map each imported name to what it stands for, wherever in the file it is imported."""
    found: dict[str, str] = {}
    for node in tree.all(cst.Import):
        for alias in node.names:
            full = dotted(alias.name) or ""
            if alias.asname is not None:
                found[dotted(alias.asname.name) or ""] = full
            else:
                root = full.partition(".")[0]
                found[root] = root
    for start in tree.all(cst.ImportFrom):
        module = "." * len(start.relative) + ((dotted(start.module) or "") if start.module else "")
        if isinstance(start.names, cst.ImportStar):
            continue
        for alias in start.names:
            name = dotted(alias.name) or ""
            bound = (dotted(alias.asname.name) or "") if alias.asname is not None else name
            found[bound] = f"{module}.{name}" if not module.endswith(".") else f"{module}{name}"
    return found


def modules(tree: Tree) -> set[str]:
    """Name every module that is imported, with its packages: ``torch.nn.functional``, ``torch.nn``, ``torch``."""
    named: set[str] = set()
    for node in tree.all(cst.Import):
        named.update(dotted(alias.name) or "" for alias in node.names)
    for start in tree.all(cst.ImportFrom):
        if start.module is not None and not start.relative:
            named.add(dotted(start.module) or "")
    return {parent for name in named for parent in _upwards(name)}


def dotted(node: cst.CSTNode | None) -> str | None:
    """Write a name or a chain of attributes as it stands, ``self.model.module``; None for other expressions."""
    parts = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def qualified(node: cst.CSTNode | None, imported: Mapping[str, str]) -> str | None:
    """Write a name as torch's documentation does, where it was imported; else as it stands."""
    text = dotted(node)
    if text is None:
        return None
    root, dot, rest = text.partition(".")
    module = imported.get(root)
    return address(f"{module}{dot}{rest}") if module is not None else text


def address(name: str) -> str:
    """Give the documented address of a name that torch has under several."""
    for old, new in _ADDRESSES.items():
        if name.startswith(old):
            name = new + name[len(old) :]
    return _EXACT.get(name, name)


def _upwards(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
