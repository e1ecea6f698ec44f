"""Options as "auto": tried in the first steps, alike on all ranks, and never a change of numbers that nobody asked for."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ddp_patch
from ddp_patch.gradients.option_trial import LEFT_OUT, OptionTrial, values_of
from ddp_patch.options import Options

MIB = 2**20
VIEWS = ["global", "local"]


# --- what is tried, and taken -------------------------------------------------------------------------------------------------


def tried(trial, seconds_of, most=500):
    """Run a trial to its end; give what every step ran under."""
    seen = []
    while not trial.is_over:
        assert len(seen) < most
        options = trial.built.options
        seen.append((options.bucket_cap_mb, options.gradient_as_bucket_view, options.comm_hook))
        if trial.stepped(seconds_of(options, len(seen))):
            trial.choose([trial.times()])
        while trial.next_option() is not None and not trial.begin():
            pass
    return seen


def test_options_that_were_given_are_not_tried():
    trial = OptionTrial(Options(bucket_cap_mb=7.0), 100 * MIB)
    assert trial.is_over
    assert trial.built.options == Options(bucket_cap_mb=7.0)


@pytest.mark.parametrize(
    ("size", "values"),
    [
        (0, (25.0,)),
        (MIB, (25.0,)),
        (3 * MIB, (25.0, 1.0, 5.0)),
        (30 * MIB, (25.0, 1.0, 5.0, 100.0)),
        (400 * MIB, (25.0, 1.0, 5.0, 100.0)),
    ],
)
def test_sizes_of_buckets_that_make_a_difference_are_tried(size, values):
    assert values_of("bucket_cap_mb", size) == values


def test_the_fastest_is_taken_one_option_after_the_other():
    trial = OptionTrial(Options(bucket_cap_mb="auto", comm_hook="auto"), 30 * MIB)

    def seconds_of(options, step):
        return {1.0: 3, 5.0: 1, 25.0: 2, 100.0: 4}[options.bucket_cap_mb] - 0.3 * (options.comm_hook == "bf16")

    seen = tried(trial, seconds_of)
    assert trial.built.options == Options(bucket_cap_mb=5.0, comm_hook="bf16")
    assert seen[:LEFT_OUT] == [(25.0, False, None)] * LEFT_OUT
    assert len(seen) == LEFT_OUT + 4 * 2 * 5 * 2
    assert {hook for _, _, hook in seen[: LEFT_OUT + 40]} == {None}
    assert {cap for cap, _, _ in seen[LEFT_OUT + 40 :]} == {5.0}


def test_what_only_becomes_faster_with_time_is_not_taken_for_better():
    trial = OptionTrial(Options(bucket_cap_mb="auto"), 30 * MIB)
    tried(trial, lambda options, step: 100.0 - step)
    assert trial.built.options.bucket_cap_mb == 25.0


def test_a_gain_that_is_hardly_one_leaves_the_default():
    trial = OptionTrial(Options(comm_hook="auto"), 30 * MIB)
    tried(trial, lambda options, step: 1.0 if options.comm_hook is None else 0.97)
    assert trial.built.options.comm_hook is None


def test_the_slowest_rank_decides():
    trial = OptionTrial(Options(gradient_as_bucket_view="auto"), 30 * MIB)
    trial.stepped(1.0), trial.stepped(1.0), trial.stepped(1.0)
    trial.begin()
    while not trial.stepped(1.0):
        pass
    assert trial.choose([[1.0, 0.5], [1.0, 1.1]]) == (False, [1.0, 1.1])


# --- on ranks -----------------------------------------------------------------------------------------------------------------


def net(width=360):
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(width, 2)).double()  # 3 MiB of gradients


@contextlib.contextmanager
def noted():
    """What DDP is built with."""
    built = []
    wrap = nn.parallel.DistributedDataParallel.__init__

    def note(self, *args, **kwargs):
        built.append((kwargs.get("bucket_cap_mb", 25.0), kwargs.get("gradient_as_bucket_view")))
        wrap(self, *args, **kwargs)

    nn.parallel.DistributedDataParallel.__init__ = note
    try:
        yield built
    finally:
        nn.parallel.DistributedDataParallel.__init__ = wrap


def trained(*args):
    """Weights, what DDP was built with, and gradients that the script kept."""
    with noted() as built:
        return {**steps(*args), "built": built}


def steps(count=80, keeps=0, accumulate=1, width=360):
    model = net(width)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    drawn = torch.Generator().manual_seed(3)
    kept = []
    for step in range(count):
        for _ in range(accumulate):
            x, y = ddp_patch.shard_batch(
                (torch.randn(6, width, generator=drawn, dtype=torch.float64), torch.randint(2, (6,), generator=drawn))
            )
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if keeps and step % keeps == keeps - 1:
            kept.append(model[0].bias.grad)
            kept.append(model[1].bias.grad.detach()[:4])
        optimizer.zero_grad()
    weights = [p.detach().flatten()[:50].tolist() for p in model.parameters()]
    ledger = ddp_patch.report().ledger
    return {
        "weights": weights,
        "kept": [grad.tolist() for grad in kept],
        "choices": dict(ledger.choices),
        "notes": list(ledger.notes),
        "late": ledger.late,
    }


AUTO = {"bucket_cap_mb": "auto", "gradient_as_bucket_view": "auto"}


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_trials_change_no_number_and_are_alike_on_all_ranks(ranks, view):
    plain = ranks.call(trained, 2, enable={"view": view}).ok().results
    found = ranks.call(trained, 2, enable={"view": view, **AUTO}).ok().results
    assert found[0]["weights"] == plain[0]["weights"]  # to the last bit: two ranks add in one order
    assert found[0]["built"] == found[1]["built"]
    assert found[0]["choices"] == found[1]["choices"]
    assert found[0]["late"] == plain[0]["late"]
    assert {cap for cap, _ in found[0]["built"]} == {25.0, 1.0, 5.0}
    assert {is_view for _, is_view in found[0]["built"]} == {False, True}
    cap, is_view = found[0]["choices"].values()
    assert cap.startswith(("25.0: ", "1.0: ", "5.0: "))
    assert is_view.startswith(("True: ", "False: "))
    assert " ms for a step's backwards on the slowest rank; " in cap
    assert cap.endswith(" times as fast as with 25.0")


@pytest.mark.slow
def test_three_ranks_with_accumulation_differ_in_last_digits_at_most(ranks):
    plain = ranks.call(trained, 3, 22, 0, 2).ok().results
    found = ranks.call(trained, 3, 22, 0, 2, enable={"bucket_cap_mb": "auto"}).ok().results
    assert len(found[0]["built"]) > 2
    for one, other in zip(found[0]["weights"], plain[0]["weights"], strict=True):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_gradients_that_the_script_keeps_are_not_overwritten(ranks, view):
    plain = ranks.call(trained, 2, 30, 1, 1, 20, enable={"view": view}).ok().results
    found = ranks.call(trained, 2, 30, 1, 1, 20, enable={"view": view, "gradient_as_bucket_view": "auto"}).ok().results
    assert found[0]["kept"] == plain[0]["kept"]
    assert {is_view for _, is_view in found[0]["built"]} == {False}
    assert list(found[0]["choices"].values()) == ["False: the script keeps gradients of earlier steps"]


def keeps_later():
    try:
        trained(34, 11, 1, 20)
    except ddp_patch.GradientError as error:
        return str(error)


@pytest.mark.parametrize("view", VIEWS)
def test_those_that_it_begins_to_keep_later_are_named_before_they_are(ranks, view):
    """In the 11th step, when buckets share their memory."""
    options = {"view": view, "gradient_as_bucket_view": "auto"}
    for said in ranks.call(keeps_later, 2, enable=options).ok().results:
        assert "the script still holds a gradient of an earlier step of Sequential" in said
        assert "Write gradient_as_bucket_view=False, or keep copies: p.grad.clone()." in said


HABITS = ["zeroed in place", "a second backward"]


def all_habits():
    """With the last value of each option taken, whatever was measured."""
    OptionTrial.times = lambda self: [float(len(self.values) - index) for index in range(len(self.values))]
    found = []
    for habit in HABITS:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
        drawn = torch.Generator().manual_seed(3)
        for _ in range(57):
            optimizer.zero_grad(set_to_none=habit != "zeroed in place")
            (x,) = ddp_patch.shard_batch((torch.randn(6, 360, generator=drawn, dtype=torch.float64),))
            loss = model(x).square().mean()
            loss.backward(retain_graph=habit == "a second backward")
            if habit == "a second backward":
                (loss / 2).backward()
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
        found.append([p.detach().flatten()[:50].tolist() for p in model.parameters()])
    return found, list(ddp_patch.report().ledger.choices.values())


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_what_is_chosen_changes_no_number_later(ranks, view):
    plain = ranks.call(all_habits, 2, enable={"view": view}).ok().results
    found = ranks.call(all_habits, 2, enable={"view": view, **AUTO}).ok().results
    assert [numbers for numbers, _ in found] == [numbers for numbers, _ in plain]
    assert [choice.partition(":")[0] for choice in found[0][1]][:2] == ["5.0", "True"]


# --- compression, where it was asked for ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("view", "nproc"), [("global", 2), ("local", 3)])
def test_compression_is_tried_where_it_was_asked_for(ranks, view, nproc):
    plain = ranks.call(trained, nproc, 60, 0, 1, 20, enable={"view": view}).ok().results
    found = ranks.call(trained, nproc, 60, 0, 1, 20, enable={"view": view, "comm_hook": "auto"}).ok().results
    assert all(its["choices"] == found[0]["choices"] and its["weights"] == found[0]["weights"] for its in found)
    (choice,) = found[0]["choices"].values()
    assert choice.startswith(("None: ", "fp16: ", "bf16: ", "powersgd: "))
    assert len(found[0]["built"]) >= 1 + 6
    assert found[0]["weights"] != plain[0]["weights"]  # powersgd was tried too
    for one, other in zip(found[0]["weights"], plain[0]["weights"], strict=True):
        assert one == pytest.approx(other, abs=0.05)


# --- what is not tried ------------------------------------------------------------------------------------------------------------


def small():
    found = trained(8, 0, 1, 20)
    return found["choices"], len(found["built"]), str(ddp_patch.report())


def cut_short():
    return list(trained(8, 0, 1, 20)["choices"].values())


def test_a_run_that_ends_before_its_trial_says_so(ranks):
    for said in ranks.call(cut_short, 2, enable={"gradient_as_bucket_view": "auto"}).ok().results:
        assert said == ["still being tried when this was written; it takes 20 steps"]


def test_a_model_of_one_bucket_has_nothing_to_try(ranks):
    for choices, built, report in ranks.call(small, 2, enable={"bucket_cap_mb": "auto"}).ok().results:
        (name,) = choices
        assert name.startswith("bucket_cap_mb of Sequential (")
        assert choices[name] == "25.0: all gradients are in one bucket, whatever its size"
        assert built == 1
        assert f"  Chosen by measurement\n    {name}: {choices[name]}\n" in report


def compiled():
    model = net(20)
    step = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with noted() as built:
        for _ in range(6):
            (x,) = ddp_patch.shard_batch((torch.ones(6, 20, dtype=torch.float64),))
            optimizer.zero_grad()
            step(x).square().mean().backward()
            optimizer.step()
    return built, list(ddp_patch.report().ledger.choices.values())


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_what_is_compiled_keeps_the_defaults(ranks, view):
    for built, choices in ranks.call(compiled, 2, enable={"view": view, "comm_hook": "auto"}).ok().results:
        assert len(built) == 1
        assert choices == ["not tried: torch.compile would compile anew for each value"]


def two_models():
    """A generator and a discriminator, each with its optimizer."""
    torch.manual_seed(0)
    makes, tells = nn.Linear(4, 5).double(), nn.Linear(5, 1).double()
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in (makes, tells)]
    for _ in range(50):
        z, x = ddp_patch.shard_batch((torch.randn(6, 4).double(), torch.randn(6, 5).double()))
        tells.zero_grad()
        (F.softplus(-tells(x)).mean() + F.softplus(tells(makes(z).detach())).mean()).backward()
        optimizers[1].step()
        makes.zero_grad()
        F.softplus(-tells(makes(z))).mean().backward()
        optimizers[0].step()
    names = [name.partition(" of ")[2] for name in ddp_patch.report().ledger.choices]
    return [p.tolist() for model in (makes, tells) for p in model.parameters()], names


def one_model_after_another(how):
    """A model that is gone, or trained no more, before its trial is over."""
    optimizers, kept = [], []
    for width in (300, 360):
        model = net(width)
        optimizers.append(torch.optim.SGD(model.parameters(), 0.01))
        for _ in range(5 if width == 300 else 170):
            (x,) = ddp_patch.shard_batch((torch.ones(6, width, dtype=torch.float64),))
            optimizers[-1].zero_grad()
            model(x).square().mean().backward()
            optimizers[-1].step()
        if how == "kept":
            kept.append(model)
        else:
            del optimizers[0], model
    return list(ddp_patch.report().ledger.choices.values())


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("how", ["kept", "gone"])
def test_a_model_that_is_trained_no_more_leaves_the_turn_to_the_next(ranks, how, view):
    options = {"view": view, "gradient_as_bucket_view": "auto"}
    first, second = ranks.call(one_model_after_another, 2, how, enable=options).ok().results
    assert first == second
    assert any("ms for a step's backwards on the slowest rank" in said for said in first)
    assert any("it is not trained any more" in said for said in first) is (how == "kept")


def frozen_in_turn():
    """The teller judges in the maker's step, and is not trained by it."""
    torch.manual_seed(0)
    makes, tells = nn.Linear(4, 5).double(), net(5)
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in (tells, makes)]
    with noted() as built:
        for _ in range(40):
            z, x = ddp_patch.shard_batch((torch.ones(6, 4).double(), torch.ones(6, 5).double()))
            tells.requires_grad_()
            optimizers[0].zero_grad()
            (tells(x).mean() - tells(makes(z).detach()).mean()).backward()
            optimizers[0].step()
            tells.requires_grad_(False)
            optimizers[1].zero_grad()
            tells(makes(z)).mean().backward()
            optimizers[1].step()
    return built


@pytest.mark.slow
def test_a_model_that_is_frozen_in_turn_is_built_with_what_is_tried(ranks):
    options = {"view": "local", "gradient_as_bucket_view": "auto"}
    for built in ranks.call(frozen_in_turn, 2, enable=options).ok().results:
        assert [view for _, view in built][1:4] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_models_are_tried_one_after_the_other(ranks, view):
    plain = ranks.call(two_models, 2, enable={"view": view}).ok().results
    options = {"view": view, "gradient_as_bucket_view": "auto"}
    found = ranks.call(two_models, 2, enable=options).ok().results
    assert [weights for weights, _ in found] == [weights for weights, _ in plain]
    assert len(found[0][1]) == 2
    assert found[0][1] == found[1][1]
