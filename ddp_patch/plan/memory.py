"""What a rank has to hold: by DistributedDataParallel, and by what shards it.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020 (arXiv 1910.02054): 16
bytes a parameter with Adam in mixed precision. There these are weights and gradients of 2 bytes, and weights, momentum
and variance of 4; under ``torch.autocast`` weights, gradients, momentum and variance of 4. The sum is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

# Tensors as large as the weights that an optimizer of torch.optim keeps.
OPTIMIZERS = {
    "sgd": 0,
    "momentum": 1,  # SGD(momentum=0.9)
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "nadam": 2,
    "radam": 2,
}


@dataclass(frozen=True)
class Precision:
    """Bytes of one number."""

    weight: int
    gradient: int  # as it is held, and as it travels
    state: int  # each of the optimizer's
    master: int  # a second copy of the weights
    words: str


PRECISIONS = {
    "fp32": Precision(4, 4, 4, 0, "all in float32"),
    "bf16": Precision(4, 4, 4, 0, "torch.autocast: weights, gradients and states stay float32"),
    "fp16": Precision(4, 4, 4, 0, "torch.autocast: weights, gradients and states stay float32"),
    "pure-bf16": Precision(2, 2, 2, 0, "model.to(torch.bfloat16): everything in bfloat16"),
    "master": Precision(2, 2, 4, 4, "16-bit weights and gradients, and weights in float32 for the optimizer"),
}
WAYS = ("ddp", "zero1", "fsdp")


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank."""

    weights: float
    gradients: float
    states: float  # of the optimizer, with its copy of the weights
    buffers: float  # DDP's buckets, or the blocks that FSDP has together
    activations: float  # 0.0 where nobody said

    @property
    def total(self) -> float:
        """All of them. CUDA's context, and what its allocator leaves between blocks, come on top: often 1 to 3 GB."""
        return self.weights + self.gradients + self.states + self.buffers + self.activations


def bytes_per_parameter(optimizer: str, precision: str) -> int:
    """Give the bytes of weights, gradients and states: 16 with Adam in mixed precision.

    Args:
        optimizer: one of ``OPTIMIZERS``.
        precision: one of ``PRECISIONS``.
    """
    its = PRECISIONS[precision]
    return its.weight + its.gradient + its.master + OPTIMIZERS[optimizer] * its.state


def per_rank(
    parameters: float,
    optimizer: str,
    precision: str,
    *,
    ranks: int = 1,
    activations: float = 0.0,
    way: str = "ddp",
    blocks: int = 12,
) -> Memory:
    """Give what one rank holds.

    Args:
        parameters: their number.
        optimizer: one of ``OPTIMIZERS``.
        precision: one of ``PRECISIONS``.
        ranks: that share what is sharded.
        activations: bytes, of this rank's rows.
        way: ``ddp``; ``zero1``, ZeroRedundancyOptimizer, which shards the optimizer's states; ``fsdp``,
            ``fully_shard``, which shards everything, and has the weights of two blocks and the gradients of one
            together at a time.
        blocks: that ``fully_shard`` is called on, of equal size.
    """
    its = PRECISIONS[precision]
    weights, gradients = parameters * its.weight, parameters * its.gradient
    states = parameters * (its.master + OPTIMIZERS[optimizer] * its.state)
    if ranks == 1:
        return Memory(weights, gradients, states, 0.0, activations)
    if way == "fsdp":
        together = min(2 / blocks, 1.0) * weights + gradients / blocks
        return Memory(weights / ranks, gradients / ranks, states / ranks, together, activations)
    # DDP's buckets are a second copy of the gradients, unless gradient_as_bucket_view=True.
    return Memory(weights, gradients, states / (ranks if way == "zero1" else 1), gradients, activations)
