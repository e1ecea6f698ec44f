"""Names of torch, numpy and Python, by what they make of the rows of a batch."""

from __future__ import annotations

PASSING = {
    *(
        "item",
        "detach",
        "detach_",
        "cpu",
        "cuda",
        "to",
        "float",
        "double",
        "half",
        "clone",
        "numpy",
        "contiguous",
        "tolist",
    ),
    *(
        "type",
        "astype",
        "squeeze",
        "requires_grad_",
        "type_as",
        "expand_as",
        "int",
        "round",
        "asnumpy",
        "copy",
        "retain_grad",
    ),
    *(
        "float",
        "int",
        "as_tensor",
        "tensor",
        "asarray",
        "array",
        "Variable",
        "enumerate",
        "tqdm",
        "reversed",
        "scale",
    ),
}
ALIKE = {"dtype", "device", "is_cuda", "ndim", "requires_grad", "dim", "ndimension", "is_leaf", "type"}
WHOLE = {"max", "min", "std", "var", "median", "norm", "all", "any", "quantile", "amax", "amin", "argmax", "unique"}
SPLITTING = {"split", "chunk", "reshape", "narrow", "split_with_sizes"}
LIBRARIES = {"torch", "np", "numpy", "F", "nn", "math", "torchvision", "functional", "einops", "random"}
MAKING = {
    "randn",
    "rand",
    "randint",
    "full",
    "ones",
    "zeros",
    "empty",
    "normal",
    "uniform",
    "new_zeros",
    "new_ones",
    "arange",
}
MAKING |= {"Tensor", "FloatTensor", "LongTensor", "random", "random_sample", "choice", "normal_", "fill_"}
LINEAR = (PASSING - {"round", "int"}) | {  # methods of a mean, a sum, or a dictionary of them
    *("neg", "view", "reshape", "unsqueeze", "expand", "flatten", "bfloat16", "values", "items", "keys", "get", "pop"),
}
NO_LINE = {"abs", "exp", "log", "sqrt", "log2", "log10", "sigmoid", "tanh", "pow", "square"}
PACKING = {"pack_padded_sequence", "pack_sequence", "masked_select"}
