"""Every rule gives what the whole batch gives: values and gradients, over random shapes and uneven rows."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from check import CASES, check
from conftest import THOROUGH
from refusals import two_views

NAMES = list(CASES)
GROUPS = [NAMES[start::16] for start in range(16)]


RUNS = [(group, nproc) for group in range(len(GROUPS)) for nproc in ([2, 3] if THOROUGH else [2 + group % 2])]


@pytest.mark.quick("13-")
@pytest.mark.thorough
@pytest.mark.parametrize(("group", "nproc"), RUNS)
def test_rules_agree_with_the_whole_batch(ranks, group, nproc):
    outcome = ranks.call(check, nproc, GROUPS[group], 1).ok()
    complaints = [f"rank {rank}: {text}" for rank, found in enumerate(outcome.results) for text in found]
    assert not complaints, "\n".join(complaints)


def test_writes_through_views_of_two_tensors_are_refused_on_every_rank(ranks):
    outcome = ranks.call(two_views, 2).ok()
    assert all("views of two tensors" in said for said in outcome.results), outcome.results


def counted():
    """How many functions this rank has counted after one that rank 1 has in other steps."""
    import ddp_patch
    from ddp_patch.batch.tensor import by_rule
    from ddp_patch.batch.world import World

    world = World.get()

    def in_steps(func, args, kwargs):
        return (args[0] + 1).tanh().sum(1) if world.rank else args[0]

    x = ddp_patch.shard_batch(torch.arange(12.0).view(6, 2))
    by_rule(in_steps, torch.flip, (x, [1]), {})
    return world.operations


def test_ranks_count_functions_alike_whatever_a_rule_calls(ranks):
    """An error that all ranks have is told from one of a rank's rows by its number."""
    first, *others = ranks.call(counted, 3).ok().results
    assert others == [first, first]


def detected():
    """Pick and write predictions by picture, anchor and cell, as losses of detectors do; what was gathered."""
    import ddp_patch
    from ddp_patch.batch.world import World

    x = ddp_patch.shard_batch(torch.arange(160.0).view(8, 4, 5)) * 1
    pictures, anchors, cells = torch.tensor([7, 0, 3, 3]), torch.tensor([1, 3, 0, 2]), torch.tensor([4, 4, 0, 1])
    before = [x[pictures, anchors, cells].tolist(), x[pictures, 0].sum().item()]
    x[pictures, anchors, cells] = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    said = [*before, x[-pictures, anchors].sum().item(), x.sum().item()]
    try:
        x[torch.tensor([8]), torch.tensor([0])]
    except IndexError as error:
        said.append(str(error))
    gathered = World.get().ledger.collectives["all_gather"]
    short = ddp_patch.shard_batch(torch.arange(8, dtype=torch.int16).view(8, 1)) * 1
    return [*said, short[pictures, torch.tensor([0])].tolist()], gathered


def test_picks_at_indices_that_all_ranks_have_gather_nothing(ranks):
    x = torch.arange(160.0).view(8, 4, 5)
    index = [7, 0, 3, 3], [1, 3, 0, 2], [4, 4, 0, 1]
    wanted = [x[index].tolist(), x[[7, 0, 3, 3], 0].sum().item()]
    x[index] = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    wanted += [x[[-7, 0, -3, -3], [1, 3, 0, 2]].sum().item(), x.sum().item()]
    for said, gathered in ranks.call(detected, 3).ok().results:
        assert said == [*wanted, "index 8 is out of bounds for dimension 0 with size 8", [7, 0, 3, 3]]
        assert gathered == 0


def masked():
    """Pick labelled words by a mask and train on them, and write by one; what ranks told each other."""
    import ddp_patch
    from ddp_patch.batch.world import World

    torch.set_default_dtype(torch.float64)
    labels = torch.arange(24).view(8, 3).remainder(5) - 1
    words, labels = ddp_patch.shard_batch((torch.arange(96.0).view(8, 3, 4).sin(), labels))
    logits = (words * 1).requires_grad_()
    known = labels >= 0
    loss = torch.nn.functional.cross_entropy(logits[known], labels[known])
    loss.backward()
    said = [loss.item(), len(logits[known]), logits[known].mean().item()]
    words = words + 0
    words[known] = words[known] * 2
    words[labels == 0] = torch.ones(4)
    words[torch.arange(8) % 2 == 0] = 0.0
    told = World.get().ledger.collectives
    told = told["all_gather"], told["all_reduce"]
    return [*said, words.sum().item(), logits.grad.square().sum().item()], told


def test_picks_by_a_mask_of_rows_tell_their_number_and_gather_nothing(ranks):
    labels = torch.arange(24).view(8, 3).remainder(5) - 1
    words = torch.arange(96.0, dtype=torch.float64).view(8, 3, 4).sin()
    logits, known = (words * 1).requires_grad_(), labels >= 0
    loss = torch.nn.functional.cross_entropy(logits[known], labels[known])
    loss.backward()
    wanted = [loss.item(), int(known.sum()), logits[known].mean().item()]
    words[known] *= 2
    words[labels == 0] = torch.ones(4, dtype=torch.float64)
    words[::2] = 0
    wanted += [words.sum().item(), logits.grad.square().sum().item()]
    for said, (gathers, sums) in ranks.call(masked, 3).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert gathers <= 1  # the gradient, which is asked for
        assert sums <= 6


def of_experts(tokens):
    """Look for the tokens of each expert, compute them, and add them up."""
    chosen = (tokens * 1e3).round().long()[:, :2].remainder(3)
    weights, out = tokens.softmax(1), torch.zeros_like(tokens)
    for expert, own in enumerate((chosen[:, :, None] == torch.arange(3)).permute(2, 1, 0)):
        which, at = torch.where(own)
        out.index_add_(0, at, tokens[None, at].reshape(-1, 4) * weights[at, which, None] * expert)
        out[at] += weights[at] * 2
        rows = own.nonzero()[:, 1]
        out = out.index_add(0, rows, tokens.index_select(0, rows).masked_fill(own[:, at].t()[:, :1], 1))
    return out.square().sum().item()


def listed():
    """The same on ranks; and what they told each other."""
    import ddp_patch
    from ddp_patch.batch.world import World

    torch.set_default_dtype(torch.float64)
    said, told = of_experts(ddp_patch.shard_batch(torch.arange(96.0).view(24, 4).sin())), World.get().ledger.collectives
    return said, told["all_gather"], told["all_reduce"]


def test_entries_that_ranks_list_of_their_own_rows_gather_nothing(ranks):
    wanted = of_experts(torch.arange(96.0, dtype=torch.float64).view(24, 4).sin())
    for said, gathers, sums in ranks.call(listed, 2).ok().results:
        assert said == pytest.approx(wanted, rel=1e-9)
        assert gathers == 0
        assert sums <= 3 * 4 + 1  # for each expert two numbers of entries, and twice whether columns list own rows


def in_order(tokens, up, down):
    """Sort tokens by their experts, compute each group, and put them back, as transformers has it."""
    chosen = (tokens * 1e3).round().long()[:, :2].remainder(4)
    numbers, order = torch.sort(chosen.reshape(-1))
    ends = torch.histc(numbers.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
    h = torch.nn.functional.grouped_mm(tokens[order // 2], up, offs=ends)
    h = torch.nn.functional.grouped_mm(h.relu(), down.transpose(1, 2), offs=ends) * tokens[order // 2, :1]
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    out = h[back].view(24, 2, 4).sum(1)
    out.square().sum().backward()
    return [out.square().sum().item(), *up.grad.flatten().tolist(), *down.grad.flatten().tolist()]


def with_matrices(tokens):
    numbers = torch.arange(128, dtype=torch.float32).view(4, 4, 8)
    return in_order(tokens, (numbers.cos() / 2).requires_grad_(), (numbers.sin() / 2).requires_grad_())


def in_order_on_ranks():
    import ddp_patch
    from ddp_patch.batch.world import World

    world = World.get()
    with world.telling_batch_sizes():
        said = with_matrices(ddp_patch.shard_batch(torch.arange(96, dtype=torch.float32).view(24, 4).sin()))
    return said, world.ledger.collectives["all_gather"], world.ledger.collective_bytes["all_gather"]


def test_rows_that_are_sorted_stay_where_they_are(ranks):
    """In float32, in which alone grouped_mm computes on a CPU."""
    wanted = with_matrices(torch.arange(96, dtype=torch.float32).view(24, 4).sin())
    for said, gathers, sent in ranks.call(in_order_on_ranks, 3).ok().results:
        assert said == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        assert (gathers, sent) == (1, 16)  # a byte for each token's expert


def told_of_copies():
    """Orders and lists that were written to, by name, in a list and before they were copied; entries that are counted."""
    import copy

    import ddp_patch
    from ddp_patch.batch.world import World

    x = ddp_patch.shard_batch(torch.arange(46.0).view(23, 2).sin()) * 1
    said = []
    with World.current.telling_batch_sizes() if World.current else nullcontext():
        keys = (x[:, 0] * 3).round().long()
        for is_inference in (False, True):
            with torch.inference_mode(is_inference):
                order, values = keys.argsort(), torch.zeros(23)
                torch._foreach_clamp_max_([order], 9)
                said.append((x[order] * torch.arange(23)[:, None]).sum().item())
                back = keys.argsort().argsort()
                back.clamp_(max=9)
                said.append(copy.deepcopy(back).sort()[0].tolist())
                at = (x > 0).nonzero(as_tuple=True)[0]
                at.clamp_(max=9)
                said.append(x[copy.deepcopy(at)].sum().item())
                mask = x[:, 0] > 0
                said.append(len(x[mask]))
                mask.logical_not_()
                said.append(len(x[copy.deepcopy(mask)]))
                out, order = torch.empty_like(x), keys.argsort()
                torch.max(x, 1, out=(values, order))
                said.append(x[order].sum().item())
                order = keys.argsort()
                out[order] = x[order]
                said.append((out - x).abs().max().item())
        said.append(keys.abs().to(torch.uint16).argsort(stable=True).tolist())
        try:
            torch.bincount(keys)
        except RuntimeError as error:
            said.append(str(error)[:40])
        said.append(torch.bincount(keys - keys.min()).tolist())
        columns = (torch.ones(4, 2) @ x[:20].t()).t()
        said.append(
            torch.nn.functional.grouped_mm(columns, torch.ones(1, 4, 4), offs=torch.tensor([20]).int()).sum().item()
        )
    return said


def test_what_was_written_to_is_an_order_no_more(ranks):
    ((wanted,), *others) = [ranks.call(told_of_copies, nproc).ok().results for nproc in (1, 2, 3)]
    for said in (said for results in others for said in results):
        for ours, right in zip(said, wanted, strict=True):
            assert ours == (right if isinstance(right, str) else pytest.approx(right, rel=1e-5, abs=1e-6))


def written_to_draws():
    """Write what was sorted to a tensor that was drawn, which every rank has whole."""
    import ddp_patch
    from ddp_patch.batch.world import World

    x = ddp_patch.shard_batch(torch.arange(46.0).view(23, 2).sin()) * 1
    with World.get().telling_batch_sizes():
        order = (x[:, 0] * 3).round().long().argsort()
        drawn = torch.rand_like(x[order])
        drawn[order] = x[order]
        return (drawn - x).abs().max().item()


def test_an_order_is_written_to_what_every_rank_has_whole(ranks):
    assert ranks.call(written_to_draws, 2).ok().results == [0.0, 0.0]


def refused_matrices():
    """Matrices of which one is refused, on whichever rank it is: what the script catches, and goes on with."""
    import ddp_patch

    said = []
    row = ddp_patch.shard_batch(torch.arange(9.0, dtype=torch.float64))
    m = (row[:, None] + torch.arange(9.0, dtype=torch.float64)).cos().view(-1, 3, 3)
    p = m @ m.mT + torch.eye(3, dtype=torch.float64) * torch.where(row == 5, -9.0, 1.0)[:, None, None]
    zeroed = p * (row != 7)[:, None, None]
    for f, of in (
        (torch.linalg.cholesky, p),
        (torch.linalg.inv, zeroed),
        (lambda m: torch.linalg.solve(m, p), zeroed),
        (lambda m: torch.linalg.matrix_power(m, -2), zeroed),
        (lambda m: torch.linalg.cholesky_ex(m, check_errors=True)[0], p),
    ):
        try:
            said.append(f(of).sum().item())
        except torch.linalg.LinAlgError as error:
            said.append(str(error))
        said.append(f(p + 20 * torch.eye(3, dtype=torch.float64)).sum().item())
    return said


def test_matrices_are_refused_as_in_one_process(ranks):
    ((wanted,), *others) = [ranks.call(refused_matrices, nproc).ok().results for nproc in (1, 2, 3)]
    assert "(Batch element 5)" in wanted[0]
    assert "(Batch element 7)" in wanted[4]
    for said in (said for results in others for said in results):
        for ours, right in zip(said, wanted, strict=True):
            assert ours == (right if isinstance(right, str) else pytest.approx(right, rel=1e-12))
