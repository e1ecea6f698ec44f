"""``python -m ddp_patch plan``: arithmetic against closed forms, simulations and published figures; then what it says."""

import ast
import contextlib
import heapq
import io
import itertools
import json
import math
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_patch.plan import advice, command, learning, memory, profile, units
from ddp_patch.plan.compression import powersgd
from ddp_patch.plan.job import PlannedJob, Run, StepWork
from ddp_patch.plan.network import ALGORITHMS, Link, Shape, all_reduce, fastest, halving, hierarchical, ring, tree
from ddp_patch.plan.overlap import MIB, buckets, exposed, finished
from ddp_patch.plan.scaling import below, point, predicted, reason
from ddp_patch.plan.text import where

DOCS = Path(__file__).parent.parent / "docs" / "plan.md"
FAST, SLOW = Link(200e9, 2e-6), Link(20e9, 8e-6)


def flat(ranks, link=SLOW):
    return Shape(ranks, 1, FAST, link)


# --- an all-reduce: closed forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_one_rank_sends_nothing(algorithm):
    assert algorithm(1e9, Shape(1, 1, FAST, SLOW)).seconds == 0


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 100, 1024])
def test_closed_forms_of_ranks_that_are_all_alike(ranks):
    size, near = 1e9, pytest.approx
    least = 2 * (ranks - 1) / ranks * size / SLOW.bandwidth  # no algorithm can send less
    assert ring(size, flat(ranks)).seconds == near(2 * (ranks - 1) * SLOW.latency + least)
    assert hierarchical(size, flat(ranks)).seconds == near(ring(size, flat(ranks)).seconds)
    levels = math.ceil(math.log2(ranks))
    assert tree(size, flat(ranks)).seconds == near(2 * levels * SLOW.latency + 2 * size / SLOW.bandwidth)
    if ranks & (ranks - 1) == 0:
        assert halving(size, flat(ranks)).seconds == near(2 * levels * SLOW.latency + least)


def test_devices_of_a_host_share_its_way_to_the_others():
    size, shape = 8e9, Shape(4, 8, FAST, SLOW)
    assert hierarchical(size, shape).transfer == pytest.approx(2 * 7 / 8 * size / 200e9 + 2 * 3 / 4 * size / 20e9)
    assert halving(size, shape).transfer == pytest.approx(hierarchical(size, shape).transfer)
    assert halving(size, shape).latency == pytest.approx(2 * (3 * 2e-6 + 2 * 8e-6))
    assert ring(size, shape).transfer == pytest.approx(2 * 31 / 32 * size / 20e9)
    assert ring(size, shape).latency == pytest.approx(2 * (27 * 2e-6 + 4 * 8e-6))


def test_what_is_small_goes_by_the_tree_and_what_is_large_by_the_ring():
    assert fastest(8, flat(64)) == "tree"
    assert fastest(8e9, flat(64)) == "ring"
    assert fastest(1e8, Shape(4, 8, FAST, SLOW)) == "hierarchical"


# --- an all-reduce: simulated -----------------------------------------------------------------------------------------


def simulated_ring(links, size, steps):
    """Each rank sends a chunk on as soon as it has come and its wire is free; a wire is not busy while a byte flies."""
    ranks, come, free = len(links), [0.0] * len(links), [0.0] * len(links)
    for _ in range(steps):
        begin = [max(come[rank], free[rank]) for rank in range(ranks)]
        free = [begin[rank] + size / ranks / links[rank].bandwidth for rank in range(ranks)]
        come = [free[rank - 1] + links[rank - 1].latency for rank in range(ranks)]
    return max(come)


@pytest.mark.parametrize("size", [8, 1e6, 1e9])
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_the_ring_is_what_a_simulation_of_its_messages_gives(ranks, size):
    links = [SLOW] * ranks
    assert ring(size, flat(ranks)).seconds == pytest.approx(simulated_ring(links, size, 2 * (ranks - 1)))


@pytest.mark.parametrize("size", [8, 1e6, 1e9])
@pytest.mark.parametrize(("hosts", "devices"), [(2, 2), (2, 8), (16, 4)])
def test_a_ring_over_hosts_takes_no_longer_than_the_formula_and_at_least_half_of_it(hosts, devices, size):
    """The formula adds the flight of a chunk and the work of the slowest wire; each alone is a lower bound."""
    links = ([FAST] * (devices - 1) + [SLOW]) * hosts
    found = simulated_ring(links, size, 2 * (len(links) - 1))
    assert found <= ring(size, Shape(hosts, devices, FAST, SLOW)).seconds * (1 + 1e-9) <= 2 * found


@pytest.mark.parametrize("size", [8, 1e6, 1e9])
@pytest.mark.parametrize(("hosts", "devices"), [(2, 2), (4, 8), (3, 5)])
def test_the_hierarchical_one_is_three_simulated_rings(hosts, devices, size):
    shared = Link(SLOW.bandwidth / devices, SLOW.latency)
    inside = simulated_ring([FAST] * devices, size, devices - 1)
    between = simulated_ring([shared] * hosts, size / devices, 2 * (hosts - 1))
    assert hierarchical(size, Shape(hosts, devices, FAST, SLOW)).seconds == pytest.approx(2 * inside + between)


def parents(ranks):
    """A binary tree over ranks: whoever is odd is a leaf."""
    found = {}
    for rank in range(1, ranks):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        found[rank] = up if up < ranks else rank ^ bit
    return found


def simulated_trees(ranks, link, size, chunks):
    """Two trees, the second with all ranks shifted by one, each for half of the chunks: up to the root, and down.

    A rank sends one chunk at a time and receives one at a time; of those that could go, the oldest goes.
    """
    once = size / 2 / chunks / link.bandwidth
    trees = [parents(ranks)]
    trees.append({(rank + 1) % ranks: (up + 1) % ranks for rank, up in trees[0].items()})
    children = [{up: [r for r in tree if tree[r] == up] for up in range(ranks)} for tree in trees]
    waits = {(t, r, c): len(children[t][r]) for t, r, c in itertools.product((0, 1), range(ranks), range(chunks))}
    out, into, queue, last = [0.0] * ranks, [0.0] * ranks, [], 0.0
    order = itertools.count()

    def ready(t, rank, chunk, when, down):
        if not down and rank in trees[t]:
            heapq.heappush(queue, (when, chunk, next(order), t, rank, trees[t][rank], False))
            return
        for child in children[t][rank]:
            heapq.heappush(queue, (when, chunk, next(order), t, rank, child, True))

    for (t, rank, chunk), count in waits.items():
        if not count:
            ready(t, rank, chunk, 0.0, False)
    while queue:
        when, chunk, number, t, source, target, down = heapq.heappop(queue)
        begin = max(when, out[source], into[target] - link.latency)
        if begin > when:
            heapq.heappush(queue, (begin, chunk, number, t, source, target, down))
            continue
        out[source], into[target] = begin + once, begin + once + link.latency
        come = into[target]
        last = max(last, come)
        if down:
            ready(t, target, chunk, come, True)
        else:
            waits[t, target, chunk] -= 1
            if not waits[t, target, chunk]:
                ready(t, target, chunk, come, False)
    return last


@pytest.mark.parametrize("ranks", [4, 8, 16, 32])
@pytest.mark.parametrize("size", [8, 1e7, 1e9])
def test_two_trees_in_64_chunks_take_as_long_as_the_formula_to_three_tenths_more(ranks, size):
    """The formula is the limit of a best schedule; this one has 64 chunks of each half, and sends the oldest first."""
    found = simulated_trees(ranks, SLOW, size, 64)
    assert 0.999 <= found / tree(size, flat(ranks)).seconds <= 1.3


# --- buckets and the backward -----------------------------------------------------------------------------------------


def test_buckets_are_cut_as_ddp_does():
    assert buckets(60 * MIB) == [MIB, 25 * MIB, 25 * MIB, 9 * MIB]
    assert buckets(1000) == [1000]
    assert sum(buckets(123456789, 1e6)) == 123456789
    assert buckets(3 * MIB, 0.5 * MIB) == [0.5 * MIB] * 6


def test_closed_forms_of_overlap():
    def seconds(size):
        return size / 1e9

    sizes = [1e9] * 10
    assert finished(sizes, 20.0, seconds) == 21.0  # hidden, but for the last
    assert finished(sizes, 5.0, seconds) == 10.5  # the wire is never idle once it began
    assert exposed(sizes, 0.0, seconds) == 10.0
    assert exposed(sizes, 5.0, lambda size: 0.0) == 0.0


def simulated_backward(parameters, backward, cap, seconds):
    """An event for each parameter's gradient and for each all-reduce that ends; DDP cuts no parameter."""
    whole, done, held, queue, free = sum(parameters), 0.0, 0.0, [], 0.0
    limit, sent = min(MIB, cap), 0
    for size in parameters:
        done += size
        held += size
        if held >= limit:
            queue.append((backward * done / whole, held))
            held, limit = 0.0, cap
    if held:
        queue.append((backward, held))
    for ready, size in queue:
        free = max(free, ready) + seconds(size)
        sent += 1
    return max(free, backward), sent


@pytest.mark.parametrize("backward", [0.0, 0.003, 0.05, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_overlap_is_what_a_simulation_by_parameters_gives_to_about_a_bucket(seed, backward):
    """The bound: one bucket's all-reduce, one parameter's share of the backward, a latency for each bucket more or less."""
    draw = random.Random(seed)
    largest = draw.choice([1e4, 1e6, 3e7])
    parameters = [draw.uniform(1, largest) for _ in range(draw.randint(1, 400))]
    cap, latency, bandwidth = draw.choice([MIB, 25 * MIB]), draw.choice([1e-6, 1e-3]), draw.choice([1e9, 1e11])

    def seconds(size):
        return latency + size / bandwidth

    found, sent = simulated_backward(parameters, backward, cap, seconds)
    sizes = buckets(sum(parameters), cap)
    bound = seconds(cap + largest) + backward * largest / sum(parameters) + latency * abs(len(sizes) - sent)
    assert abs(finished(sizes, backward, seconds) - found) <= bound


def test_overlap_of_fine_parameters_is_the_simulation():
    parameters = [1024.0] * (60 * 1024)

    def seconds(size):
        return 1e-4 + size / 1e9

    found, _ = simulated_backward(parameters, 0.05, 25 * MIB, seconds)
    assert finished(buckets(60 * MIB), 0.05, seconds) == pytest.approx(found)


# --- what holds for every job -----------------------------------------------------------------------------------------

LINKS = st.builds(Link, st.floats(1e6, 1e12), st.floats(0, 1e-2))
WORK = st.builds(StepWork, st.floats(1e-6, 1.0), st.floats(0, 0.1), st.floats(0.01, 1.0))
JOBS = st.builds(
    PlannedJob,
    parameters=st.just(1e6),
    gradients=st.floats(1e3, 1e9),
    rows=st.integers(1, 4096).map(float),
    work=WORK,
    devices=st.sampled_from([1, 2, 3, 8]),
    within=LINKS,
    between=LINKS,
    bucket=st.floats(1e6, 1e9),
    algorithm=st.sampled_from([*ALGORITHMS, "fastest"]),
)
PLACES = st.tuples(st.sampled_from([1, 2, 5, 32, 128]), st.sampled_from(["strong", "weak"]))


def on(job, hosts, scaling, **more):
    return point(job, max(hosts * job.devices, 1), scaling, **more)


def changed(link, **more):
    return Link(more.get("bandwidth", link.bandwidth), more.get("latency", link.latency))


@settings(deadline=None)
@given(JOBS, PLACES)
def test_nothing_is_faster_than_n_times_and_all_lost_time_has_a_name(job, place):
    its = on(job, *place)
    assert 0 < its.efficiency <= 1 + 1e-9
    assert 0 <= its.exposed <= its.all_reduce * (1 + 1e-9) + 1e-12
    assert all(seconds >= -1e-9 for seconds in its.lost.values())
    ideal = its.step * its.efficiency
    assert sum(its.lost.values()) == pytest.approx(its.step - ideal, abs=1e-9, rel=1e-6)
    assert its.throughput * its.step == pytest.approx(its.rows)


@settings(deadline=None)
@given(JOBS, PLACES, st.floats(1, 100))
def test_more_bandwidth_and_less_latency_are_never_slower(job, place, times):
    before = on(job, *place).step
    for name in ("within", "between"):
        link = getattr(job, name)
        for better in (
            changed(link, bandwidth=link.bandwidth * times),
            changed(link, latency=link.latency / times),
        ):
            after = on(PlannedJob(**{**vars(job), name: better}), *place).step
            assert after <= before * (1 + 1e-9)


@settings(deadline=None)
@given(JOBS, PLACES, st.floats(0.01, 1))
def test_fewer_bytes_are_never_slower(job, place, sends):
    assert on(job, *place, sends=sends).step <= on(job, *place).step * (1 + 1e-9)


@settings(deadline=None)
@given(st.floats(1, 1e12), LINKS, LINKS, st.integers(1, 200), st.sampled_from([1, 2, 3, 8]))
def test_the_fastest_is_not_slower_than_those_it_is_chosen_from(size, within, between, hosts, devices):
    shape = Shape(hosts, devices, within, between)
    if shape.ranks > 1:
        best = all_reduce(size, shape).seconds
        assert best == min(ALGORITHMS[name](size, shape).seconds for name in ("ring", "tree", "hierarchical"))


def test_what_efficiency_is_lost_to_is_named():
    plain = PlannedJob(1e6, 4e6, 1024.0, StepWork(1e-4), 1, FAST, Link(1e12, 0.0))

    def first(ranks, **more):
        return reason(point(PlannedJob(**{**vars(plain), **more}), ranks, "strong"))

    assert first(64, between=Link(1e8, 0.0)) == "bandwidth"
    assert first(64, between=Link(1e12, 1e-3)) == "latency"
    assert first(64, work=StepWork(1e-4, 0.1)) == "fixed"
    assert first(1000) == "rows"
    points = [
        point(PlannedJob(**{**vars(plain), "work": StepWork(1e-4, 0.02)}), ranks, "strong") for ranks in (2, 4, 8)
    ]
    assert [its.ranks for its in below(points, 0.8)] == [4, 8]
    assert below(points, 0.1) == []


def test_a_batch_with_fewer_rows_than_ranks_is_computed_by_each():
    """As ddp_patch does: such a batch is not dealt."""
    job = PlannedJob(1e6, 4e6, 6.0, StepWork(0.01), 1, FAST, SLOW)
    assert point(job, 4, "strong").rows_of_a_rank == 2
    assert point(job, 6, "strong").rows_of_a_rank == 1
    assert point(job, 8, "strong").rows_of_a_rank == 6


def test_of_several_batches_in_a_step_each_is_dealt_and_the_last_backward_hides():
    """As ddp_patch does: backwards before the last one send nothing."""
    plain = PlannedJob(1e6, 4e6, 32.0, StepWork(0.01, 0.08), 1, FAST, Link(1e9, 0.0))
    four = PlannedJob(**{**vars(plain), "batches": 4})
    assert point(four, 3, "strong").rows_of_a_rank == 4 * 3  # of each 8 rows
    assert point(plain, 3, "strong").rows_of_a_rank == 11
    assert point(four, 8, "strong").rows_of_a_rank == 4
    assert point(four, 16, "strong").rows_of_a_rank == 32  # 8 rows are fewer than ranks
    assert point(four, 16, "weak").rows_of_a_rank == 32

    def waits(job):
        own = point(job, 2, "strong")
        sizes = buckets(job.gradients)
        return own.exposed, [exposed(sizes, 2 / 3 * own.computing / each, lambda size: size / 1e9) for each in (1, 4)]

    for job, which in ((plain, 0), (four, 1)):
        found, wanted = waits(job)
        assert found == pytest.approx(wanted[which], rel=1e-6)


def test_the_share_of_a_backward_is_of_the_whole_step_but_for_parts_that_are_named():
    def hides(work, rows):
        return work.hides(rows)

    assert hides(StepWork(0.01, 0.1, 0.5), 10) == pytest.approx(0.5 * 0.2)  # a step with one row has a backward as well
    assert hides(StepWork(0.01, 0.1, 0.5, 0.04), 10) == pytest.approx(0.5 * 0.16)  # of which the optimizer is none
    assert hides(StepWork(0.01, 0.1, 0.5, 0.1), 0) == 0
    parts = {"optimizer_seconds": 0.02, "python_seconds": 0.01, "backward_seconds": 0.06}
    found = profile.work([Run(1, 1, 10.0, 0.13, parts), Run(2, 1, 10.0, 0.08, {"optimizer_seconds": 0.03})])
    assert (found.fixed, found.per_row) == pytest.approx((0.03, 0.01))
    assert found.idle == pytest.approx(0.03)
    assert found.backward == pytest.approx(0.06 / 0.1)
    assert hides(found, 10.0) == pytest.approx(0.06)


def test_what_is_measured_with_several_backwards_is_planned_with_them(tmp_path, capsys):
    path = tmp_path / "profile.json"

    def planned(run, *more):
        path.write_text(json.dumps({**PROFILE, "runs": [{**RUN, **run}]}))
        assert command(["--profile", str(path), "--ranks", "2,8,16", "--scaling", "strong", *more]) == 0
        text = capsys.readouterr().out
        assert command(["--profile", str(path), "--ranks", "2,8,16", "--scaling", "strong", "--json", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        return text, found["batches"], [its["rows_of_a_rank"] for its in found["scaling"]["strong"]]

    text, batches, rows = planned({})
    assert (batches, rows) == (1, [16, 4, 2])
    assert "has fewer rows" not in text
    text, batches, rows = planned({"backwards": 4})
    assert (batches, rows) == (4, [16, 4, 32])
    assert "for 32 rows in 4 batches." in " ".join(text.split())
    assert "From 16 ranks on a batch has fewer rows than there are ranks: each rank computes all." in " ".join(
        text.split()
    )
    assert planned({"backwards": 4}, "--accumulate", "2")[1:] == (2, [16, 4, 2])
    path.write_text(json.dumps({**PROFILE, "runs": [{**RUN, "backwards": 1.5}]}))
    assert command(["--profile", str(path)]) == 2
    assert '"backwards" is 1.5, and has to be a whole number' in capsys.readouterr().err


def test_from_so_many_ranks_on_is_said_only_where_all_that_follow_are_alike(capsys):
    assert where([4, 8], [2, 4, 8]) == "from 4 ranks on"
    assert where([64], [2, 64, 96]) == "on 64 ranks"
    assert where([2, 8, 1024, 2048], [2, 4, 8, 16, 1024, 2048]) == "on 2, 8 ranks and from 1,024 ranks on"
    given = "--parameters 1e6 --step 1 --batch 96 --devices 1 --bandwidth 1e12 --latency 0 --scaling strong"
    assert command([*given.split(), "--ranks", "64,96"]) == 0  # 2 rows on 32 of 64 ranks, and 1 on each of 96
    told = capsys.readouterr().out
    assert "Below 80% on 64 ranks, because the batch is too small" in told
    assert "ranks on" not in told
    given = "--parameters 1e6 --step 1 --batch 12 --devices 1 --bandwidth 1e12 --scaling strong --activations 12GB"
    assert command([*given.split(), "--ranks", "4,12,16", "--memory", "4e9"]) == 0  # 16 ranks compute all 12 rows each
    assert "DistributedDataParallel: fits into 4.00 GB on 4, 12 ranks; 12.0 GB" in capsys.readouterr().out


# --- memory, learning rate, compression -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "precision", "wanted"),
    [
        ("adam", "bf16", 16),  # Rajbhandari et al. 2020
        ("adamw", "master", 16),
        ("adam", "fp32", 16),
        ("sgd", "fp32", 8),
        ("momentum", "fp32", 12),
        ("adamw", "pure-bf16", 8),
    ],
)
def test_bytes_of_a_parameter(optimizer, precision, wanted):
    assert memory.bytes_per_parameter(optimizer, precision) == wanted
    assert memory.per_rank(1e9, optimizer, precision).total == wanted * 1e9


def test_the_zero_papers_example():
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 ranks take 120, 31.4 (stage 1) and 1.9 GB (3)."""

    def held(way, ranks=64):
        its = memory.per_rank(7.5e9, "adam", "master", ranks=ranks, way=way, blocks=10**9)
        return (its.total - (its.buffers if way != "fsdp" else 0)) / 1e9

    assert held("ddp") == pytest.approx(120)
    assert held("zero1") == pytest.approx(31.4, abs=0.05)
    assert held("fsdp") == pytest.approx(1.9, abs=0.05)


def test_what_torch_holds_is_what_is_said():
    import torch

    for name, cls, options in (
        ("sgd", "SGD", {"lr": 0.1}),
        ("momentum", "SGD", {"lr": 0.1, "momentum": 0.9}),
        *((name, cls, {}) for name, cls in (("adagrad", "Adagrad"), ("rmsprop", "RMSprop"), ("adam", "Adam"))),
        *((name, cls, {}) for name, cls in (("adamw", "AdamW"), ("nadam", "NAdam"), ("radam", "RAdam"))),
    ):
        weight = torch.nn.Parameter(torch.ones(1000))
        optimizer = getattr(torch.optim, cls)([weight], **options)
        weight.grad = torch.ones(1000)
        optimizer.step()
        held = [its for its in optimizer.state[weight].values() if torch.is_tensor(its) and its.numel() == 1000]
        assert len(held) == memory.OPTIMIZERS[name], name


def test_learning_rates():
    assert learning.factor("momentum", 32) == 32
    assert learning.factor("adamw", 64) == 8
    assert learning.steps_needed(1000, 1000) == learning.rows_needed(1000, 1000) == 2
    for batch in (10, 1000, 1e6):  # McCandlish et al. 2018, equation 2.11
        steps, rows = learning.steps_needed(batch, 500), learning.rows_needed(batch, 500)
        assert (steps - 1) * (rows - 1) == pytest.approx(1)
        assert steps * batch == pytest.approx(rows * 500)


def test_powersgd_sends_what_torch_says_it_does():
    assert powersgd(1024, 1024) == 2 / 1024
    assert powersgd(2, 2) == 1.0


# --- published figures ------------------------------------------------------------------------------------------------
# What is published, what the model says from the hardware's data sheet, and how far off that is.


def trained(parameters, rows_per_second, rows, devices, within, between, algorithm="fastest", bucket=25):
    work = StepWork(1 / rows_per_second)
    links = {"within": Link(within, 10e-6), "between": Link(between, 10e-6)}
    return PlannedJob(
        parameters, 4 * parameters, float(rows), work, devices, **links, algorithm=algorithm, bucket=bucket * MIB
    )


def goyal():
    """Goyal et al. 2017: about 90 % from 8 to 256 P100, 8 to a server, 50 Gbit/s; 90 epochs took 8 of them 29 hours."""
    job = trained(25.56e6, 90 * 1281167 / (29 * 3600 * 8), 32, 8, 20e9, 50e9 / 8)
    return point(job, 256, "weak").efficiency / point(job, 8, "weak").efficiency


def horovod(parameters, rows_per_second, servers, algorithm="ring", bucket=64):
    """Horovod's README: 4 Pascal GPUs to a server, 25 Gbit/s. One P100, 64 rows: TensorFlow's benchmarks of 2017.

    Horovod joins tensors up to 64 MB; NCCL had rings alone then.
    """
    job = trained(parameters, rows_per_second, 64, 4, 10e9, 25e9 / 8, algorithm, bucket)
    return point(job, 4 * servers, "weak").efficiency


def latency(hosts):
    """nccl-tests of 8 bytes, one V100 to a host, EFA (2019): 163, 319 and 631 us. The latency is taken from 2 hosts."""
    return all_reduce(8, flat(hosts, Link(1e9, 163.4e-6 / 2))).seconds * 1e6


MLPERF = {8: (3264, 22440), 16: (3264, 37600), 768: (34560, 1240000)}  # GPUs: rows of a step, rows/s in the logs


def mlperf(ranks, known):
    """MLPerf Training v0.7, ResNet-50 of NVIDIA on DGX A100, 8 to a host: rows/s of a GPU, to those of 8 GPUs.

    The step is known of the GPUs in ``known``; each has other rows. A host has 8 ways of 200 Gbit/s, and NVLink.
    """
    runs = [Run(each, max(each // 8, 1), float(rows), rows / speed) for each, (rows, speed) in MLPERF.items()]
    work = profile.work([run for run in runs if run.ranks in known])
    links = {"within": Link(300e9, 10e-6), "between": Link(200e9, 10e-6)}
    job = PlannedJob(25.56e6, 2 * 25.56e6, 408.0, work, 8, **links)
    (run,) = (run for run in runs if run.ranks == ranks)
    return predicted(job, run).throughput / ranks / (MLPERF[8][1] / 8)


def ddp_benchmark(parameters, milliseconds):
    """torch's benchmark of DDP: 2 DGX of 8 V100 (NVLink, taken as 20 GB/s), 4 ways of 100 Gbit/s, 32 rows each; in ms."""
    return point(trained(parameters, 32e3 / milliseconds, 32, 8, 20e9, 4 * 100e9 / 8), 16, "weak").step * 1e3


PUBLISHED = {  # published, model, error of the model
    "ResNet-50, 8 to 256 GPUs": (0.90, goyal, 0.09),
    "Inception V3, 512 GPUs": (0.90, lambda: horovod(23.85e6, 142, 128), 0.05),
    "VGG-16, 128 GPUs": (0.79, lambda: horovod(138.36e6, 154, 32), -0.04),
    "VGG-16, 512 GPUs": (0.68, lambda: horovod(138.36e6, 154, 128), -0.01),
    "VGG-16, 512 GPUs, in 25 MiB": (0.68, lambda: horovod(138.36e6, 154, 128, bucket=25), -0.16),
    "VGG-16, 512 GPUs, by trees": (0.68, lambda: horovod(138.36e6, 154, 128, "fastest"), 0.16),
    "MLPerf, 16 GPUs, from 8": (0.838, lambda: mlperf(16, {8}), 0.19),
    "MLPerf, 768 GPUs, from 8": (0.576, lambda: mlperf(768, {8}), 0.69),
    "MLPerf, 768 GPUs, from 8 and 16": (0.576, lambda: mlperf(768, {8, 16}), -0.33),
    "ResNet-50, 16 GPUs, from no DDP, ms": (104, lambda: ddp_benchmark(25.56e6, 97), -0.045),
    "ResNet-50, 16 GPUs, from DDP on 1, ms": (104, lambda: ddp_benchmark(25.56e6, 100), -0.016),
    "ResNet-101, 16 GPUs, from no DDP, ms": (179, lambda: ddp_benchmark(44.55e6, 162), -0.083),
    "ResNet-101, 16 GPUs, from DDP on 1, ms": (179, lambda: ddp_benchmark(44.55e6, 171), -0.033),
    "ResNeXt-50, 16 GPUs, from no DDP, ms": (157, lambda: ddp_benchmark(25.03e6, 145), -0.063),
    "ResNeXt-50, 16 GPUs, from DDP on 1, ms": (157, lambda: ddp_benchmark(25.03e6, 147), -0.050),
    "ResNeXt-101, 16 GPUs, from no DDP, ms": (450, lambda: ddp_benchmark(88.79e6, 415), -0.075),
    "ResNeXt-101, 16 GPUs, from DDP on 1, ms": (450, lambda: ddp_benchmark(88.79e6, 425), -0.052),
    "4 hosts, 8 bytes, us": (319.4, lambda: latency(4), 0.02),
    "8 hosts, 8 bytes, us": (631.3, lambda: latency(8), -0.22),
}


def most_that_overlap_saves(parameters):
    """The part of a step on 32 GPUs, 8 to a host, at the bandwidth where sending during the backward saves most."""
    jobs = [trained(parameters, 32e3 / 97, 32, 8, 20e9, 12.5e9 * 1.15**power) for power in range(-30, 31)]
    points = [point(job, 32, "weak") for job in jobs]
    return max(1 - at.step / (97e-3 + at.all_reduce) for at in points)


def test_overlap_saves_about_what_the_paper_on_ddp_says():
    """Li et al., VLDB 2020, as quoted: 38.0 % for ResNet and 35.2 % for BERT, by NCCL; bandwidth and batch unknown."""
    resnet, bert = most_that_overlap_saves(25.56e6), most_that_overlap_saves(110e6)
    assert (resnet, bert) == pytest.approx((0.294, 0.371), abs=0.0005)
    text = " ".join(DOCS.read_text().split())
    assert f"at most {resnet:.0%} of a step of ResNet-50 and {bert:.0%} of one of BERT-base".replace("%", " %") in text


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_met_with_the_errors_that_are_stated(name):
    wanted, model, error = PUBLISHED[name]
    assert model() / wanted - 1 == pytest.approx(error, abs=0.005)


def test_the_page_states_the_errors():
    rows = re.findall(
        r"^\| (.*?) \| ([\d.]+)(?: %| us| ms) \| ([\d.]+)(?: %| us| ms) \| ([+-][\d.]+) % \|$", DOCS.read_text(), re.M
    )
    for (name, (wanted, model, error)), row in zip(PUBLISHED.items(), rows, strict=True):
        scale = 1 if name.endswith(("us", "ms")) else 100
        assert row[0] == name.removesuffix(", us").removesuffix(", ms")
        assert float(row[1]) == pytest.approx(wanted * scale, abs=0.5), name
        assert float(row[2]) == pytest.approx(model() * scale, abs=0.5), name
        assert float(row[3]) == pytest.approx(error * 100), name


MEASURED = {
    "format": "ddp_patch profile",
    "version": 1,
    "parameters": 6186,
    "gradient_bytes": 24744,
    "optimizer": "momentum",
    "learning_rate": 0.05,
    "precision": "fp32",
    "batch_rows": 512.0,
    "network": {
        "devices_per_host": 4,
        "within": {"bandwidth_bytes_per_second": 1377000000.0, "latency_seconds": 8.679e-05},
    },
    "runs": [
        {
            "ranks": 1,
            "rows": 512.0,
            "step_seconds": 0.01206,
            "compute_seconds": 0.01036,
            "backward_seconds": 0.004151,
            "loading_seconds": 0.001448,
            "optimizer_seconds": 0.0002442,
        },
        {
            "ranks": 2,
            "rows": 512.0,
            "step_seconds": 0.02588,
            "compute_seconds": 0.005759,
            "loading_seconds": 0.002035,
            "optimizer_seconds": 0.0002087,
            "python_seconds": 0.00506,
            "effects_seconds": 0.0001028,
            "exposed_communication_seconds": 0.01271,
        },
        {
            "ranks": 4,
            "rows": 512.0,
            "step_seconds": 0.05556,
            "compute_seconds": 0.004913,
            "loading_seconds": 0.002625,
            "optimizer_seconds": 0.0002288,
            "python_seconds": 0.004562,
            "effects_seconds": 0.000265,
            "exposed_communication_seconds": 0.04297,
        },
        {
            "ranks": 2,
            "rows": 1024.0,
            "step_seconds": 0.03193,
            "compute_seconds": 0.01059,
            "loading_seconds": 0.003227,
            "optimizer_seconds": 0.0002112,
            "python_seconds": 0.004956,
            "effects_seconds": 0.0003232,
            "exposed_communication_seconds": 0.01262,
        },
        {
            "ranks": 4,
            "rows": 2048.0,
            "step_seconds": 0.08685,
            "compute_seconds": 0.01065,
            "loading_seconds": 0.007909,
            "optimizer_seconds": 0.0002455,
            "python_seconds": 0.01171,
            "effects_seconds": 0.001444,
            "exposed_communication_seconds": 0.05489,
        },
    ],
}  # by ``scale`` on 2 cores, 2026-11-24


LONGER = {
    "format": "ddp_patch profile",
    "version": 1,
    "parameters": 12617738,
    "gradient_bytes": 50470952,
    "optimizer": "adamw",
    "learning_rate": 0.001,
    "precision": "fp32",
    "batch_rows": 512.0,
    "network": {
        "devices_per_host": 2,
        "within": {"bandwidth_bytes_per_second": 1789000000.0, "latency_seconds": 0.0001281},
    },
    "runs": [
        {
            "ranks": 1,
            "rows": 512.0,
            "step_seconds": 0.4648,
            "compute_seconds": 0.4337,
            "backward_seconds": 0.288,
            "loading_seconds": 0.0022,
            "optimizer_seconds": 0.02891,
            "python_seconds": 0.0,
            "effects_seconds": 0.0,
            "exposed_communication_seconds": 0.0,
        },
        {
            "ranks": 2,
            "rows": 512.0,
            "step_seconds": 0.312,
            "compute_seconds": 0.2437,
            "loading_seconds": 0.00166,
            "optimizer_seconds": 0.03257,
            "python_seconds": 0.002325,
            "effects_seconds": 0.0,
            "exposed_communication_seconds": 0.0317,
        },
        {
            "ranks": 2,
            "rows": 1024.0,
            "step_seconds": 0.5158,
            "compute_seconds": 0.4503,
            "loading_seconds": 0.002912,
            "optimizer_seconds": 0.02927,
            "python_seconds": 0.002612,
            "effects_seconds": 0.0,
            "exposed_communication_seconds": 0.03072,
        },
    ],
}


@pytest.mark.parametrize(("measured", "first"), [(MEASURED, 0), (LONGER, 4)], ids=["short steps", "longer steps"])
def test_the_page_states_the_errors_of_what_scale_measured(tmp_path, capsys, measured, first):
    path = tmp_path / "scale.json"
    pattern = r"^\| ([24]), \w+ \| ([\d,]+) \| [\d.]+ ms \| [\d.]+ ms \| ([+-]\d+) % \| [\d.]+ ms \| ([+-]\d+) % \|$"
    rows = re.findall(pattern, DOCS.read_text(), re.M)[first : first + len(measured["runs"]) - 1]
    assert [(int(ranks), int(size.replace(",", ""))) for ranks, size, *_ in rows] == [
        (run["ranks"], run["rows"]) for run in measured["runs"][1:]
    ]
    devices = measured["network"]["devices_per_host"]
    for known, column in ((1, 2), (len(measured["runs"]), 3)):
        path.write_text(json.dumps({**measured, "runs": measured["runs"][:known]}))
        assert command(["--profile", str(path), "--ranks", f"2,{devices}", "--json"]) == 0
        capsys.readouterr()
        found = profile.read(str(path))
        work = profile.work(found["runs"])
        link = Link(*found["network"]["within"].values())
        job = PlannedJob(found["parameters"], found["gradient_bytes"], 512.0, work, devices, link, link)
        path.write_text(json.dumps(measured))
        for run, row in zip(profile.read(str(path))["runs"][1:], rows, strict=True):
            assert 100 * (predicted(job, run).step / run.step - 1) == pytest.approx(float(row[column]), abs=0.6)


# --- numbers with units -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "wanted"),
    [
        (units.count, "124e6", 124e6), (units.count, "124M", 124e6), (units.count, "1_000", 1000),
        (units.size, "80GB", 80e9), (units.size, "80GiB", 80 * 2**30), (units.size, "8e9", 8e9), (units.size, "3 B", 3),
        (units.rate, "25e9", 25e9), (units.rate, "25GB/s", 25e9), (units.rate, "200Gbit/s", 25e9),
        (units.rate, "400Gbps", 50e9), (units.rate, "400Gb/s", 50e9), (units.rate, "400 Gbits/s", 50e9),
        (units.rate, "50GB/s", 50e9), (units.rate, "50GBps", 50e9), (units.rate, "50GiB/s", 50 * 2**30),
        (units.rate, "800Mbps", 1e8), (units.rate, "3 B/s", 3), (units.rate, "8 b/s", 1),
        (units.time, "180ms", 0.18), (units.time, "5us", 5e-6), (units.time, "0.18", 0.18), (units.time, ".5s", 0.5),
    ],
)  # fmt: skip
def test_numbers_with_units(read, text, wanted):
    assert read(text) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("show", "number", "wanted"),
    [
        (units.shown_seconds, 0.18, "180 ms"), (units.shown_seconds, 1.98e-3, "1.98 ms"), (units.shown_seconds, 0, "0 ms"),
        (units.shown_seconds, 12.34, "12.3 s"), (units.shown_seconds, 5e-6, "5.00 us"),
        (units.shown_bytes, 1.984e9, "1.98 GB"), (units.shown_bytes, 12, "12 bytes"), (units.shown_bytes, 3e13, "30.0 TB"),
        (units.shown_count, 32, "32"), (units.shown_count, 11400.4, "11,400"), (units.shown_count, 2.5, "2.50"),
    ],
)  # fmt: skip
def test_numbers_as_they_are_shown(show, number, wanted):
    assert show(number) == wanted


# --- profiles ---------------------------------------------------------------------------------------------------------

RUN = {"ranks": 1, "step_seconds": 0.2, "compute_seconds": 0.15, "backward_seconds": 0.1, "optimizer_seconds": 0.05}
PROFILE = {
    "format": "ddp_patch profile",
    "version": 1,
    "parameters": 124000000,
    "batch_rows": 32,
    "activation_bytes": 4e9,
    "optimizer": "adamw",
    "network": {
        "devices_per_host": 8,
        "within": {"bandwidth_bytes_per_second": 3e11, "latency_seconds": 2e-6},
        "between": {"bandwidth_bytes_per_second": 2.5e10, "latency_seconds": 5e-6},
    },
    "runs": [RUN],
}


def test_one_run_tells_what_grows_with_rows_and_what_does_not():
    found = profile.work([Run(1, 1, 32.0, 0.2, {"optimizer_seconds": 0.05, "backward_seconds": 0.1})])
    assert (found.fixed, found.per_row * 32, found.backward) == pytest.approx((0.05, 0.15, 2 / 3))


def test_runs_with_different_rows_to_a_rank_tell_it_better():
    runs = [
        Run(ranks, 1, 64.0, 0.03 + 0.004 * 64 / ranks + 0.01, {"exposed_communication_seconds": 0.01})
        for ranks in (1, 2, 4)
    ]
    found = profile.work(runs)
    assert (found.fixed, found.per_row) == pytest.approx((0.03, 0.004))
    falling = profile.work([Run(1, 1, 64.0, 0.1), Run(2, 1, 64.0, 0.2)])  # measured beside something else
    assert falling.per_row == 0
    assert falling.fixed == pytest.approx(0.15)


def test_what_was_measured_on_ranks_is_held_against_the_plan(tmp_path, capsys):
    runs = [RUN, {"ranks": 2, "step_seconds": 0.13, "compute_seconds": 0.08, "optimizer_seconds": 0.05}]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**PROFILE, "runs": runs}))
    assert command(["--profile", str(path), "--json"]) == 0
    alone, held = json.loads(capsys.readouterr().out)["measured"]
    assert (alone["ranks"], alone["measured_seconds"]) == (1, RUN["step_seconds"])
    assert held["measured_seconds"] == 0.13
    assert held["error"] == pytest.approx(held["predicted_seconds"] / 0.13 - 1, abs=1e-5)
    assert command(["--profile", str(path)]) == 0
    shown = capsys.readouterr().out.partition("Held against what was measured")[2]
    assert re.search(r"2 +32 +130 ms +\d+ ms +[+-]\d+%", shown), shown
    path.write_text(json.dumps(PROFILE))  # the plan is made of it, and cannot be held against it
    assert command(["--profile", str(path)]) == 0
    assert "Held against" not in capsys.readouterr().out


def test_memory_of_a_rank_grows_with_its_rows_by_the_profiles_activations(tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))  # 4e9 bytes for 32 rows

    def held(*more):
        assert command(["--profile", str(path), "--json", "--ranks", "2,8", *more]) == 0
        found = json.loads(capsys.readouterr().out)["memory"]
        return {name: [each["ddp"]["activations"] for each in its["ranks"]] for name, its in found.items()}

    assert held() == {"strong": [2e9, 5e8], "weak": [4e9, 4e9]}
    assert held("--batch", "64") == {"strong": [4e9, 1e9], "weak": [8e9, 8e9]}
    assert held("--batch", "64", "--activations", "3e9") == {"strong": [1.5e9, 3.75e8], "weak": [3e9, 3e9]}


def test_gradients_of_a_profile_are_not_those_of_another_model(tmp_path, capsys):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**PROFILE, "gradient_bytes": 4.96e8}))

    def gradients(*more):
        assert command(["--profile", str(path), "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["gradient_bytes"]

    assert gradients() == 4.96e8
    assert gradients("--parameters", "1e9") == 4e9
    assert gradients("--precision", "pure-bf16") == 2.48e8
    assert gradients("--parameters", "1e9", "--gradient-bytes", "1e9") == 1e9


def changed_profile(**more):
    return json.dumps({name: value for name, value in {**PROFILE, **more}.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("\udcff", "is no JSON"),
        ("[]", "it is no profile"),
        ("{}", 'it is no profile: "format"'),
        ("[" * 100000, "is no JSON"),
        (changed_profile(parameters=10**400), "has to be between 1e-15 and 1e+15"),
        (changed_profile(bucket_bytes=float("inf")), "has to be between"),
        (changed_profile(version=2), '"version" is 2, and this ddp_patch reads version 1'),
        (changed_profile(parameters=None), 'lacks "parameters"'),
        (changed_profile(batch_rows=None), 'lacks "batch_rows"'),
        (changed_profile(parameters=-1), "has to be a number above 0"),
        (changed_profile(parameters="many"), "has to be a number above 0"),
        (changed_profile(activation_bytes=True), "has to be a number above 0"),
        (changed_profile(bucket_bytes=float("nan")), "has to be a number above 0"),
        (changed_profile(colour="red"), 'has "colour", which nothing knows'),
        (changed_profile(optimizer=3), "has to be a name"),
        (changed_profile(optimizer="sofa"), "--optimizer 'sofa' is not known"),
        (changed_profile(runs=None), '"runs" has to be a list'),
        (changed_profile(runs=[]), '"runs" has to be a list'),
        (changed_profile(runs=[3]), "run 0 of runs is 3"),
        (changed_profile(runs=[{"ranks": 1}]), 'run 0 lacks "step_seconds"'),
        (changed_profile(runs=[{"step_seconds": 1}]), 'run 0 lacks "ranks"'),
        (changed_profile(runs=[{**RUN, "ranks": 1.5}]), "has to be a whole number"),
        (changed_profile(runs=[{**RUN, "ranks": 3, "hosts": 2}]), "3 ranks cannot be on 2 hosts"),
        (changed_profile(runs=[{**RUN, "loading_seconds": 3}]), "its parts are 3.2 seconds together"),
        (
            changed_profile(runs=[{"ranks": 1, "step_seconds": 1, "python_seconds": 1}]),
            "its parts are 1 seconds together",
        ),
        (
            changed_profile(runs=[{**RUN, "ranks": 32, "hosts": 2}]),
            "a run of 32 ranks on 2 hosts, and a host is planned with 8 devices. Write --devices 16",
        ),
        (changed_profile(network=3), '"network" is 3'),
        (changed_profile(network={"within": 3}), '"within" is 3'),
        (changed_profile(network={"within": {"latency_seconds": 1}}), 'within lacks "bandwidth_bytes_per_second"'),
        (changed_profile(network={"devices_per_host": 0}), "has to be a number above 0"),
        (changed_profile(network={}), "--bandwidth is missing"),
    ],
)
def test_a_profile_that_is_none_is_an_error_that_says_why(tmp_path, capsys, text, said):
    path = tmp_path / "profile.json"
    path.write_text(text, errors="surrogateescape")
    assert command(["--profile", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("python -m ddp_patch plan: ")
    assert said in err


# --- the command ------------------------------------------------------------------------------------------------------


def test_without_the_way_to_other_hosts_one_host_is_planned_and_said_to_be(capsys):
    assert command(GIVEN.replace("--bandwidth 25e9", "").split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "one host (--bandwidth, the bytes/s that it reaches to others, is not known)" in out
    assert " 1 x 8 " in out
    assert " 2 x 8 " not in out


GIVEN = "--parameters 124e6 --step 0.18 --batch 32 --devices 8 --bandwidth-within 300e9 --bandwidth 25e9"


def says(capsys, given):
    code = command(shlex.split(given))
    return (code, *capsys.readouterr())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "--parameters and --step and --batch are missing. Write python -m ddp_patch plan --parameters 124e6"),
        (GIVEN.replace("--step 0.18", ""), "--step is missing. Write python -m ddp_patch plan --parameters"),
        (f"{GIVEN} --step=-1", "--step is -1, and has to be above 0. Write for example --step 0.18"),
        (f"{GIVEN} --step 0", "--step is 0, and has to be above 0. Write for example --step 0.18"),
        (f"{GIVEN} --parameters 0", "Write for example --parameters 124e6"),
        (f"{GIVEN} --parameters many", "--parameters 'many' is no number. Write it as 25e9"),
        (f"{GIVEN} --parameters nan", "'nan' is no number"),
        (f"{GIVEN} --parameters 3s", "Write 124e6 or 124M"),
        (f"{GIVEN} --bandwidth 0", "--bandwidth is 0, and has to be above 0. Write for example --bandwidth 25e9"),
        (f"{GIVEN} --bandwidth 25parsec", "Write 25e9, 25GB/s or 200Gbit/s"),
        (f"{GIVEN} --bandwidth 400Gb", "'400Gb' are no bytes per second. Write 25e9, 25GB/s or 200Gbit/s"),
        (f"{GIVEN} --bandwidth 400gbps", "'400gbps' are no bytes per second. Write 25e9, 25GB/s or 200Gbit/s"),
        (f"{GIVEN} --bandwidth 4ps", "'4ps' are no bytes per second. Write 25e9"),
        (f"{GIVEN} --bandwidth 4s", "'4s' are no bytes per second. Write 25e9, 25GB/s or 200Gbit/s"),
        (f"{GIVEN} --latency=-5us", "--latency is -5us, and has to be 0 or above 0"),
        (f"{GIVEN} --latency 5GB", "Write 0.18, 180ms or 5us"),
        (f"{GIVEN} --memory 80s", "Write 80e9, 80GB or 80GiB"),
        (f"{GIVEN} --batch 0", "Write for example --batch 32"),
        (f"{GIVEN} --devices 0", "Write for example --devices 8"),
        (f"{GIVEN} --devices 2.5", "has to be a whole number"),
        (f"{GIVEN} --backward 66", "at most 1. Write --backward 0.67"),
        (f"{GIVEN} --fixed 0.18", "Write a smaller one"),
        (f"{GIVEN} --accumulate 0", "--accumulate is 0, and has to be above 0"),
        (f"{GIVEN} --accumulate 2.5", "--accumulate is 2.5, and has to be a whole number"),
        (f"{GIVEN} --accumulate 64", "--accumulate is 64, and 32 rows are no 64 batches. Write --batch with the rows of all"),
        (f"{GIVEN} --lr 0", "--lr is 0, and has to be above 0"),
        (f"{GIVEN} --bucket-cap-mb 0", "--bucket-cap-mb is 0"),
        (f"{GIVEN} --bucket-cap-mb 1e-6", "are too many. Write a larger --bucket-cap-mb"),
        (f"{GIVEN} --algorithm butterfly", "Write --algorithm with one of: ring, tree, hierarchical, halving"),
        (f"{GIVEN} --optimizer lbfgs", "Write --optimizer with one of: sgd, momentum"),
        (f"{GIVEN} --precision fp8", "Write --precision with one of: fp32, bf16"),
        (f"{GIVEN} --scaling up", "Write --scaling strong, weak or both"),
        (f"{GIVEN} --ranks 12", "12 ranks are no whole hosts of 8 devices. Write --ranks 16"),
        (f"{GIVEN} --ranks 16 --hosts 4", "16 ranks are 2 hosts of 8 devices, and --hosts is 4. Write one of"),
        (f"{GIVEN} --ranks 1", "there is one rank, and nothing to plan. Write --hosts"),
        (f"{GIVEN} --hosts 0..4", "Write --hosts 1..128 or --hosts 2,4,8"),
        (f"{GIVEN} --hosts 4..1", "from more to fewer. Write --hosts 1..4"),
        (f"{GIVEN} --hosts a..b", "Write --hosts 1..128"),
        (f"{GIVEN} --hosts 1..2..3", "Write --hosts 1..128"),
        (f"{GIVEN} --hosts 65536", "Write fewer --hosts"),
        (
            GIVEN.replace("--bandwidth 25e9", "--ranks 8,16"),
            "--bandwidth is missing: bytes/s that a host reaches to others. Write --bandwidth 25e9, or --devices 16 for",
        ),
        (f"{GIVEN} --ranks 8..2", "--ranks is 8..2, from more to fewer. Write --ranks 2..8"),
        ("--parameters 1e6 --step 1 --batch 8", "--bandwidth is missing"),
        (f"{GIVEN} --profile nowhere.json", "nowhere.json cannot be read: No such file or directory. Write --profile"),
        (f"{GIVEN} --plot plan", "plan has no ending that says which kind of picture it is. Write --plot plan.png"),
        (f"{GIVEN} --step 1e300", "has to be between 1e-15 and 1e+15. Write for example --step 0.18"),
        (f"{GIVEN} --plot plan.nothing", "plan.nothing cannot be written"),
        (f"{GIVEN} --plot /nowhere/plan.png", "/nowhere/plan.png cannot be written: No such file or directory"),
        (f"{GIVEN} --speed 3", "unrecognized arguments: --speed 3. python -m ddp_patch plan --help shows what there is"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_2_with_one_line_that_says_what_to_write(tmp_path, monkeypatch, capsys, given, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = says(capsys, given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not list(tmp_path.iterdir())


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [*re.findall(r"--[\w-]+", GIVEN), "--latency", "--fixed", "--memory", "--activations", "--lr"]
            ),
            st.sampled_from(["1e-15", "1e-9", "0", "0.3", "1", "7", "1e6", "1e15", "1e300", "-1", "x", ""]),
        ),
        max_size=4,
    )
)
def test_whatever_the_numbers_it_plans_or_says_why_not(pairs):
    given = [*shlex.split(GIVEN), *(f"{flag}={value}" for flag, value in pairs), "--hosts", "1..64"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = command(given)
    assert (code, bool(out.getvalue()), bool(err.getvalue())) in [(0, True, False), (2, False, True)]
    assert "inf" not in out.getvalue()
    assert "nan" not in out.getvalue()


def lines_to_write():
    return [(name, optimizer) for name in advice.LINES for optimizer in ("momentum", "adamw")]


@pytest.mark.parametrize(("name", "optimizer"), lines_to_write())
def test_the_lines_to_write_are_python_with_names_that_torch_has(name, optimizer):
    lines = [line for line in advice.lines(name, optimizer, 4, 8) if not line.startswith("python -m")]
    tree = ast.parse("\n".join(lines))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            exec(ast.unparse(node), {})
    import torch

    for found in re.findall(r"torch\.optim\.(\w+)", "\n".join(lines)):
        assert issubclass(getattr(torch.optim, found), torch.optim.Optimizer)


def test_help_is_0(capsys):
    code, out, _ = says(capsys, "--help")
    assert code == 0
    assert "For example: python -m ddp_patch plan" in out


def test_the_json_is_what_the_functions_give(capsys):
    code, out, _ = says(capsys, f"{GIVEN} --json --ranks 2,8,64 --latency 5e-6 --scaling weak --memory 80e9")
    found = json.loads(out)
    assert code == 0
    assert list(found["scaling"]) == ["weak"]
    assert [its["ranks"] for its in found["scaling"]["weak"]] == [2, 8, 64]
    work, links = StepWork(0.18 / 32), {"within": Link(300e9, 5e-6), "between": Link(25e9, 5e-6)}
    wanted = point(PlannedJob(124e6, 496e6, 32.0, work, 8, **links), 64, "weak")
    for name in ("step", "throughput", "efficiency", "exposed", "all_reduce"):
        assert found["scaling"]["weak"][-1][name] == pytest.approx(getattr(wanted, name), rel=1e-5)
    assert found["memory"]["weak"]["fits_everywhere"] is True
    assert found["compression"]["weak"]["bf16"]["write"] == 'ddp_patch.enable(comm_hook="bf16")'


def test_without_ranks_there_are_2_to_1024(capsys):
    def ranks(given):
        return [its["ranks"] for its in json.loads(says(capsys, f"{given} --json")[1])["scaling"]["weak"]]

    powers = [2**power for power in range(1, 11)]
    assert ranks(GIVEN) == powers
    assert ranks("--parameters 1e6 --step 1 --batch 8 --bandwidth 1e9") == powers
    assert ranks(f"{GIVEN} --hosts 3,5") == [24, 40]
    assert ranks(f"{GIVEN.replace('--bandwidth 25e9', '')} --hosts 1") == [2, 4, 8]
    assert ranks(f"{GIVEN} --devices 6 --hosts 1..4") == [2, 4, 6, 12, 24]


def test_where_a_replica_does_not_fit_the_lines_to_write_are_those_that_do(capsys):
    def lines(more):
        return says(capsys, f"{GIVEN} --scaling weak --optimizer adam {more}")[1]

    small, big = lines("--parameters 1e9 --memory 80e9"), lines("--parameters 70e9 --hosts 1 --memory 80e9")
    assert "It fits into 80.0 GB." in small
    assert "fully_shard" not in small
    assert "parallelize_module(block.mlp" in big  # not even FSDP2 fits on 8 ranks
    view = lines("--parameters 4e9 --memory 70e9")
    assert "gradient_as_bucket_view=True" in view
    assert "ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=lr)" in view
    assert "fully_shard(block)" in view
    assert "checkpoint(block, x" in lines("--parameters 1e9 --memory 80e9 --activations 70e9")
    assert "Whether it fits: --memory 80e9." in lines("")
    assert "migrate train.py --to ddp --write" in view


def test_small_buckets_are_said_to_look_faster_than_they_are(capsys):
    words = "Buckets below 25 MiB look faster here than they are"
    assert words in " ".join(says(capsys, f"{GIVEN} --bucket-cap-mb 1")[1].split())
    for more in ("", "--bucket-cap-mb 25", "--bucket-cap-mb 50", "--bucket-cap-mb 1 --gradient-bytes 1e6"):
        assert words not in " ".join(says(capsys, f"{GIVEN} {more}")[1].split())


def test_learning_rates_are_said(capsys):
    told = says(capsys, f"{GIVEN} --optimizer momentum --lr 0.1 --hosts 1 --critical-batch 256")[1]
    assert "The batch stays: leave the learning rate as it is." in told
    assert "A batch of 256 rows with momentum: times 8 (linear in the batch): 0.1 becomes 0.8. Warm up" in told
    assert "0.222 times the steps" in told  # (1 + 256/256) / (1 + 256/32)


def test_a_picture_is_drawn(tmp_path, capsys):
    path = tmp_path / "plan.png"
    code, _, err = says(capsys, f"{GIVEN} --plot {path}")
    assert (code, err) == (0, "")
    assert path.read_bytes().startswith(b"\x89PNG")
    import matplotlib.image

    picture = matplotlib.image.imread(path)
    assert picture.shape[:2] == (540, 1320)
    assert picture[..., :3].std() > 0.05  # something is on it


def test_without_matplotlib_the_line_to_write_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = says(capsys, f"{GIVEN} --plot {tmp_path / 'plan.png'}")
    assert (code, out) == (2, "")
    assert "--plot needs matplotlib. Write pip install 'ddp_patch[plot]'" in err


def test_neither_torch_nor_matplotlib_is_imported():
    code = (
        "import sys; from ddp_patch.__main__ import main\n"
        f"try: main(['plan', *{shlex.split(GIVEN)!r}])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'matplotlib', 'rich'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("124,000,000 parameters, 496 MB of gradients")


# --- the page ---------------------------------------------------------------------------------------------------------

TEXTS = re.findall(
    r"^```text\n(.*?)^```$", DOCS.read_text(encoding="utf-8") if DOCS.exists() else "", re.DOTALL | re.MULTILINE
)


def test_the_pages_example_prints_what_it_says(capsys):
    shown = [text for text in TEXTS if text.startswith("$ python -m ddp_patch plan ")]
    assert shown
    for text in shown:
        line, _, rest = text.replace("\\\n", " ").partition("\n")
        code, out, _ = says(capsys, line.removeprefix("$ python -m ddp_patch plan "))
        assert code == 0
        for part in rest.split("...\n"):
            assert part in out


def test_the_pages_profile_can_be_read(tmp_path, capsys):
    (text,) = (text for text in TEXTS if text.startswith("{"))
    path = tmp_path / "profile.json"
    path.write_text(text)
    assert says(capsys, f"--profile {path}")[0] == 0
    page = DOCS.read_text(encoding="utf-8")
    for name in profile.KEYS | profile.RUN:
        assert f"`{name}`" in page, name


def test_the_page_names_every_option(capsys):
    page = DOCS.read_text(encoding="utf-8")
    for flag in re.findall(r"^  (--[\w-]+)", says(capsys, "--help")[1], re.MULTILINE):
        assert f"`{flag}" in page, flag
