"""Models that write sums and means over the batch themselves, inside forward."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.habits import mlp
from parity.inside_habits import Inside
from parity.later_habits import fit
from torch.utils.checkpoint import checkpoint


class WithSums(Inside):
    """Two layers; ``end(net, errors, logits, hidden, x, y)`` gets squared errors of what went in."""

    def __init__(self, end):
        super().__init__(end)
        self.back = nn.Linear(6, 4)
        self.scales = nn.Parameter(torch.linspace(0.5, 1.5, 3))
        self.head = nn.Linear(4, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("usual", torch.zeros(3))

    def errors(self, hidden, x):
        return (self.back(hidden) - x).square()


def summed(end, before=None, net=WithSums):
    """Train the loss that ``end`` gives, or the sum of what it gives."""

    def ended(net, logits, hidden, x, y):
        return end(net, net.errors(hidden, x), logits, hidden, x, y)

    def loss(model, x, y):
        out = model(x, y)
        leaves = out if isinstance(out, tuple) else (out,)
        return sum(0.1 * leaf.mean() if leaf.dim() else leaf for leaf in leaves)

    return fit(net(ended), loss, before)


# --- on rows: one small sum over the ranks ----------------------------------------------------------------------------


def a_mean_of_squares():
    return summed(lambda net, errors, *rest: errors.mean())


def a_mean_of_means_of_rows():
    """``GaussianDiffusion`` ends so: a mean over each picture, times a weight, and the mean of that."""

    def end(net, errors, *rest):
        return (errors.flatten(1).mean(dim=1) * torch.rand(errors.shape[0]).double().clamp(0.5, 0.5)).mean()

    return summed(end)


def a_divergence_of_each_row():
    def end(net, errors, logits, hidden, x, y):
        own = -0.5 * torch.sum(1 + logits - logits.pow(2) - logits.exp(), dim=1)
        return errors.mean() + 1e-3 * torch.mean(own, dim=0)

    return summed(end)


def a_mean_over_a_mask():
    def end(net, errors, logits, hidden, x, y):
        mask = (x > 0).double()
        return (errors * mask).sum() / mask.sum()

    return summed(end)


def a_mean_over_a_mask_of_counts():
    def end(net, errors, logits, hidden, x, y):
        mask = x > 0
        return (errors * mask).sum() / mask.sum().clamp(min=1) + (logits.argmax(1) == y).double().mean()

    return summed(end)


def sums_of_parameters_between():
    def end(net, errors, *rest):
        before = 1e-3 * net.scales.square().sum()
        return before + errors.sum(1).mean() + 1e-3 * net.first.weight.abs().mean()

    return summed(end)


def what_is_centred():
    def end(net, errors, logits, hidden, x, y):
        return (
            errors.mean() + (logits - logits.mean(0)).square().mean() + (hidden - hidden.mean()).sum(1).square().mean()
        )

    return summed(end)


def what_is_normalised():
    """BatchNorm by hand, with its gradient."""

    def end(net, errors, logits, hidden, x, y):
        mean = logits.mean(0)
        var = (logits - mean).square().mean(0)
        normed = (logits - mean) / (var + 1e-5).sqrt() * net.scales
        return errors.mean() + nn.functional.cross_entropy(normed, y)

    return summed(end)


def the_entropy_of_a_mean():
    """Lookup-free quantization: codes are sure of themselves, and all of them are used."""

    def end(net, errors, logits, hidden, x, y):
        codes = logits.softmax(1)
        used = codes.mean(0)
        return errors.mean() + 0.1 * ((used * used.log()).sum() - (codes * codes.log()).sum(1).mean())

    return summed(end)


def a_usual_mean_that_is_kept():
    def end(net, errors, logits, hidden, x, y):
        if net.training:
            with torch.no_grad():
                net.usual.mul_(0.9).add_(logits.mean(0), alpha=0.1)
        return errors.mean() + (logits - net.usual).square().mean()

    return summed(end)


def rows_divided_by_what_all_rows_have():
    def end(net, errors, logits, hidden, x, y):
        scale = 1 + logits.detach().abs().mean(0, keepdim=True)
        return errors.mean(), logits / scale, logits.sum(1) / (1 + logits.detach().square().sum())

    return summed(end)


def rows_that_a_mean_multiplies():
    def end(net, errors, logits, hidden, x, y):
        loss = errors.mean()
        return logits * loss, loss, net.scales * logits.mean(0)

    return summed(end)


def sums_of_other_types():
    def end(net, errors, logits, hidden, x, y):
        hits = (logits.argmax(1) == y).sum()
        wide = torch.sum(errors, [0, 1], keepdim=True).reshape(()) / 100
        return errors.float().sum(dtype=torch.float64) / 100 + wide, hits / 100, (logits > 0).sum(0) / 100

    return summed(end)


def a_quantizer_with_a_function_of_its_own():
    """The function sums parameters, which is no sum of the forward's."""

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, scales):
            return torch.round(value * 8) / 8 + 0 * scales.mean()

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    def end(net, errors, logits, hidden, x, y):
        rounded = Rounded.apply(logits, net.scales.detach())
        return errors.mean() + (rounded - logits.detach()).square().mean() + rounded.square().mean()

    return summed(end)


ON_ROWS = (
    a_mean_of_squares,
    a_mean_of_means_of_rows,
    a_divergence_of_each_row,
    a_mean_over_a_mask,
    a_mean_over_a_mask_of_counts,
    sums_of_parameters_between,
    what_is_centred,
    what_is_normalised,
    the_entropy_of_a_mean,
    a_usual_mean_that_is_kept,
    rows_divided_by_what_all_rows_have,
    sums_of_other_types,
)


def sums_with_data_parallel():
    def ended(net, logits, hidden, x, y):
        return net.errors(hidden, x).mean() + (logits - logits.mean(0)).square().mean()

    model = nn.DataParallel(WithSums(ended))
    return fit(model, lambda model, x, y: model(x, y).mean())


def sums_inside_of_a_part():
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.last = inner, nn.Linear(3, 3)

        def forward(self, x, y):
            logits, loss, mean = self.inner(x, y)
            near = torch.cdist(logits, logits).mean(1, keepdim=True)
            return self.last(logits * near + mean).square().mean() + loss

    def end(net, logits, hidden, x, y):
        return logits, net.errors(hidden, x).mean(), net.scales * logits.mean(0)

    return fit(Outer(WithSums(end)), lambda model, x, y: model(x, y))


# --- not on rows, or not at once --------------------------------------------------------------------------------------


def a_sum_by_the_number_of_rows():
    return summed(lambda net, errors, logits, hidden, x, y: errors.sum() / x.size(0))


def forces_of_a_head_that_starts_at_zero():
    def end(net, errors, logits, hidden, x, y):
        places = x.detach().requires_grad_()
        (forces,) = torch.autograd.grad(net.head(places).sum(), places, create_graph=True)
        return errors.mean() + (forces - x).square().mean()

    return summed(end)


def forces_of_a_loss_that_starts_at_zero():
    def end(net, errors, logits, hidden, x, y):
        places = x.detach().requires_grad_()
        loss = nn.functional.mse_loss(net.head(places)[:, 0], y.double())
        (forces,) = torch.autograd.grad(loss, places, create_graph=True)
        return errors.mean() + (forces - x).square().mean()

    return summed(end)


def sums_that_are_computed_again():
    def end(net, errors, logits, hidden, x, y):
        inner = checkpoint(lambda rows: (rows - rows.mean(0)).square().sum(1), logits, use_reentrant=False)
        return errors.mean() + inner.mean() + checkpoint(lambda rows: rows.square().mean(), logits, use_reentrant=False)

    return summed(end)


def a_sum_for_each_row():
    def end(net, errors, logits, hidden, x, y):
        return (
            torch.stack([row.sum() for row in errors]).mean() + torch.stack([r.exp().mean() for r in logits]).sum() / 50
        )

    return summed(end)


def one_more_sum_later():
    def grow(net, step):
        net.factor = float(step > 2)

    def end(net, errors, logits, *rest):
        loss = errors.mean()
        return loss + logits.square().mean() if net.factor else loss

    return summed(end, grow)


def one_more_sum_that_is_counted():
    def end(net, errors, logits, *rest):
        net.calls = getattr(net, "calls", 0) + 1
        loss = errors.mean()
        return loss + logits.square().mean() if net.calls % 3 == 0 else loss

    return summed(end)


def a_branch_on_a_mean():
    def end(net, errors, *rest):
        loss = errors.mean()
        return loss if loss > 1.0 else 2 * loss

    return summed(end)


def a_mean_with_a_hook():
    def end(net, errors, logits, *rest):
        mean = logits.mean(0)
        if mean.requires_grad:
            mean.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return errors.mean() + mean.square().sum()

    return summed(end)


def a_mean_of_some_rows():
    return summed(lambda net, errors, logits, hidden, x, y: errors[y > 0].mean() + errors[:3].mean())


def sums_of_functions_that_are_mapped():
    def end(net, errors, logits, *rest):
        return torch.func.vmap(lambda row: row.square().sum())(logits).mean() + errors.mean()

    return summed(end)


def a_gradient_of_a_mean_inside():
    def end(net, errors, logits, *rest):
        (slope,) = torch.autograd.grad(errors.mean(), net.back.weight, create_graph=True)
        return errors.mean() + 1e-2 * slope.pow(2).sum()

    return summed(end)


def a_mean_that_is_kept_on_the_model():
    def end(net, errors, logits, *rest):
        net.said = logits.mean(0).detach()
        return errors.mean() + (logits - net.said).square().mean()

    return summed(end, lambda net, step: None if step == 0 else net.said.tolist())


def compiled_with_sums():
    class Compiled(WithSums):
        def __init__(self, end):
            super().__init__(end)
            self.compile(backend="eager")

    return summed(
        lambda net, errors, logits, *rest: errors.mean() + (logits - logits.mean(0)).square().mean(), net=Compiled
    )


class Clamped(torch.autograd.Function):
    """Gives back what it gets, and a part of its gradient."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


def means_whose_gradient_a_function_clamps():
    def end(net, errors, logits, *rest):
        return Clamped.apply(errors.mean()) * 2 + Clamped.apply(logits.mean(0)).square().sum() + errors.sum(1).mean()

    return summed(end)


def a_mean_that_is_returned_and_meets_rows():
    def end(net, errors, logits, *rest):
        mean = logits.mean(0)
        return (logits - mean * net.scales).square().mean(), mean

    def hooked(model, x, y):
        loss, mean = model(x, y)
        mean.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return loss + mean.square().sum()

    def ended(net, logits, hidden, x, y):
        return end(net, net.errors(hidden, x), logits)

    return fit(WithSums(ended), hooked)


def layers_that_are_frozen_at_first():
    def thaw(net, step):
        for parameter in (*net.first.parameters(), *net.last.parameters(), *net.places.parameters()):
            parameter.requires_grad_(step > 2)

    class Frozen(WithSums):
        def __init__(self, end):
            super().__init__(end)
            self.extra = nn.Parameter(torch.ones(3))

    def end(net, errors, logits, *rest):
        return ((logits - logits.mean(0)) * net.extra).square().mean() + errors.mean()

    return summed(end, thaw, net=Frozen)


def spreads_that_are_written_to():
    def loss(model, x, y):
        z = model(x)
        each, var = z.var(0), z.var()
        each += 1e-4
        var.add_(0.1)
        return F.cross_entropy(z / each.sqrt(), y) + var.log()

    return fit(mlp(), loss)
