"""Models that compute with their losses inside forward: with several, with parameters, with the rows again."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.inside_habits import Inside
from parity.later_habits import fit
from torch.utils.checkpoint import checkpoint


class WithLosses(Inside):
    """Two layers; ``end`` computes with ``classes`` and ``again``, a loss of what went in."""

    def __init__(self, end):
        super().__init__(end)
        self.back = nn.Linear(6, 4)
        self.scales = nn.Parameter(torch.full((2,), 0.1))
        self.register_buffer("usual", torch.zeros(()))

    def both(self, logits, hidden, x, y):
        return F.cross_entropy(logits, y), F.mse_loss(self.back(hidden), x)


def fitted(end, before=None, first=lambda out: out, net=WithLosses):
    """Train what ``end(net, classes, again, logits, hidden, x, y)`` gives."""

    def ended(net, logits, hidden, x, y):
        return end(net, *net.both(logits, hidden, x, y), logits, hidden, x, y)

    return fit(net(ended), lambda model, x, y: first(model(x, y)), before)


# --- on rows: what is computed with losses is computed alike on every rank --------------------------------------------


def a_sum_with_a_weight():
    return fitted(lambda net, classes, again, *rest: classes + 0.01 * again)


def a_focal_loss_of_the_mean():
    return fitted(lambda net, classes, *rest: (1 - torch.exp(-classes)) ** 2 * classes)


def losses_that_parameters_weigh():
    def end(net, classes, again, *rest):
        return torch.exp(-net.scales[0]) * classes + torch.exp(-net.scales[1]) * again + net.scales.sum()

    return fitted(end)


def a_root():
    return fitted(lambda net, classes, again, *rest: torch.sqrt(again))


def losses_that_are_stacked():
    def end(net, classes, again, *rest):
        return torch.logsumexp(torch.stack([classes, again]), 0) + 1e-3 * net.first.weight.pow(2).sum()

    return fitted(end)


def the_largest_of_losses():
    return fitted(lambda net, classes, again, *rest: torch.maximum(classes, 2 * again).clamp(min=0.1))


def losses_beside_logits():
    def end(net, classes, again, logits, *rest):
        return {"loss": classes + again, "classes": classes.detach(), "logits": logits}

    return fitted(end, first=lambda out: out["loss"] + 1e-2 * out["logits"].pow(2).mean())


def losses_of_targets_that_are_ignored():
    def end(net, classes, again, logits, hidden, x, y):
        some = F.cross_entropy(logits, y.where(x[:, 0] > 0, -100))
        return some + 0.1 * classes * some

    return fitted(end)


def losses_whose_weight_grows():
    def grow(net, step):
        net.factor = step / 10

    return fitted(lambda net, classes, again, *rest: classes + net.factor * again**2, grow)


def a_usual_size_that_is_kept():
    def end(net, classes, again, *rest):
        if net.training:
            net.usual.mul_(0.9).add_(again.detach(), alpha=0.1)
        return classes + again / (net.usual + 1)

    return fitted(end)


def a_gradient_of_a_loss_inside():
    def end(net, classes, again, logits, hidden, x, y):
        (slope,) = torch.autograd.grad(again**2, net.back.weight, create_graph=True)
        return classes + 1e-4 * slope.pow(2).sum()

    return fitted(end)


def losses_after_functions_without_a_rule():
    def end(net, classes, again, logits, hidden, x, y):
        pairs = torch.einsum("bi,bj->bij", hidden, hidden).softmax(-1)
        far = torch.cdist(torch.einsum("bij,bj->bi", pairs, hidden), torch.ones(5, 6).double())
        return F.cross_entropy(logits - far[:, :3], y) + 0.1 * again + 0 * classes

    return fitted(end)


ON_ROWS = (
    a_sum_with_a_weight,
    a_focal_loss_of_the_mean,
    losses_that_parameters_weigh,
    a_root,
    losses_that_are_stacked,
    the_largest_of_losses,
    losses_beside_logits,
    losses_of_targets_that_are_ignored,
    losses_after_functions_without_a_rule,
)


def compiled_with_losses():
    def end(net, classes, again, *rest):
        return torch.sqrt(classes) + net.scales[0] * again

    class Compiled(WithLosses):
        def __init__(self, end):
            super().__init__(end)
            self.compile(backend="eager")

    return fitted(end, net=Compiled)


def several_losses_with_data_parallel():
    def end(net, classes, again, *rest):
        return classes + again**2

    def ended(net, logits, hidden, x, y):
        return end(net, *net.both(logits, hidden, x, y))

    model = nn.DataParallel(WithLosses(ended))
    return fit(model, lambda model, x, y: model(x, y).mean())


# --- not on rows: a loss comes back to them, or is of their number ----------------------------------------------------


def rows_that_a_loss_multiplies():
    def end(net, classes, again, logits, hidden, x, y):
        return F.cross_entropy(logits * (1 + again), y)

    return fitted(end)


def rows_that_are_returned_with_a_loss_in_them():
    def end(net, classes, again, logits, *rest):
        return logits * (1 + again)

    return fitted(end, first=lambda out: 0.02 * out.pow(2).mean())


def rows_that_a_loss_without_gradients_multiplies():
    def end(net, classes, again, logits, hidden, x, y):
        return F.cross_entropy(logits / (0.5 + again.detach()), y)

    return fitted(end)


def rows_that_a_loss_multiplies_later():
    def grow(net, step):
        net.factor = float(step > 3)

    def end(net, classes, again, logits, *rest):
        return logits * (1 + net.factor * again)

    return fitted(end, grow, first=lambda out: 0.02 * out.pow(2).mean())


def rows_that_a_loss_multiplies_seen_without_gradients_first():
    def look(net, step):
        if step == 0:
            with torch.no_grad():
                net(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))

    def end(net, classes, again, logits, *rest):
        return logits * (1 + again)

    return fitted(end, look, first=lambda out: 0.02 * out.pow(2).mean())


def a_mean_by_the_number_of_rows():
    def end(net, classes, again, logits, hidden, x, y):
        return classes + 0.1 * F.mse_loss(net.back(hidden), x, reduction="sum") / x.size(0)

    return fitted(end)


def a_weight_by_the_number_of_rows():
    return fitted(lambda net, classes, again, logits, hidden, x, y: classes + again / len(y))


def a_branch_on_a_loss():
    def end(net, classes, again, *rest):
        return classes if classes > 1.0 else classes + again

    return fitted(end)


def a_value_that_is_kept():
    def end(net, classes, again, *rest):
        net.seen = (classes + again).item()
        return classes + again

    return fitted(end, lambda net, step: None if step == 0 else [net.seen])


def a_loss_that_is_computed_again():
    def end(net, classes, again, logits, hidden, x, y):
        inner = checkpoint(lambda h: F.mse_loss(net.back(h), x) ** 2, hidden, use_reentrant=False)
        return classes + 0.1 * inner * again

    return fitted(end)


def a_loss_of_some_rows():
    def end(net, classes, again, logits, hidden, x, y):
        return classes + 0.1 * F.mse_loss(net.back(hidden[:3]), x[:3]) ** 2

    return fitted(end)


def a_loss_of_what_is_centred():
    def end(net, classes, again, logits, hidden, x, y):
        return classes * F.mse_loss(hidden - hidden.mean(0), torch.zeros_like(hidden))

    return fitted(end)


def a_loss_of_what_meets_other_rows():
    def end(net, classes, again, logits, hidden, x, y):
        far = torch.cdist(hidden, hidden).mean(1, keepdim=True)
        near = torch.einsum("bi,ci->bc", hidden, hidden).amax(1, keepdim=True)
        return F.cross_entropy(logits * far + near, y) + again * 0 + classes

    return fitted(end)


def a_loss_of_each_half():
    def end(net, classes, again, logits, hidden, x, y):
        return sum(0.1 * F.cross_entropy(part, of) ** 2 for part, of in zip(logits.chunk(2), y.chunk(2), strict=True))

    return fitted(end)


# --- of one term per row ----------------------------------------------------------------------------------------------


def terms(logits, hidden, x, y, reduction="mean"):
    kwargs, sign = {"reduction": reduction}, (y > 0) * 2.0 - 1
    return [
        F.triplet_margin_loss(hidden, hidden.flip(1), 2 * hidden, swap=True, **kwargs),
        F.cosine_embedding_loss(hidden, hidden.flip(1), sign, 0.1, **kwargs),
        F.margin_ranking_loss(logits[:, 0], logits[:, 1], sign, **kwargs),
        F.hinge_embedding_loss(logits[:, 2], sign, **kwargs),
        F.gaussian_nll_loss(x, hidden[:, :4], logits[:, :1].exp(), **kwargs),
        F.multi_margin_loss(logits, y, weight=torch.tensor([1.0, 2.0, 0.5]), **kwargs),
        F.multilabel_margin_loss(logits, y[:, None].expand(-1, 3), **kwargs),
        F.multilabel_soft_margin_loss(logits, (x[:, :3] > 0).double(), **kwargs),
    ]


def terms_of_rows():
    return fitted(lambda net, classes, again, *rest: sum(terms(*rest)))


def terms_of_rows_and_their_sums():
    return fitted(lambda net, classes, again, *rest: torch.stack([0.01 * each for each in terms(*rest, "sum")]).sum())


def terms_of_rows_one_by_one():
    def end(net, classes, again, *rest):
        return [each if each.dim() == 1 else each.mean(1) for each in terms(*rest, "none")]

    return fitted(end, first=lambda out: torch.stack(out).mean())


class Spelling(nn.Module):
    """Reads ten steps as three letters, and computes its loss if it is given these."""

    def __init__(self):
        super().__init__()
        self.reader, self.letters = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 5)
        self.loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, x, letters=None, lengths=None):
        scores = self.letters(self.reader(x[:, None].expand(-1, 10, -1).contiguous())[0]).log_softmax(2).transpose(0, 1)
        if letters is None:
            return scores
        return self.loss(scores, letters, torch.full((x.shape[0],), 10), lengths)


def spelled(inside, joined=False):
    def loss(model, x, y):
        letters, lengths = torch.stack([y + 1, y + 2, (y + 1) % 3 + 1], 1), y + 1
        if inside:
            return model(x, letters, lengths)
        if joined:
            letters = torch.cat([row[:length] for row, length in zip(letters, lengths.tolist(), strict=True)])
        return model.loss(model(x), letters, (10,) * len(x), tuple(lengths.tolist()))

    return fit(Spelling(), loss)


def letters_without_places():
    return spelled(True) + spelled(False)


def letters_one_behind_the_other():
    return spelled(False, True)
