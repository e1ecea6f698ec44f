"""What a script's author can choose, by keyword or by variable, and what is said about a mistake."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_patch.errors import DdpPatchError, OptionError
from ddp_patch.options import EnableOptions, Options, format_value, parse, variable
from ddp_patch.usage import usage

NAMES = [field.name for field in dataclasses.fields(Options)]


# --- left alone -------------------------------------------------------------------------------------------------------


def test_nothing_given_means_the_defaults():
    options = Options.resolve({}, {})
    assert options == Options()
    assert dataclasses.asdict(options) == {
        "nproc": None,
        "view": "global",
        "tail": "pad",
        "batch": "global",
        "lr_scale": None,
        "warmup": None,
        "report": False,
        "sync_batchnorm": True,
        "batch_dims": {},
        "accumulate": None,
        "bucket_cap_mb": 25.0,
        "gradient_as_bucket_view": False,
        "static_graph": False,
        "find_unused_parameters": False,
        "comm_hook": None,
        "check_every": None,
        "share_devices": False,
        "timeout": 1800.0,
        "quiet": False,
        "traceback": False,
        "trace": None,
    }


def test_an_empty_variable_is_as_good_as_none():
    assert Options.resolve({}, {variable(name): "" for name in NAMES}) == Options()


def test_variables_that_are_no_option_are_left_to_others():
    assert Options.resolve({}, {"NPROC": "3", "DDP_PATCHED_NPROC": "3", "DDP_PATCH": "3"}) == Options()


def test_the_key_of_the_ranks_is_no_option_and_is_left_alone():
    assert Options.resolve({}, {"DDP_PATCH_KEY": "a" * 32}) == Options()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DDP_PATCH_NPROCS", "DDP_PATCH_NPROCS is set, and is no option. Did you mean 'DDP_PATCH_NPROC'?"),
        ("DDP_PATCH_KEYS", "DDP_PATCH_KEYS is set, and is no option. Did you mean 'DDP_PATCH_KEY'?"),
        ("DDP_PATCH_XYZZY", "DDP_PATCH_XYZZY is set, and is no option. The options are DDP_PATCH_NPROC, "),
    ],
)
def test_a_variable_that_is_no_option_says_what_was_meant(name, words):
    with pytest.raises(OptionError) as caught:
        Options.resolve({}, {name: "2"})
    assert str(caught.value).startswith(words)


def test_every_option_is_told_where_people_look():
    annotations = {field.name: field.type for field in dataclasses.fields(Options)}
    assert EnableOptions.__annotations__.keys() == annotations.keys()
    flags = [line.split()[0] for line in usage().splitlines()]
    assert [flag.removeprefix("--no-").removeprefix("--").replace("-", "_") for flag in flags] == NAMES
    assert all(len(line) <= 120 for line in usage().splitlines())


# --- where a value comes from -----------------------------------------------------------------------------------------


def test_every_option_has_its_variable():
    assert [variable(name) for name in NAMES] == [
        "DDP_PATCH_NPROC",
        "DDP_PATCH_VIEW",
        "DDP_PATCH_TAIL",
        "DDP_PATCH_BATCH",
        "DDP_PATCH_LR_SCALE",
        "DDP_PATCH_WARMUP",
        "DDP_PATCH_REPORT",
        "DDP_PATCH_SYNC_BATCHNORM",
        "DDP_PATCH_BATCH_DIMS",
        "DDP_PATCH_ACCUMULATE",
        "DDP_PATCH_BUCKET_CAP_MB",
        "DDP_PATCH_GRADIENT_AS_BUCKET_VIEW",
        "DDP_PATCH_STATIC_GRAPH",
        "DDP_PATCH_FIND_UNUSED_PARAMETERS",
        "DDP_PATCH_COMM_HOOK",
        "DDP_PATCH_CHECK_EVERY",
        "DDP_PATCH_SHARE_DEVICES",
        "DDP_PATCH_TIMEOUT",
        "DDP_PATCH_QUIET",
        "DDP_PATCH_TRACEBACK",
        "DDP_PATCH_TRACE",
    ]


def test_keyword_arguments_are_taken():
    given_by_keyword = {
        "nproc": 2,
        "view": "local",
        "tail": "exact",
        "batch": "per_device",
        "lr_scale": 2.0,
        "warmup": "5 epochs",
        "report": True,
        "sync_batchnorm": False,
        "batch_dims": {"x": 1},
        "accumulate": 4,
        "bucket_cap_mb": 1,
        "gradient_as_bucket_view": True,
        "static_graph": True,
        "find_unused_parameters": True,
        "comm_hook": "bf16",
        "check_every": 100,
        "share_devices": True,
        "timeout": 5,
        "quiet": True,
        "traceback": True,
        "trace": "traces",
    }
    options = Options.resolve(given_by_keyword, {})
    assert dataclasses.asdict(options) == given_by_keyword


def test_variables_are_taken():
    environ = {
        "DDP_PATCH_NPROC": "4",
        "DDP_PATCH_REPORT": "1",
        "DDP_PATCH_SYNC_BATCHNORM": "off",
        "DDP_PATCH_BATCH_DIMS": "mask=none,x=1",
        "DDP_PATCH_ACCUMULATE": "8",
        "DDP_PATCH_BUCKET_CAP_MB": "0.5",
        "DDP_PATCH_GRADIENT_AS_BUCKET_VIEW": "yes",
        "DDP_PATCH_STATIC_GRAPH": "true",
        "DDP_PATCH_FIND_UNUSED_PARAMETERS": "1",
        "DDP_PATCH_COMM_HOOK": "powersgd",
        "DDP_PATCH_CHECK_EVERY": "50",
        "DDP_PATCH_SHARE_DEVICES": "on",
        "DDP_PATCH_TIMEOUT": "2.5",
        "DDP_PATCH_QUIET": "1",
        "DDP_PATCH_TRACEBACK": "true",
        "DDP_PATCH_TRACE": "traces",
    }
    assert Options.resolve({}, environ) == Options(
        nproc=4,
        report=True,
        sync_batchnorm=False,
        batch_dims={"mask": None, "x": 1},
        accumulate=8,
        bucket_cap_mb=0.5,
        gradient_as_bucket_view=True,
        static_graph=True,
        find_unused_parameters=True,
        comm_hook="powersgd",
        check_every=50,
        share_devices=True,
        timeout=2.5,
        quiet=True,
        traceback=True,
        trace="traces",
    )


def test_the_environment_of_this_process_is_read(monkeypatch):
    monkeypatch.setenv("DDP_PATCH_TIMEOUT", "7")
    assert Options.resolve({}).timeout == 7.0


def test_a_keyword_argument_wins_over_its_variable_and_over_no_other():
    environ = {"DDP_PATCH_NPROC": "4", "DDP_PATCH_TIMEOUT": "9", "DDP_PATCH_REPORT": "1"}
    options = Options.resolve({"nproc": 2, "report": False}, environ)
    assert (options.nproc, options.report, options.timeout) == (2, False, 9.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("YES", True), (" on ", True), ("0", False), ("False", False), ("no", False)],
)
def test_flags_are_read_as_people_write_them(text, value):
    assert parse("report", text) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mask=none", {"mask": None}),
        ("mask=None,x=1", {"mask": None, "x": 1}),
        (" mask = none , x = -1 ", {"mask": None, "x": -1}),
        ("x=0,", {"x": 0}),
        (" ", {}),
    ],
)
def test_batch_dims_are_a_list_of_names_and_dimensions(text, value):
    assert parse("batch_dims", text) == value


@given(
    st.one_of(
        st.tuples(st.just("nproc"), st.integers(1, 10**6)),
        st.tuples(st.sampled_from(["report", "sync_batchnorm"]), st.booleans()),
        st.tuples(st.just("timeout"), st.floats(1e-3, 1e6)),
        st.tuples(st.just("accumulate"), st.integers(1, 10**6)),
        st.tuples(st.just("bucket_cap_mb"), st.floats(1e-3, 1e5) | st.just("auto")),
        st.tuples(st.just("gradient_as_bucket_view"), st.booleans() | st.just("auto")),
        st.tuples(st.just("comm_hook"), st.sampled_from(["fp16", "bf16", "fp16_ef", "bf16_ef", "powersgd", "auto"])),
        st.tuples(st.just("check_every"), st.integers(1, 10**6)),
        st.tuples(
            st.just("batch_dims"),
            st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True), st.none() | st.integers(-5, 5)),
        ),
    )
)
def test_a_value_survives_the_way_through_its_variable(option):
    name, value = option
    wanted = Options.resolve({name: value}, {})
    text = format_value(value)
    assert parse(name, text) == value
    assert Options.resolve({}, {variable(name): text}) == wanted


# --- mistakes ---------------------------------------------------------------------------------------------------------

BAD_VALUES = [
    ("nproc", 0),
    ("nproc", -1),
    ("nproc", 2.0),
    ("nproc", "2"),
    ("nproc", True),
    ("report", 1),
    ("report", None),
    ("sync_batchnorm", "yes"),
    ("sync_batchnorm", None),
    ("batch_dims", None),
    ("batch_dims", ["mask"]),
    ("batch_dims", {"mask": "none"}),
    ("batch_dims", {"mask": True}),
    ("batch_dims", {0: 1}),
    ("timeout", 0),
    ("timeout", -3.0),
    ("timeout", float("nan")),
    ("timeout", float("inf")),
    ("timeout", "60"),
    ("timeout", None),
    ("timeout", True),
    ("bucket_cap_mb", "fastest"),
    ("bucket_cap_mb", True),
    ("gradient_as_bucket_view", "fastest"),
    ("gradient_as_bucket_view", 1),
    ("comm_hook", "fp8"),
    ("comm_hook", True),
    ("check_every", 0),
    ("check_every", True),
    ("check_every", 2.0),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_value_that_cannot_be_used_is_named_with_its_option(name, value):
    with pytest.raises(OptionError) as caught:
        Options.resolve({name: value}, {})
    assert str(caught.value).startswith(f"{name}={value!r} cannot be used: {name} takes ")


BAD_TEXTS = [
    ("nproc", "two"),
    ("nproc", "1.5"),
    ("nproc", "0"),
    ("nproc", "-2"),
    ("report", "maybe"),
    ("report", "2"),
    ("sync_batchnorm", "none"),
    ("batch_dims", "mask"),
    ("batch_dims", "mask=first"),
    ("batch_dims", "mask=1=2"),
    ("batch_dims", "mask:none"),
    ("timeout", "long"),
    ("timeout", "0"),
    ("timeout", "-1"),
    ("timeout", "nan"),
    ("bucket_cap_mb", "fastest"),
    ("gradient_as_bucket_view", "fastest"),
    ("comm_hook", "fp8"),
    ("check_every", "often"),
    ("check_every", "0"),
]


@pytest.mark.parametrize(("name", "text"), BAD_TEXTS)
def test_a_text_that_cannot_be_used_is_named_with_its_variable(name, text):
    with pytest.raises(OptionError) as caught:
        Options.resolve({}, {variable(name): text})
    said = str(caught.value)
    assert f"{variable(name)}={text!r} cannot be used: {name} takes " in said


@pytest.mark.parametrize(
    ("name", "close"),
    [("n_proc", "nproc"), ("batch_dim", "batch_dims"), ("sync_batch_norm", "sync_batchnorm"), ("Report", "report")],
)
def test_a_misspelt_option_is_met_with_the_one_that_was_meant(name, close):
    with pytest.raises(OptionError) as caught:
        Options.resolve({name: 1}, {})
    assert str(caught.value) == f"ddp_patch.enable() has no option {name!r}. Did you mean {close!r}?"


def test_an_unknown_option_is_met_with_the_list():
    with pytest.raises(OptionError) as caught:
        Options.resolve({"zzz": 1}, {})
    assert str(caught.value) == (
        "ddp_patch.enable() has no option 'zzz'. The options are nproc, view, tail, batch, lr_scale, warmup, report, "
        "sync_batchnorm, batch_dims, accumulate, "
        "bucket_cap_mb, gradient_as_bucket_view, static_graph, find_unused_parameters, comm_hook, check_every, "
        "share_devices, timeout, quiet, traceback, trace."
    )


@pytest.mark.parametrize(
    ("name", "value"), [("bucket_cap_mb", "fastest"), ("gradient_as_bucket_view", "fastest"), ("comm_hook", "fp8")]
)
def test_an_unknown_rule_is_met_with_the_line_to_write(name, value):
    with pytest.raises(OptionError, match=f"Write {name}='auto' to have it chosen by measurement"):
        Options(**{name: value})


def test_an_option_error_is_a_value_error_too():
    with pytest.raises(ValueError, match="nproc=0") as caught:
        Options(nproc=0)
    assert isinstance(caught.value, DdpPatchError)


# --- the object -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_options_are_frozen(name):
    options = Options()
    before = getattr(options, name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, name, before)
    assert getattr(options, name) is before


def test_options_go_by_name():
    with pytest.raises(TypeError):
        Options(2)


def test_a_dict_that_changes_later_does_not_change_the_options():
    given_dims = {"mask": None}
    options = Options(batch_dims=given_dims)
    given_dims["mask"] = 1
    assert options.batch_dims == {"mask": None}
