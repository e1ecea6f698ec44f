"""view="local": what hand-written DDP computes, from one line."""

import contextlib
import logging
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from local import as_one, habits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

import ddp_patch
from ddp_patch.local.generators import LocalGenerators
from ddp_patch.replica.trained import Trained

CASES = [
    "shuffled",
    "in_order_with_adam",
    "without_the_last_batch",
    "weighted",
    "dropout_and_noise",
    "accumulated",
    "accumulated_with_a_ragged_end",
    "batch_norm_of_a_rank",
    "validated_with_batch_norm_of_a_rank",
    "buffers_that_a_forward_writes_to",
    "gan",
    "batches_of_its_own",
    "batch_sampler_of_torchs",
    "sampled_from_a_part",
    "told_its_epoch",
    "not_told_its_epoch",
    "many_rows_at_once",
    "streamed",
    "lstm_with_its_loss_inside",
    "augmented_by_workers",
    "one_optimizer_for_two_models",
    "sparse_embedding",
    "graph_in_a_sparse_buffer",
    "loaders_made_anew",
    "seeded_between_trainings",
    "gradient_penalty",
    "gradients_that_are_asked_for",
]
OPTIONS = {name: {"sync_batchnorm": False} for name in ("batch_norm_of_a_rank", "validated_with_batch_norm_of_a_rank")}


def same(left, right, path=""):
    if isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            same(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right, strict=True)):
            same(*pair, f"{path}[{index}]")
    elif isinstance(left, str):
        assert left == right, path
    else:
        assert left == pytest.approx(right, rel=1e-9, abs=1e-12), path


@pytest.mark.quick(
    "weighted-2",
    "batch_norm_of_a_rank-2",
    "accumulated_with_a_ragged_end-2",
    "augmented_by_workers-2",
    "gan-2",
    "gradients_that_are_asked_for-2",
)
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_rank_computes_what_it_computes_under_hand_written_ddp(ranks, name, nproc):
    by_hand = ranks.call(habits.without_ddp_patch, nproc, name, bare=True).ok()
    options = {"view": "local", **OPTIONS.get(name, {})}
    found = ranks.call(habits.with_ddp_patch, nproc, name, enable=options).ok()
    for rank in range(nproc):
        same(found.results[rank], by_hand.results[rank], f"rank {rank}")


ALIKE = [
    ("batch_norm",),
    ("batch_norm_computed_again", False),
    ("batch_norm_computed_again", True),
    ("batch_norm_past_forward",),
    ("a_method_beside_forward",),
    ("a_method_alone",),
    ("forward_then_a_method",),
    ("a_graph_kept",),
    ("a_parameter_beside",),
    ("unfrozen_between_epochs",),
    ("unfrozen_in_an_epoch",),
    ("unused_parameters",),
    ("steps_by_hand",),
    ("computed_again",),
    ("compiled",),
    ("in_data_parallel",),
    ("parts_apart",),
    ("closures",),
    ("scaled",),
    ("empty_group",),
    ("converted_and_back",),
    ("a_step_within_the_loss",),
    ("evaluated_before_training",),
    ("statistics_of_a_copy",),
    *(("exact_tail", count) for count in (48, 49, 50, 53)),
    ("exact_tail_of_batches",),
    ("exact_tail_of_small_batches",),
    ("exact_tail_without_a_loader",),
    *((f"exact_tail_{how}", count) for how in ("of_two_models", "past_forward", "accumulated") for count in (49, 53)),
]
FOR_ALIKE = {"unused_parameters": {"find_unused_parameters": True}}


@pytest.mark.quick("a_parameter_beside-2", "exact_tail-53-2", "unused_parameters-2")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("case", ALIKE, ids=lambda case: "-".join(map(str, case)))
def test_with_even_shares_ranks_learn_what_one_process_learns(ranks, case, nproc):
    """Also where hand-written DDP would keep a rank's own gradients without a word."""
    alone = ranks.call(as_one.run, 1, *case).ok()
    options = {"view": "local", **FOR_ALIKE.get(case[0], {})}
    if case[0].startswith("exact_tail"):
        options["tail"] = "exact"
    found = ranks.call(as_one.run, nproc, *case, enable=options).ok()
    for rank in range(nproc):
        same(found.results[rank], alone.results[0], f"rank {rank}")


@pytest.mark.quick("rows-2")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("how", ["rows", "batches"])
def test_under_an_exact_tail_nothing_that_ranks_take_in_turn_comes_twice(ranks, how, nproc):
    alone = ranks.call(as_one.run, 1, "in_groups", how, nproc).ok()
    options = {"view": "local", "tail": "exact"} | ({"batch": "per_device"} if how == "batches" else {})
    found = ranks.call(as_one.run, nproc, "in_groups", how, enable=options).ok()
    for rank in range(nproc):
        same(found.results[rank], alone.results[0], f"rank {rank}")


def test_accelerators_are_seeded_once_with_torchs_generator():
    generators = LocalGenerators(1, torch.device("cpu"))
    assert generators.seed("torch.manual_seed", 5) == 5  # before the first epoch
    generators.reseeded()
    generators.make_per_rank()
    assert generators.seed("torch.manual_seed", 5) == 6
    assert generators.seed("torch.cuda.manual_seed_all", 6) == 6  # by torch.manual_seed
    generators.reseeded()
    assert generators.seed("torch.cuda.manual_seed_all", 6) == 7  # by the script
    generators.restore_shared()


def test_what_optimizers_train_has_one_order_on_all_ranks():
    """Sets go by identity, which differs from process to process; what is averaged together must not."""
    trained, kept = Trained(), []
    for size in range(40):
        kept.append([bytearray(64) for _ in range(size)])
        kept.append(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1))
        trained.add(kept[-1])
    wanted = [optimizer.param_groups[0]["params"][0] for optimizer in kept[1::2]]
    assert [*map(id, trained.parameters())] == [*map(id, wanted)]


# --- what would be wrong is said ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evaluated_with_gradients_before_a_method", "unused_parameters"])
def test_a_backward_that_reaches_a_part_of_what_ddp_waits_for_is_an_error(ranks, name):
    outcome = ranks.call(as_one.run, 2, name, enable={"view": "local"})
    assert not outcome.late
    assert outcome.codes == [1, 1]
    assert "GradientError: A backward gave some parameters of the model no gradient on this rank" in outcome.stderr[0]
    assert "find_unused_parameters=True" in outcome.stderr[0]


def parts_by_a_value():
    """Ranks stop training at different batches, by their own losses."""
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(habits.rows(48), 12):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if ddp_patch.rank() == 1:  # for instance: loss < best
            torch.save({}, "best.pt")


def test_ranks_that_decide_by_their_own_rows_are_told_so(ranks):
    outcome = ranks.call(parts_by_a_value, 2, enable={"view": "local"})
    assert not outcome.late
    assert any(outcome.codes)
    assert "LockstepError" in "".join(outcome.stderr)
    assert "ddp_patch.mean" in "".join(outcome.stderr)


def one_goes_its_own_way(how):
    """Rank 1 does not do what the others do."""
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for step, (x, y) in enumerate(DataLoader(habits.rows(48), 12)):
            is_odd = ddp_patch.rank() == 1 and step == 1
            if is_odd and how == "raises":
                raise ValueError("of rank 1")
            if is_odd and how == "is interrupted":
                raise KeyboardInterrupt
            if is_odd and how == "returns":
                return
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if not (is_odd and how == "leaves a step out"):
                optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "ValueError: of rank 1"),
        ("is interrupted", "KeyboardInterrupt"),
        ("returns", "LockstepError"),
        ("leaves a step out", "optimizers made different numbers of steps: [4, 3], by rank"),
    ],
)
def test_a_rank_that_goes_its_own_way_ends_the_job(ranks, how, said):
    """In a with statement, at whose end ranks tell each other what they let out."""
    outcome = ranks.call(one_goes_its_own_way, 2, how, enable={"view": "local"}, timeout=30)
    assert not outcome.late
    assert any(outcome.codes)
    assert said in "".join(outcome.stderr)


KEPT = []


def decides_rates_by_its_own_rows(how):
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(1 if how == "at the end" else 3):
        for x, y in DataLoader(habits.rows(48), 12):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for value in ([0.5, 0.4] if ddp_patch.rank() else [0.4, 0.5]) if epoch == 0 else []:
            scheduler.step(value if how != "as advised" else ddp_patch.mean(value))
    KEPT.append(optimizer)  # as a script's module does until the end
    return optimizer.param_groups[0]["lr"]


@pytest.mark.slow
def test_ranks_that_train_at_other_rates_are_told_so(ranks):
    outcome = ranks.call(decides_rates_by_its_own_rows, 2, "its own", enable={"view": "local"})
    assert not outcome.late
    assert outcome.codes == [1, 1]
    assert (
        "an optimizer has other learning rates on the ranks: [0.010000000000000002, 0.1], by rank" in outcome.stderr[0]
    )
    outcome = ranks.call(decides_rates_by_its_own_rows, 2, "at the end", enable={"view": "local"}).ok()
    assert "an optimizer has other learning rates on the ranks" in outcome.stderr[0]
    outcome = ranks.call(decides_rates_by_its_own_rows, 2, "as advised", enable={"view": "local"}).ok()
    assert len(set(outcome.results)) == 1


def one_backward_for_all_batches():
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sum(F.cross_entropy(model(x), y) for x, y in DataLoader(habits.rows(53), 12)).backward()
    optimizer.step()


def leaves_the_last_step_out():
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, (x, y) in enumerate(DataLoader(habits.rows(48), 12)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if ddp_patch.rank() == 0 or step < 3:
            optimizer.step()


def test_a_step_that_one_rank_leaves_out_in_the_last_epoch_is_told_at_the_end(ranks):
    outcome = ranks.call(leaves_the_last_step_out, 2, enable={"view": "local"}).ok()
    assert "optimizers made different numbers of steps: [4, 3], by rank" in outcome.stderr[0]


def raises_between_two_backwards():
    """Rank 1 does, when gradients wait for the second."""
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, (x, y) in enumerate(DataLoader(habits.rows(96), 12)):
        F.cross_entropy(model(x), y).backward()
        if step == 4 and ddp_patch.rank() == 1:
            raise ValueError("of rank 1")
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.slow
def test_a_rank_that_raises_while_gradients_wait_keeps_nobody_waiting(ranks):
    outcome = ranks.call(raises_between_two_backwards, 2, enable={"view": "local"}, timeout=30)
    assert not outcome.late
    assert all(outcome.codes)
    assert "ValueError: of rank 1" in outcome.stderr[1]


def two_loaders_at_once(first=53, second=52):
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x, y), (z, _) in zip(DataLoader(habits.rows(first), 12), DataLoader(habits.rows(second), 12), strict=True):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + model(z).square().mean()).backward()
        optimizer.step()
    return habits.weights(model)


@pytest.mark.slow
def test_two_loaders_at_once_are_weighed_where_ranks_have_the_same_shares_of_both(ranks):
    (alone,) = ranks.call(two_loaders_at_once, 1, 53, 53).ok().results
    for found in ranks.call(two_loaders_at_once, 2, 53, 53, enable={"view": "local", "tail": "exact"}).ok().results:
        same(found, alone)


@pytest.mark.quick("two_loaders")
@pytest.mark.parametrize("script", [one_backward_for_all_batches, two_loaders_at_once], ids=lambda its: its.__name__)
def test_batches_with_other_weights_in_one_backward_are_an_error(ranks, script):
    outcome = ranks.call(script, 2, enable={"view": "local", "tail": "exact"})
    assert not outcome.late
    assert outcome.codes == [1, 1]
    assert "BatchError: test_local_view.py:" in "".join(outcome.stderr)
    assert "Call backward for each batch before the next one is fetched" in "".join(outcome.stderr)


def renews_statistics(how):
    """Of 25 rows, 12 at a time, the last batch has one."""
    model = habits.mlp(torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(habits.rows(25), 12)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    if how == "update_bn":
        torch.optim.swa_utils.update_bn(loader, model)
    else:
        with torch.no_grad():
            for x, _ in loader:
                model.train(how == "in training")(x)
    return len(x)


@pytest.mark.slow
def test_statistics_of_a_batch_with_fewer_rows_than_ranks_are_an_error_under_an_exact_tail(ranks):
    exact = {"view": "local", "tail": "exact"}
    for how in ("update_bn", "in training"):
        outcome = ranks.call(renews_statistics, 2, how, enable=exact, timeout=60)
        assert not outcome.late
        assert outcome.codes == [1, 1]
        assert "has fewer rows than there are ranks: [1, 0], by rank" in outcome.stderr[0]
        assert "Write tail='pad'." in outcome.stderr[0]
    assert ranks.call(renews_statistics, 2, "in evaluation", enable=exact).ok().results == [1, 6]


def says_what_it_lets_out():
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    best = torch.tensor(10.0)
    log, board = open("log.txt", "w"), SummaryWriter("board")
    for _ in range(2):
        for x, y in DataLoader(habits.rows(48), 12):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())
            print(ddp_patch.mean(loss).item(), len(x))
            if (loss.detach() * 1e9).long() % 2 == 0:
                best = loss
            torch.save({"model": model.state_dict(), "loss": loss.item()}, "last.pt")
            torch.save({"model": model.state_dict(), "rng": torch.get_rng_state(), "epoch": 1}, "same.pt")
            logging.getLogger("train").warning("loss %.4f", loss.item())
            log.write(f"{loss.item()}\n")
            log.write(f"{ddp_patch.mean(loss).item()}\n")
            board.add_scalar("loss", loss.item(), 1)
            board.add_scalar("mean", ddp_patch.mean(loss).item(), 1)
    log.close()
    for _ in DataLoader(habits.rows(48), 12):
        pass
    assert best is not None
    return list(ddp_patch.report().ledger.notes)


def test_the_report_names_lines_that_let_a_ranks_own_numbers_out(ranks):
    outcome = ranks.call(says_what_it_lets_out, 2, enable={"view": "local"}).ok()
    lines = Path(__file__).read_text().splitlines()
    let_out = {
        "print(loss.item())": "printed",
        "if (loss.detach() * 1e9).long() % 2 == 0:": "branched on",
        'torch.save({"model": model.state_dict(), "loss": loss.item()}, "last.pt")': "saved",
        'logging.getLogger("train").warning("loss %.4f", loss.item())': "logged",
        'log.write(f"{loss.item()}\\n")': "written",
        'board.add_scalar("loss", loss.item(), 1)': "logged",
    }
    wanted = [f"test_local_view.py:{lines.index(f'            {text}') + 1}: {how}" for text, how in let_out.items()]
    for notes in outcome.results:
        told = sorted(note for note in notes if "of each rank's own rows" in note)
        assert [note.partition(",")[0] for note in told] == sorted(wanted)
        assert all("ddp_patch.mean(value)" in note for note in told)


# --- several models -----------------------------------------------------------------------------------------------------


def trains_two(is_frozen):
    """A maker that steps after two steps of a teller, which it goes through."""
    torch.manual_seed(2)
    makes, tells = torch.nn.Linear(5, 5).double(), torch.nn.Linear(5, 1).double()
    of_maker = torch.optim.SGD(makes.parameters(), 0.1)
    of_teller = torch.optim.SGD(tells.parameters(), 0.1)
    for step, (x, _) in enumerate(DataLoader(habits.rows(96), 12)):
        tells.requires_grad_()
        of_teller.zero_grad()
        (tells(x).mean() - tells(makes(x).detach()).square().mean()).backward()
        of_teller.step()
        tells.requires_grad_(not is_frozen)
        (tells(makes(x)).square().mean() / 2).backward()
        if step % 2:
            of_maker.step()
            of_maker.zero_grad()
    ledger = ddp_patch.report().ledger
    return habits.weights(makes, tells), ledger.late, ledger.deferred


@pytest.mark.slow
@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_step_averages_the_gradients_that_it_reads(ranks, is_frozen):
    ((alone, _, _),) = ranks.call(trains_two, 1, is_frozen).ok().results
    for found, late, deferred in ranks.call(trains_two, 2, is_frozen, enable={"view": "local"}).ok().results:
        same(found, alone)
        assert late == 0
        assert deferred > 0  # backwards of the maker that no step followed


def trains_a_part(how):
    """What an optimizer has beside the parameters that the model trains must not keep module calls watched."""
    written = vars(torch.nn.Module)["__call__"]
    model = as_one.Coder().double()
    beside = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    if how == "frozen":
        model.codes.requires_grad_(False)
    given = [*model.parameters(), beside] if how == "beside" else model.parameters()
    optimizer, watched = torch.optim.SGD(given, 0.1), []
    for _ in range(2):
        for x, y in DataLoader(habits.rows(24), 12):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x) * beside, y)
            if how != "frozen":
                loss = loss + model.encode(x).square().mean()
            loss.backward()
            optimizer.step()
        watched.append(vars(torch.nn.Module)["__call__"] is not written)
    return watched, len(ddp_patch.report().ledger.replicas), habits.weights(model)


@pytest.mark.quick("beside")
@pytest.mark.parametrize("how", ["frozen", "beside"])
def test_module_calls_are_watched_until_all_is_found(ranks, how):
    ((_, _, alone),) = ranks.call(trains_a_part, 1, how).ok().results
    for watched, models, found in ranks.call(trains_a_part, 2, how, enable={"view": "local"}).ok().results:
        assert watched == ([False, False] if how == "frozen" else [True, False])
        assert models == 1  # not the parts that a method beside forward calls
        same(found, alone)


# --- values -------------------------------------------------------------------------------------------------------------


def values():
    r = ddp_patch.rank()
    rows = torch.arange(r, 7, ddp_patch.world_size()).reshape(-1, 1)
    return {
        "mean": [
            ddp_patch.mean(r),
            ddp_patch.mean(torch.tensor([r, 1])).tolist(),
            ddp_patch.mean(torch.tensor(0.5 * r)).item(),
        ],
        "sum": [ddp_patch.sum(r), ddp_patch.sum(0.5), ddp_patch.sum(torch.tensor([True, r > 0])).tolist()],
        "gather": [
            ddp_patch.gather(rows).flatten().tolist(),
            ddp_patch.gather([str(v) for v in rows.flatten().tolist()]),
        ],
        "dealt": [
            ddp_patch.gather(ddp_patch.shard_batch(torch.arange(7))).tolist(),
            ddp_patch.gather(ddp_patch.shard_batch({"x": torch.arange(14).reshape(2, 7)}, dim=1)["x"].t())[
                :, 1
            ].tolist(),
            ddp_patch.gather(ddp_patch.shard_batch(torch.arange(1))).tolist(),
        ],
        "needs grad": ddp_patch.mean(torch.ones(2, requires_grad=True)).requires_grad,
    }


@pytest.mark.quick("2")
@pytest.mark.parametrize("nproc", [2, 3])
def test_values_of_all_ranks(ranks, nproc):
    mean = sum(range(nproc)) / nproc

    def padded(order):
        return [*order, *order[: -7 % nproc]]

    for found in ranks.call(values, nproc, enable={"view": "local"}).ok().results:
        assert found == {
            "mean": [mean, [mean, 1.0], pytest.approx(mean / 2)],
            "sum": [sum(range(nproc)), nproc / 2, [nproc, nproc - 1]],
            "gather": [list(range(7)), [str(i) for i in range(7)]],
            "dealt": [padded(range(7)), padded(range(7, 14)), [0] * nproc],
            "needs grad": False,
        }


def test_values_are_given_back_where_they_are_those_of_all_rows():
    given = torch.ones(2)
    assert ddp_patch.mean(given) is ddp_patch.sum(given) is ddp_patch.gather(given) is given


def deals_other_values():
    ddp_patch.shard_batch(torch.full((4,), ddp_patch.rank()))


def test_batches_that_differ_between_ranks_are_not_dealt(ranks):
    outcome = ranks.call(deals_other_values, 2, enable={"view": "local"})
    assert outcome.codes == [1, 1]
    assert "and differs between ranks, so the batch would be of no rank's values" in outcome.stderr[0]


def bad_values():
    said = []
    for wrong in (
        lambda: ddp_patch.mean("a"),
        lambda: ddp_patch.sum(True),
        lambda: ddp_patch.gather(torch.ones(())),
        lambda: ddp_patch.sum(torch.ones(1 + ddp_patch.rank())),
        lambda: ddp_patch.gather(torch.ones(2, 1 + ddp_patch.rank())),
    ):
        try:
            wrong()
        except ddp_patch.BatchError as error:
            said.append(str(error))
    return said


def test_values_that_cannot_be_put_together_are_errors_on_every_rank(ranks):
    for said in ranks.call(bad_values, 2, enable={"view": "local"}).ok().results:
        assert [text.partition(": ")[2].partition(" ")[0] for text in said] == [
            "ddp_patch.mean('a'):",
            "ddp_patch.sum(True):",
            "ddp_patch.gather(a",
            "ddp_patch.sum(a",
            "ddp_patch.gather(a",
        ]


def calls_of_python(model):
    """Count those of a steady step."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, counts = torch.ones(8, 4), []
    for _ in range(20):
        calls = []
        sys.setprofile(lambda frame, event, given, calls=calls: calls.append(event) if event == "call" else None)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
        counts.append(len(calls))
    return counts[-1]


def calls_beside_ddp_by_hand():
    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    with ddp_patch.enable(view="local", quiet=True):
        model = net()
        first, second = calls_of_python(model), calls_of_python(model)  # with another optimizer
    by_hand = calls_of_python(DistributedDataParallel(net(), broadcast_buffers=False))
    return [first - by_hand, second - by_hand]


def test_a_step_costs_few_calls_more_than_ddp_by_hand(ranks):
    for first, second in ranks.call(calls_beside_ddp_by_hand, 2, bare=True).ok().results:
        assert second == first <= 0


def own_forwards_of_ddp(compiles):
    """Count those of eleven backwards, in seven steps."""
    torch.manual_seed(0)
    model, count = torch.nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    if compiles:
        model.compile(backend="eager")
    forward = DistributedDataParallel.forward

    def counting(*args, **kwargs):
        nonlocal count
        count += 1
        return forward(*args, **kwargs)

    DistributedDataParallel.forward = counting
    for step in range(11):
        model(torch.ones(8, 4) * (1 + ddp_patch.rank())).square().mean().backward()
        if step < 3 or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    DistributedDataParallel.forward = forward
    return [count, *model.weight.flatten().tolist()]


@pytest.mark.quick("False-options0")
@pytest.mark.parametrize(
    ("compiles", "options", "times"), [(False, {}, 1), (True, {}, 11), (False, {"static_graph": True}, 11)]
)
def test_ddps_own_forward_is_for_what_needs_all_of_it(ranks, compiles, options, times):
    """Its statistics, labels for profiles and guards for TorchDynamo are a third of a small model's forward."""
    (count, *weights), (_, *others) = (
        ranks.call(own_forwards_of_ddp, 2, compiles, enable={"view": "local", **options}).ok().results
    )
    assert count == times
    assert weights == others


def unfrozen_for_another_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)).requires_grad_(False)
    model[1].requires_grad_(True)
    x = torch.full((2, 3), 1.0 + ddp_patch.rank())
    for optimizer in (torch.optim.SGD(model[1].parameters(), 0.1), None):
        optimizer = optimizer or torch.optim.SGD(model.requires_grad_(True).parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return [p.detach().flatten().tolist() for p in model.parameters()]


def test_what_is_unfrozen_for_another_optimizer_is_averaged(ranks):
    first, second = ranks.call(unfrozen_for_another_optimizer, 2, enable={"view": "local"}).ok().results
    assert first == second


# --- one process outwards, N ranks inside -------------------------------------------------------------------------------


def outwards():
    import torch.distributed as dist

    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with open("log.txt", "a") as log:
        for x, y in DataLoader(habits.rows(48), 12):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write("step\n")
    torch.save(model.state_dict(), "model.pt")
    with open("log.txt") as log:
        lines = len(log.readlines())
    keys = list(torch.load("model.pt"))
    print("done")
    return {"ranks": [dist.get_rank(), dist.get_world_size()], "lines": lines, "keys": keys, "len": len(x)}


def test_effects_happen_once_and_torch_shows_the_ranks(ranks):
    outcome = ranks.call(outwards, 2, enable={"view": "local"}).ok()
    assert [found.pop("ranks") for found in outcome.results] == [[0, 2], [1, 2]]
    assert (
        outcome.results[0]
        == outcome.results[1]
        == {
            "lines": 4,
            "keys": ["0.weight", "0.bias", "2.weight", "2.bias"],
            "len": 6,
        }
    )
    assert outcome.stdout == ["done\n", ""]
    assert sorted(outcome.files()) == ["log.txt", "model.pt"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"view": "locl"}, "view='locl' cannot be used: view takes 'global' or 'local'."),
        ({"tail": "drop"}, "tail='drop' cannot be used: tail takes 'pad' or 'exact'."),
    ],
)
def test_unknown_views_are_errors(option, words):
    with pytest.raises(ddp_patch.OptionError, match=words):
        ddp_patch.enable(**option)


@pytest.mark.slow
def test_the_script_of_the_page_runs(ranks, tmp_path):
    page = (Path(__file__).parent.parent / "docs/local-view.md").read_text()
    code = page.partition("```text\n")[2].partition("```")[0]
    path = tmp_path / "train.py"
    path.write_text(code.replace('enable(view="local")', "enable()"))
    alone = ranks.script(path, 1).ok().stdout[0].splitlines()
    path.write_text(code)
    found = ranks.script(path, 2, options=["--view", "local"]).ok().stdout
    assert found[1] == ""
    lines = found[0].splitlines()
    assert len(lines) == len(alone) == 3
    assert lines != alone  # another order
    assert all(0 < float(line) < 2 for line in lines)


@pytest.mark.slow
def test_a_report_at_the_end_names_what_the_last_epoch_printed(ranks, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "for x in DataLoader(torch.arange(8.0), 4):\n"
        "    print(x.sum().item())\n"
    )
    outcome = ranks.script(path, 2, options=["--view", "local", "--report"]).ok()
    assert outcome.stdout[0].splitlines() == ["2.0", "10.0"]
    assert "train.py:4: printed, which differs between the ranks: a number of each rank's own rows" in outcome.stderr[0]


def copies():
    import copy

    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(habits.rows(24), 12):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    average = copy.deepcopy(model)
    torch.save(model, "whole.pt")
    loaded = torch.load("whole.pt", weights_only=False)
    return [type(kept).__name__ for kept in (model, average, loaded)], [
        torch.equal(kept(x), model(x)) for kept in (average, loaded)
    ]


def test_models_are_copied_and_saved_as_they_were_written(ranks):
    for found in ranks.call(copies, 2, enable={"view": "local"}).ok().results:
        assert found == [["Sequential"] * 3, [True, True]]


def validates_within_an_epoch(at, how):
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    others = iter(DataLoader(habits.rows(31), 6))
    for _ in range(2):
        for step, (x, y) in enumerate(DataLoader(habits.rows(25), 12)):
            if step == at:  # rows(25) have a last batch of one
                with torch.set_grad_enabled(how == "whole, with gradients"):
                    for a, _ in others if how == "one" else DataLoader(habits.rows(13), 6):
                        model(a)
                        if how != "whole, with gradients":
                            break
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    x, y = next(iter(DataLoader(habits.rows(7), 12)))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return habits.weights(model)


def validates_between_epochs(how):
    """And before the first; with an output that is written to, a last batch that is left out, and a gradient by hand."""
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    losses = []
    for epoch in range(3):
        with contextlib.nullcontext() if how == "with gradients" else torch.no_grad():
            for a, _ in DataLoader(habits.rows(13), 6):
                model(a)
                if how == "a part":
                    break
        for step, (x, y) in enumerate(DataLoader(habits.rows(25), 12)):
            if step == 2 and epoch == 1:
                break  # with a batch that no backward follows
            out = model(x)
            loss = F.cross_entropy(out.mul_(0.5), y)
            grads = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
            optimizer.zero_grad()
            with torch.no_grad():
                loss.backward()
            losses.append([grad.norm().item() for grad in grads])
            optimizer.step()
    return [losses, habits.weights(model)]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("how", ["whole", "with gradients", "a part"])
def test_an_exact_tail_survives_a_validation_between_epochs(ranks, how, nproc):
    (alone,) = ranks.call(validates_between_epochs, 1, how).ok().results
    exact = {"view": "local", "tail": "exact"}
    for found in ranks.call(validates_between_epochs, nproc, how, enable=exact).ok().results:
        same(found, alone)


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("at", [1, 2])
def test_an_exact_tail_survives_a_validation_before_it_and_beside_it(ranks, at, nproc):
    for how in ("whole, with gradients", "a part", "one"):
        (alone,) = ranks.call(validates_within_an_epoch, 1, at, how).ok().results
        exact = {"view": "local", "tail": "exact"}
        for found in ranks.call(validates_within_an_epoch, nproc, at, how, enable=exact).ok().results:
            same(found, alone)


def folds(how):
    """A new model, a copy of it and a new split in each fold."""
    import copy

    import numpy as np

    torch.manual_seed(0)
    data, found = habits.rows(48), []
    next(iter(DataLoader(data, 4)))  # a look at the shapes
    for _ in range(2):
        model = torch.nn.Linear(5, 2).double()
        target = copy.deepcopy(model)
        if how == "split":
            train, _ = torch.utils.data.random_split(data, [24, 24])
        else:
            train = torch.utils.data.Subset(data, np.random.permutation(48)[:24].tolist())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in DataLoader(train, 12):
            loss = F.cross_entropy(model(x), y) + (model(x) - target(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append([habits.weights(model, target), train.indices])
    return found


@pytest.mark.quick("2")
@pytest.mark.parametrize("nproc", [2, 3])
def test_what_has_to_agree_is_drawn_alike_after_ranks_have_drawn_apart(ranks, nproc):
    first, *others = ranks.call(folds, nproc, "split", enable={"view": "local"}).ok().results
    for other in others:
        same(other, first)
    assert first[0][1] != first[1][1]


def test_rows_that_ranks_choose_by_themselves_are_an_error(ranks):
    outcome = ranks.call(folds, 2, "own", enable={"view": "local"})
    assert not outcome.late
    assert outcome.codes == [1, 1]
    assert "the ranks deal different rows of DataLoader(Subset, 24 rows" in outcome.stderr[0]


def seeded_when_drawn(seed, kind, workers):
    """A sampler of the script's that seeds a global generator for each epoch."""
    import random

    import numpy as np

    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Seeded:
        def __iter__(self):
            of = {"torch": torch.manual_seed, "numpy": np.random.seed, "random": random.seed}
            of[seed](3)
            draw = {"torch": lambda: torch.randperm(24).tolist(), "numpy": lambda: np.random.permutation(24).tolist()}
            order = draw[seed]() if seed in draw else random.sample(range(24), 24)
            return iter(order if kind == "rows" else [order[at : at + 4] for at in range(0, 24, 4)])

        def __len__(self):
            return 24 if kind == "rows" else 6

    data = torch.utils.data.StackDataset(habits.rows(24), range(24))
    given = {"sampler": Seeded(), "batch_size": 4} if kind == "rows" else {"batch_sampler": Seeded()}
    loader, found = DataLoader(data, num_workers=workers, **given), []
    for _ in range(2):
        for (x, y), i in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            found.append(i)
    return sorted(ddp_patch.gather(torch.cat(found)).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["torch", "numpy", "random"])
def test_a_sampler_that_seeds_a_generator_draws_alike_on_all_ranks(ranks, seed):
    for kind, workers in (("batches", 1), ("batches", 0), ("rows", 0)):
        for found in ranks.call(seeded_when_drawn, 2, seed, kind, workers, enable={"view": "local"}).ok().results:
            assert found == sorted([*range(24)] * 2), (kind, workers)


def shuffles_between_epochs(what):
    """By the generator that ranks draw noise from."""
    import random

    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = habits.rows(24).tensors
    samples = list(zip(x, y, range(24), strict=True))
    batches = [[*range(at, at + 4)] for at in range(0, 24, 4)]
    found = []
    for epoch in range(3):
        if what == "samples":
            random.shuffle(samples)
            loader = DataLoader(samples, 12)
        elif what == "tensors":
            order = torch.randperm(24)
            loader = DataLoader(torch.utils.data.TensorDataset(x[order], y[order], order), 12)
        else:
            (random.Random(epoch) if what == "batches from a seed" else random).shuffle(batches)
            drawn = Batches(batches) if what == "own batches" else batches
            loader = DataLoader(samples, batch_sampler=drawn)
        for a, b, i in loader:
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
            found.append(i)
    return sorted(ddp_patch.gather(torch.cat(found)).tolist())


class Batches(list):
    def __iter__(self):
        yield from [*super().__iter__()]


@pytest.mark.quick("samples-global", "own batches-per_device")
@pytest.mark.parametrize("batch", ["global", "per_device"])
@pytest.mark.parametrize("what", ["batches", "own batches", "samples", "tensors"])
def test_rows_that_ranks_shuffle_by_themselves_are_an_error(ranks, what, batch):
    outcome = ranks.call(shuffles_between_epochs, 2, what, enable={"view": "local", "batch": batch})
    assert not outcome.late
    assert outcome.codes == [1, 1]
    assert "LockstepError: test_local_view.py:" in outcome.stderr[0]
    assert "the ranks deal different rows of DataLoader(" in outcome.stderr[0]


def test_rows_that_ranks_shuffle_alike_are_dealt(ranks):
    options = {"view": "local"}
    for found in ranks.call(shuffles_between_epochs, 2, "batches from a seed", enable=options).ok().results:
        assert found == sorted([*range(24)] * 3)


def a_loader_with_a_position(sampler):
    from torch.utils.data.distributed import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = habits.rows(8)
    loader = StatefulDataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False) if sampler else None)
    try:
        return [len(y) for _, y in loader]
    except ddp_patch.BatchError as error:
        return str(error)


@pytest.mark.slow
def test_a_loader_that_keeps_its_position_needs_a_sampler_of_its_own(ranks):
    for said in ranks.call(a_loader_with_a_position, 2, False, enable={"view": "local"}).ok().results:
        assert "a StatefulDataLoader keeps its position for checkpoints" in said
    assert ranks.call(a_loader_with_a_position, 2, True, enable={"view": "local"}).ok().results == [[2, 2]] * 2


def compiles_to_torchscript():
    @torch.jit.script
    def zeros(x: torch.Tensor):
        return torch.tensor(0.0) + torch.zeros_like(x)

    return zeros(torch.ones(2)).tolist()


def test_torchscript_finds_torchs_own_functions(ranks):
    assert ranks.call(compiles_to_torchscript, 2, enable={"view": "local"}).ok().results == [[0.0, 0.0]] * 2


class Shuffled(torch.utils.data.IterableDataset):
    """Draws its order as it goes, and rows of its own in each worker."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for i in torch.randperm(24).tolist():
            if i % step == first:
                yield i, torch.rand(())


class Seeded(Shuffled):
    def __iter__(self):
        torch.manual_seed(3)  # or workers would disagree among themselves, on one process as well
        return super().__iter__()


def streams(workers, is_kept):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    dataset = Seeded() if workers else Shuffled()
    loader, found = DataLoader(dataset, 4, num_workers=workers, persistent_workers=is_kept), []
    for _ in range(2):
        for i, drawn in loader:
            model(drawn[:, None]).mean().backward()
            optimizer.step()
            found.append(i)
    noise = torch.rand(()).item()
    return sorted(ddp_patch.gather(torch.cat(found)).tolist()), [len(i) for i in found], noise


@pytest.mark.quick("2-True")
@pytest.mark.parametrize(("workers", "is_kept"), [(0, False), (2, False), (2, True)])
def test_streams_that_shuffle_as_they_go_are_read_once(ranks, workers, is_kept):
    found = ranks.call(streams, 2, workers, is_kept, enable={"view": "local"}).ok().results
    for rows, sizes, _ in found:
        assert rows == sorted([*range(24)] * 2)
        assert sizes == [2] * 12
    assert found[0][2] != found[1][2]  # the script's own draws are still a rank's


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("of one rank's rows")


def catches_what_one_rank_meets(of_all):
    model = habits.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    skipped = 0
    for step, (x, y) in enumerate(DataLoader(habits.rows(48), 12)):
        optimizer.zero_grad()
        out = F.cross_entropy(model(x), y)
        if step == 1 and (of_all or ddp_patch.rank() == 1):
            out = Fails.apply(out)
        try:
            out.backward()
        except ValueError:
            skipped += 1
            continue
        optimizer.step()
    return skipped


@pytest.mark.slow
def test_an_error_of_one_rank_that_the_script_catches_ends_the_job(ranks):
    outcome = ranks.call(catches_what_one_rank_meets, 2, False, enable={"view": "local"})
    assert not outcome.late
    assert all(outcome.codes)
    assert "LockstepError" in "".join(outcome.stderr)


def test_an_error_of_every_rank_is_the_scripts_to_catch(ranks):
    assert ranks.call(catches_what_one_rank_meets, 2, True, enable={"view": "local"}).ok().results == [1, 1]


def after_the_view():
    import torch.nn as nn

    beside = nn.Parameter(torch.ones(3))
    with ddp_patch.enable(view="local"):
        model = habits.mlp()
        optimizer = torch.optim.SGD([*model.parameters(), beside], 0.1)
        for x, y in DataLoader(habits.rows(24), 12):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) * beside.sum()).backward()
    return ["grad" in vars(torch.Tensor), torch.rand(()).item(), beside.grad.tolist()]


def test_nothing_stays_behind_and_ranks_draw_alike_again(ranks):
    outcome = ranks.call(after_the_view, 2, bare=True).ok()
    first, second = outcome.results
    assert first == second
    assert first[0] is False


def down_by_hand(how):
    """Train without an optimizer, and say what it is told; or look at gradients of what is not trained."""
    model, delta, said = habits.mlp(), [], None
    try:
        for x, y in (batch for _ in range(2) for batch in DataLoader(habits.rows(48), 12)):
            noise = torch.zeros_like(x, requires_grad=True)
            loss = F.cross_entropy(model(x + noise), y)
            if how == "asks":
                grads = torch.autograd.grad(loss, [*model.parameters()])
            else:
                model.zero_grad()
                loss.backward()
                grads = [p.grad for p in model.parameters()]
                delta.append(noise.grad.abs().sum().item())
            with torch.no_grad():
                for p, grad in zip(model.parameters(), grads, strict=True):
                    if how == "data":
                        p.data = p.data - 0.1 * grad
                    elif how != "explains" and p is model[0].weight:
                        p -= 0.1 * grad
    except ddp_patch.GradientError as error:
        said = str(error)
    return said, delta


@pytest.mark.quick("data")
@pytest.mark.parametrize("how", ["in place", "data", "asks", "explains"])
def test_a_training_without_an_optimizer_is_refused(ranks, how):
    found = ranks.call(down_by_hand, 2, how, enable={"view": "local"}).ok().results
    for said, _ in found:
        assert said is None if how == "explains" else "Write torch.optim.SGD(model.parameters(), lr), or" in said
    if how == "explains":  # each rank's own rows
        assert found[0][1] != found[1][1]


def steps_inside_of_backwards():
    """Let each gradient go as soon as it is used, as ``optimizer step in backward`` of torch's tutorials does."""
    torch.manual_seed(0)
    model = habits.mlp()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(hook)
    try:
        for x, y in DataLoader(habits.rows(48), 12):
            F.cross_entropy(model(x), y).backward()
    except ddp_patch.GradientError as error:
        return str(error)
    return [parameter.sum().item() for parameter in optimizers]


@pytest.mark.slow
def test_a_step_inside_of_a_backward_is_refused(ranks):
    for said in ranks.call(steps_inside_of_backwards, 2, enable={"view": "local"}).ok().results:
        assert "SGD steps inside a backward" in said
    (alone,) = ranks.call(steps_inside_of_backwards, 1).ok().results  # where no other test left another default dtype
    assert ranks.call(steps_inside_of_backwards, 2).ok().results[0] == pytest.approx(alone, 1e-12)


def tensors_of_folds(alike):
    """Train a tensor for each of two folds; the second is drawn where the ranks' random numbers have parted."""
    drawn, found = torch.Generator().manual_seed(0) if alike else None, []
    try:
        for _ in range(2):
            weight = torch.randn(5, 2, dtype=torch.float64, generator=drawn, requires_grad=True)
            optimizer = torch.optim.SGD([weight], 0.1)
            for x, y in DataLoader(habits.rows(48), 12):
                optimizer.zero_grad()
                F.cross_entropy(x @ weight, y).backward()
                optimizer.step()
            found.append(weight.sum().item())
    except ddp_patch.GradientError as error:
        return str(error)
    return found


def test_a_tensor_that_ranks_drew_apart_is_not_averaged(ranks):
    for said in ranks.call(tensors_of_folds, 2, False, enable={"view": "local"}).ok().results:
        assert "a tensor of shape (5, 2) that an optimizer trains, and no module holds, is another one on each" in said
    first, second = ranks.call(tensors_of_folds, 2, True, enable={"view": "local"}).ok().results
    assert first == second
