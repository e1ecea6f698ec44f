"""torch's losses: what each makes of a batch."""

from __future__ import annotations

import ast

from .tree import keyword, tail
from .values import MEAN, ROWS, SUM, WEIGHTED, Value, other

FUNCTIONS = {
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "gaussian_nll_loss", "hinge_embedding_loss"),
    *("margin_ranking_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss", "cosine_embedding_loss"),
    *("soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "ctc_loss"),
}
CLASSES = {
    *("CrossEntropyLoss", "NLLLoss", "NLLLoss2d", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss"),
    *("BCEWithLogitsLoss", "KLDivLoss", "PoissonNLLLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "CTCLoss"),
    *("MarginRankingLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss", "CosineEmbeddingLoss"),
    *("SoftMarginLoss", "MultiMarginLoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss"),
}
_WEIGHED = {"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "NLLLoss2d"}


def of_call(call: ast.Call) -> Value:
    """Tell what a loss gives, by the call that computes it, or that makes its module."""
    reduction = keyword(call, "reduction")
    name = tail(call)
    if isinstance(reduction, ast.Constant) and reduction.value == "none":
        return ROWS
    if isinstance(reduction, ast.Constant) and reduction.value == "sum":
        return SUM
    averaged = keyword(call, "size_average")
    if isinstance(averaged, ast.Constant) and averaged.value is False:
        return SUM
    if reduction is not None and not isinstance(reduction, ast.Constant):
        return other("has a reduction that only a run can tell")
    if name in _WEIGHED:
        position = 0 if name[0].isupper() else 2
        if _is_set(keyword(call, "weight", position)):
            return other(WEIGHTED)
        if _is_set(keyword(call, "ignore_index")):
            return other("is a mean over the tokens that are not ignored, and each rank has another number of them")
    return MEAN


def _is_set(node: ast.expr | None) -> bool:
    return node is not None and not (isinstance(node, ast.Constant) and node.value is None)
