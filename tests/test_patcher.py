"""Rows are applied all or nothing, and undone to the very objects that were there."""

import copy
import dataclasses
import functools
import inspect
import os
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch

from ddp_patch.errors import PatchError
from ddp_patch.patch import Patch
from ddp_patch.patcher import Patcher

SOURCE = '''
class Base:
    """A class as a library would write it."""

    def inherited(self, x):
        return ("inherited", x)

class Thing(Base):
    scale = 10

    def method(self, x, *, times=1):
        """Say x."""
        return (type(self).__name__, x * times)

    @classmethod
    def build(cls, x):
        return (cls.__name__, x)

    @staticmethod
    def free(x):
        return ("free", x)

class Sub(Thing):
    pass

class Override(Thing):
    def method(self, x, *, times=1):
        return ("override", super().method(x, times=times))

def function(x):
    """Double x."""
    return x * 2

def other(x):
    return x * 3

alias = function
'''


@pytest.fixture
def library(monkeypatch):
    """A throw-away module that can be imported."""
    module = types.ModuleType("throw_away_library")
    exec(SOURCE, vars(module))
    for value in vars(module).values():
        if isinstance(value, type):
            value.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def elsewhere(monkeypatch, library):
    """A module that did ``from throw_away_library import function, Thing`` early."""
    module = types.ModuleType("throw_away_elsewhere")
    module.function, module.Thing, module.unrelated = library.function, library.Thing, library.other
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def tagged(session, wrapped, instance, args, kwargs):
    return ("patched", wrapped(*args, **kwargs))


def row(target, wrapper=tagged, also=(), module="throw_away_library"):
    return Patch(module, target, wrapper, "says so", also)


# --- left alone -------------------------------------------------------------------------------------------------------


def test_a_patcher_without_rows_does_nothing(library):
    before = dict(vars(library))
    patcher = Patcher()
    patcher.apply([])
    patcher.undo()
    patcher.undo()
    assert vars(library) == before
    assert patcher.applied == []


def test_a_class_keeps_its_identity_signature_and_pickling(library):
    thing = library.Thing
    patcher = Patcher()
    patcher.apply([row("Thing.method"), row("function")])
    assert library.Thing is thing
    assert isinstance(thing(), thing)
    assert str(inspect.signature(thing.method)) == "(self, x, *, times=1)"
    assert (thing.method.__name__, thing.method.__doc__) == ("method", "Say x.")
    assert (library.function.__name__, library.function.__doc__) == ("function", "Double x.")
    assert type(pickle.loads(pickle.dumps(thing()))) is thing
    assert type(copy.deepcopy(thing())) is thing


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_children_pass_wrappers_by(library):
    bound = library.Thing().method
    Patcher().apply([row("Thing.method"), row("function")])
    kept, again = library.function, library.Thing().method
    child = os.fork()
    if not child:
        passed_by = (library.Thing().method(1), again(1), kept(1)) == (bound(1), bound(1), 2)
        os._exit(0 if passed_by else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert library.Thing().method(1) == again(1) == ("patched", ("Thing", 1))
    assert kept(1) == ("patched", 2)


# --- apply and undo ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["function", "Thing.method", "Thing.build", "Thing.free"])
def test_undo_puts_the_very_object_back(library, target):
    owner = library.Thing if "." in target else library
    attribute = target.rpartition(".")[2]
    original = vars(owner)[attribute]
    patcher = Patcher()
    patcher.apply([row(target)])
    assert vars(owner)[attribute] is not original
    patcher.undo()
    assert vars(owner)[attribute] is original


def test_an_inherited_method_is_patched_where_it_was_asked_and_deleted_on_undo(library):
    original = vars(library.Base)["inherited"]
    patcher = Patcher()
    patcher.apply([row("Thing.inherited")])
    assert library.Thing().inherited(1) == ("patched", ("inherited", 1))
    assert library.Base().inherited(1) == ("inherited", 1)
    assert vars(library.Base)["inherited"] is original
    patcher.undo()
    assert "inherited" not in vars(library.Thing)
    assert library.Thing().inherited(1) == ("inherited", 1)


def test_a_slot_inherited_from_c_is_deleted_on_undo(library):
    def shout(session, wrapped, instance, args, kwargs):
        return "patched " + wrapped(*args, **kwargs)

    patcher = Patcher()
    patcher.apply([row("Thing.__repr__", shout)])
    assert repr(library.Thing()).startswith("patched <throw_away_library.Thing object")
    patcher.undo()
    assert "__repr__" not in vars(library.Thing)
    assert repr(library.Thing()).startswith("<throw_away_library.Thing object")


def test_a_wrapper_gets_the_instance_and_the_bound_original(library):
    seen = []

    def note(session, wrapped, instance, args, kwargs):
        seen.append((instance, args, kwargs))
        return wrapped(*args, **kwargs)

    thing = library.Thing()
    Patcher().apply([row(name, note) for name in ("Thing.method", "Thing.build", "Thing.free", "function")])
    assert thing.method(1, times=2) == ("Thing", 2)
    assert library.Thing.build(3) == ("Thing", 3)
    assert library.Sub.build(4) == ("Sub", 4)
    assert thing.build(5) == ("Thing", 5)
    assert library.Thing.free(6) == ("free", 6)
    assert thing.free(7) == ("free", 7)
    assert library.function(8) == 16
    assert seen == [
        (thing, (1,), {"times": 2}),
        (library.Thing, (3,), {}),
        (library.Sub, (4,), {}),
        (library.Thing, (5,), {}),
        (None, (6,), {}),
        (None, (7,), {}),
        (None, (8,), {}),
    ]


def test_a_method_reaches_subclasses_instances_and_names_imported_early(library, elsewhere):
    early_instance, early_sub = library.Thing(), library.Sub()
    patcher = Patcher()
    patcher.apply([row("Thing.method")])
    assert early_instance.method(1) == ("patched", ("Thing", 1))
    assert early_sub.method(1) == ("patched", ("Sub", 1))
    assert library.Override().method(1) == ("override", ("patched", ("Override", 1)))
    assert elsewhere.Thing().method(1) == ("patched", ("Thing", 1))
    patcher.undo()
    assert early_sub.method(1) == ("Sub", 1)
    assert elsewhere.Thing().method(1) == ("Thing", 1)


def test_rows_on_one_name_are_nested_and_undone_in_turn(library):
    def outer(session, wrapped, instance, args, kwargs):
        return ("outer", wrapped(*args, **kwargs))

    original = library.function
    patcher = Patcher()
    patcher.apply([row("function")])
    patcher.apply([row("function", outer)])
    assert library.function(1) == ("outer", ("patched", 2))
    patcher.undo()
    assert library.function is original


def test_a_patcher_can_be_used_again(library):
    patcher = Patcher()
    patcher.apply([row("function")])
    patcher.undo()
    patcher.apply([row("function")])
    assert library.function(1) == ("patched", 2)
    assert [patch.name for patch in patcher.applied] == ["throw_away_library.function"]


# --- the same object under further names ------------------------------------------------------------------------------


def test_further_names_of_the_same_object_are_patched_and_put_back(library, elsewhere):
    original = library.function
    patcher = Patcher()
    patcher.apply([row("function", also=("throw_away_library:alias", "throw_away_elsewhere:function"))])
    assert library.function is library.alias is elsewhere.function
    assert elsewhere.function(1) == ("patched", 2)
    patcher.undo()
    assert vars(library)["function"] is original
    assert vars(library)["alias"] is original
    assert vars(elsewhere)["function"] is original


def test_a_further_name_that_means_something_else_is_left_alone(library, elsewhere):
    patcher = Patcher()
    patcher.apply([row("function", also=("throw_away_elsewhere:unrelated",))])
    assert elsewhere.unrelated is library.other
    patcher.undo()
    assert elsewhere.unrelated is library.other


def test_a_module_that_goes_by_two_names_is_patched_once(library, elsewhere, monkeypatch):
    """As requests has with ``requests.packages.urllib3``."""
    monkeypatch.setitem(sys.modules, "throw_away_alias", elsewhere)
    original = library.function
    patcher = Patcher()
    patcher.apply([Patch("throw_away_library", "function", tagged, "says so")])
    assert elsewhere.function(1) == ("patched", 2)
    patcher.undo()
    assert elsewhere.function is library.function is original


# --- all or nothing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        (row("Thing.gone"), "throw_away_library.Thing.gone"),
        (row("gone"), "throw_away_library.gone"),
        (row("Gone.method"), "throw_away_library.Gone.method"),
        (row("save", module="throw_away_nowhere"), "throw_away_nowhere.save"),
    ],
)
def test_nothing_is_patched_when_one_target_is_missing(library, missing, name):
    before = {owner: dict(vars(owner)) for owner in (library, library.Thing)}
    patcher = Patcher()
    with pytest.raises(PatchError) as caught:
        patcher.apply([row("function"), row("Thing.inherited"), missing, row("Thing.method")])
    assert str(caught.value).startswith(f"{name} does not exist")
    assert patcher.applied == []
    for owner, names in before.items():
        assert set(vars(owner)) == set(names)
        assert all(vars(owner)[name] is value for name, value in names.items())


def test_a_script_may_stand_in_for_a_library_with_some_of_its_names(library):
    rows = [dataclasses.replace(each, when_imported="throw_away_library") for each in (row("gone"), row("function"))]
    patcher = Patcher()
    library.__file__ = str(Path(torch.__file__).parent / "library.py")  # that of an installed one
    with pytest.raises(PatchError):
        patcher.apply(rows)
    library.__file__ = __file__
    patcher.apply(rows)
    assert library.function(1) == ("patched", 2)
    patcher.undo()


def test_what_was_applied_before_stays_when_a_later_list_fails(library):
    patcher = Patcher()
    patcher.apply([row("function")])
    with pytest.raises(PatchError):
        patcher.apply([row("Thing.method"), row("Thing.gone")])
    assert library.function(1) == ("patched", 2)
    assert library.Thing().method(1) == ("Thing", 1)
    assert [patch.target for patch in patcher.applied] == ["function"]


# --- single rows ------------------------------------------------------------------------------------------------------


def test_single_rows_are_removed_and_the_others_stay(library):
    rows = [row("function", also=("throw_away_library:alias",)), row("Thing.method"), row("Thing.inherited")]
    originals = library.function, vars(library.Thing)["method"]
    patcher = Patcher()
    patcher.apply(rows)
    patcher.remove([rows[0], rows[2]])
    assert library.function is library.alias is originals[0]
    assert "inherited" not in vars(library.Thing)
    assert library.Thing().method(1) == ("patched", ("Thing", 1))
    assert patcher.applied == [rows[1]]
    patcher.undo()
    assert vars(library.Thing)["method"] is originals[1]


def test_a_removed_row_can_be_applied_again(library):
    rows = [row("Thing.method")]
    patcher = Patcher()
    for _ in range(3):
        patcher.apply(rows)
        assert library.Thing().method(1) == ("patched", ("Thing", 1))
        patcher.remove(rows)
        assert library.Thing().method(1) == ("Thing", 1)
    assert patcher.applied == []


# --- somebody else ----------------------------------------------------------------------------------------------------


def test_a_foreign_replacement_stays_and_is_named_while_the_others_are_put_back(library):
    originals = library.function, vars(library.Thing)["method"]
    patcher = Patcher()
    patcher.apply([row("function"), row("Thing.method"), row("Thing.inherited")])

    def foreign(self, x):
        return "foreign"

    library.Thing.method = foreign
    with pytest.raises(PatchError) as caught:
        patcher.undo()
    assert str(caught.value).startswith("Thing.method was replaced by somebody else after ddp_patch.enable()")
    assert vars(library.Thing)["method"] is foreign
    assert vars(library)["function"] is originals[0]
    assert "inherited" not in vars(library.Thing)
    assert patcher.applied == []
    patcher.undo()  # nothing is left to undo


def wrapped_by_attribute(inner):
    return functools.wraps(inner)(lambda *args: ("on top", *args))


def wrapped_by_closure(inner):
    return lambda *args: ("on top", inner(*args))


def wrapped_by_a_name(inner):
    namespace = {"inner": inner}
    exec("def outer(*args):\n    return 'on top', inner(*args)", namespace)
    return namespace["outer"]


def wrapped_by_an_object(inner):
    class Hooks:
        def __init__(self):
            self.kept = inner

        def call(self, *args):
            return "on top", self.kept(*args)

    return Hooks().call


def test_a_name_that_a_script_uses_for_something_else_meanwhile_is_its_own(library, elsewhere):
    """``from random import seed`` and, below, ``seed = 42``."""
    patcher = Patcher()
    patcher.apply([row("function")])
    assert elsewhere.function is library.function
    elsewhere.function = 42
    patcher.undo()
    assert elsewhere.function == 42
    assert library.function(1) == 2


def test_a_wrapper_of_an_earlier_session_is_wrapped_anew(library):
    """Somebody kept it, and put it back after the end of that session: it passes by from then on."""
    patcher = Patcher()
    patcher.apply([row("function")])
    kept = library.function
    patcher.undo()
    library.function = kept
    assert library.function(1) == 2
    patcher.apply([row("function")])
    assert library.function(1) == ("patched", 2)


def test_two_rows_for_one_function_wrap_it_once(library):
    patcher = Patcher()
    patcher.apply([row("function"), row("alias")])
    assert library.alias(1) == library.function(1) == ("patched", 2)
    patcher.undo()
    assert library.alias is library.function
    assert library.function(1) == 2


def test_what_a_version_lacks_is_not_listed(library):
    patcher = Patcher()
    missing = Patch("throw_away_library", "removed", tagged, "says so", optional=True)
    patcher.apply([row("function"), missing])
    assert patcher.applied == [row("function")]


WRAPPED = [wrapped_by_attribute, wrapped_by_closure, wrapped_by_a_name, wrapped_by_an_object]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_somebody_put_on_top_stays_and_ours_passes_by(library, wrapped):
    """As trackers do with ``sys.exit``, and TorchDynamo with ``Module.__call__``."""
    patcher = Patcher()
    patcher.apply([row("function"), row("other")])
    library.function = on_top = wrapped(library.function)
    patcher.undo()
    assert library.function is on_top
    assert "patched" not in str(library.function(1))
    assert library.other(1) == 3


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_somebody_put_on_top_of_a_method_stays(library, wrapped):
    """A class gives a binding of the wrapper, not the wrapper."""
    patcher = Patcher()
    patcher.apply([row("Thing.method")])
    library.Thing.method = on_top = wrapped(library.Thing.method)
    patcher.undo()
    assert vars(library.Thing)["method"] is on_top
    assert "patched" not in str(library.Thing.method(library.Thing(), 1))


def test_a_row_that_gives_way_leaves_the_name_to_whoever_took_it(library):
    patcher = Patcher()
    patcher.apply([Patch("throw_away_library", "function", tagged, "says so", gives_way=True), row("other")])
    library.function = foreign = lambda x: "foreign"
    patcher.undo()
    assert library.function is foreign
    assert library.other(1) == 3


def test_a_name_that_was_deleted_meanwhile_is_named(library):
    patcher = Patcher()
    patcher.apply([row("function"), row("other")])
    del library.function
    with pytest.raises(PatchError, match=r"throw_away_library\.function was replaced by somebody else"):
        patcher.undo()
    assert library.other(1) == 3


def test_a_foreign_replacement_is_named_when_its_row_is_removed(library):
    rows = [row("function"), row("Thing.method")]
    patcher = Patcher()
    patcher.apply(rows)
    library.function = foreign = lambda x: "foreign"
    with pytest.raises(PatchError, match=r"throw_away_library\.function"):
        patcher.remove(rows)
    assert library.function is foreign
    assert library.Thing().method(1) == ("Thing", 1)


def test_a_method_that_was_taken_away_for_a_while_is_put_back():
    """As torch.fx and torch.export do with ``Module.__call__``."""
    original = vars(torch.nn.Module)["__call__"]
    patcher = Patcher()
    patcher.apply(
        [
            Patch(
                "torch.nn",
                "Module.__call__",
                lambda session, wrapped, instance, args, kwargs: wrapped(*args, **kwargs),
                "",
            )
        ]
    )
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert graph(torch.ones(1, 2)).shape == (1, 2)
    patcher.undo()
    assert vars(torch.nn.Module)["__call__"] is original
