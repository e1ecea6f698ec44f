"""Containers keep their type, their order and their attributes; an unchanged one is the very same object."""

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch

from ddp_patch.structure import leaves, map_leaves

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Sample:
    image: int
    label: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: int
    rest: list


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    image: int


class Output(OrderedDict):
    """A dict subclass with attributes, as Hugging Face's ModelOutput is."""

    source = None


class Counted(dict):
    """A dict subclass whose constructor takes something else."""

    def __init__(self, size):
        super().__init__()
        self.size = size


class Items(list):
    pass


def double(leaf):
    return leaf * 2 if isinstance(leaf, int) else leaf


# --- left alone -------------------------------------------------------------------------------------------------------

UNCHANGED = [
    [1, "a", None],
    (1, (2, [3])),
    Pair(1, Pair(2, 3)),
    {"a": 1, "b": {"c": [2]}},
    OrderedDict(a=1),
    Sample(1, 2),
    Frozen(1, [2]),
    Slotted(1),
    Items([1]),
    torch.Size([1, 2]),
    [],
    (),
    {},
]


@pytest.mark.parametrize("value", UNCHANGED, ids=lambda value: type(value).__name__)
def test_an_unchanged_structure_is_the_very_same_object(value):
    assert map_leaves(lambda leaf: leaf, value) is value


def test_unchanged_parts_of_a_changed_structure_are_the_very_same_objects():
    same, changed = ["a"], [1]
    result = map_leaves(double, {"same": same, "changed": changed})
    assert result == {"same": ["a"], "changed": [2]}
    assert result["same"] is same
    assert changed == [1]


def test_equal_is_not_the_same():
    value = [1.0]
    result = map_leaves(lambda leaf: 1, value)
    assert result is not value
    assert type(result[0]) is int


@pytest.mark.parametrize("value", [3, "text", b"bytes", None, {1, 2}, Sample, range(3), torch.ones(2)], ids=repr)
def test_anything_else_is_a_leaf(value):
    seen = []
    result = map_leaves(lambda leaf: seen.append(leaf) or "changed", value)
    assert result == "changed"
    assert len(seen) == 1
    assert seen[0] is value
    ((path, leaf),) = leaves(value)
    assert path == ""
    assert leaf is value


# --- rebuilt ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([1, [2]], [2, [4]]),
        ((1, (2,)), (2, (4,))),
        (Pair(1, Pair(2, 3)), Pair(2, Pair(4, 6))),
        ({"a": 1, "b": [2]}, {"a": 2, "b": [4]}),
        (OrderedDict(b=1, a=2), OrderedDict(b=2, a=4)),
        (Sample(1, 2), Sample(2, 4)),
        (Frozen(1, [2]), Frozen(2, [4])),
        (Slotted(1), Slotted(2)),
        (Items([1]), Items([2])),
        (torch.Size([1, 2]), torch.Size([2, 4])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_container_keeps_its_type(value, wanted):
    result = map_leaves(double, value)
    assert result == wanted
    assert type(result) is type(wanted)


def test_what_was_given_is_not_written_to():
    given = {"a": [1], "b": Sample(1), "c": Frozen(1, [2]), "d": OrderedDict(x=1)}
    map_leaves(double, given)
    assert given == {"a": [1], "b": Sample(1), "c": Frozen(1, [2]), "d": OrderedDict(x=1)}


def test_a_dict_subclass_keeps_its_attributes_and_order():
    value = Output(b=1, a=2)
    value.source = "script"
    result = map_leaves(double, value)
    assert type(result) is Output
    assert list(result.items()) == [("b", 2), ("a", 4)]
    assert result.source == "script"
    assert list(value.items()) == [("b", 1), ("a", 2)]


def test_a_dict_subclass_with_a_constructor_of_its_own_is_rebuilt():
    value = Counted(5)
    value["a"] = 1
    result = map_leaves(double, value)
    assert (type(result), dict(result), result.size) == (Counted, {"a": 2}, 5)


def test_a_defaultdict_keeps_its_default():
    result = map_leaves(double, defaultdict(list, a=1))
    assert result == {"a": 2}
    assert result["new"] == []


def test_a_dataclass_keeps_attributes_that_are_no_fields():
    value = Sample(1)
    value.note = "kept"
    result = map_leaves(double, value)
    assert (result, result.note) == (Sample(2), "kept")


def test_a_frozen_dataclass_stays_frozen():
    result = map_leaves(double, Frozen(1, [2]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.image = 3


def test_a_structure_that_torch_returns_is_rebuilt():
    value = torch.max(torch.tensor([[1.0, 3.0], [5.0, 2.0]]), 1)
    result = map_leaves(lambda leaf: leaf * 2, value)
    assert type(result) is type(value)
    assert (result.values.tolist(), result.indices.tolist()) == ([6.0, 10.0], [2, 0])


def test_keys_are_not_leaves():
    assert map_leaves(double, {1: 1, (2, 3): 4}) == {1: 2, (2, 3): 8}


# --- paths ------------------------------------------------------------------------------------------------------------


def test_leaves_come_in_order_with_the_path_that_leads_to_them():
    value = [{"mask": 1, 2: (3,)}, Pair("a", [None]), Sample(5), Frozen(6, [7])]
    assert list(leaves(value)) == [
        ("[0]['mask']", 1),
        ("[0][2][0]", 3),
        ("[1].left", "a"),
        ("[1].right[0]", None),
        ("[2].image", 5),
        ("[2].label", 0),
        ("[3].image", 6),
        ("[3].rest[0]", 7),
    ]


def test_a_path_begins_where_it_is_told():
    assert list(leaves([1], "output")) == [("output[0]", 1)]


def test_empty_containers_have_no_leaves():
    assert list(leaves([[], (), {}])) == []


def test_leaves_and_map_leaves_visit_the_same():
    value = {"a": [1, Pair(2, 3)], "b": Sample(4, 5), "c": Output(x=(6,))}
    seen = []
    map_leaves(lambda leaf: seen.append(leaf) or leaf, value)
    assert seen == [leaf for _, leaf in leaves(value)] == [1, 2, 3, 4, 5, 6]
