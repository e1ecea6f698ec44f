"""What an all-reduce takes: each message costs a latency, and its bytes over a bandwidth (alpha and beta).

``M`` bytes are summed over ``N = hosts * devices`` ranks; ``devices`` of a host share its way to the others. Sources:

- ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009
- recursive halving and doubling: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
  in MPICH", 2005
- tree: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL has
  it since 2.4
- hierarchical: a ring within each host, rings between hosts, the ring within each host again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A way between two devices, or between two hosts."""

    bandwidth: float  # bytes/s in each direction, as reached: the "busbw" of nccl-tests
    latency: float  # seconds until the first byte is there


@dataclass(frozen=True)
class Shape:
    """Which ranks, and what is between them."""

    hosts: int
    devices: int  # of each host
    within: Link  # between devices of a host
    between: Link  # between hosts; all devices of a host share it

    @property
    def ranks(self) -> int:
        """The number of all."""
        return self.hosts * self.devices


@dataclass(frozen=True)
class Cost:
    """Seconds that an all-reduce takes."""

    latency: float  # because messages follow upon each other
    transfer: float  # because bytes have to pass

    @property
    def seconds(self) -> float:
        """Both."""
        return self.latency + self.transfer


def ring(size: float, shape: Shape) -> Cost:
    """Give the seconds of a ring through all ranks, host by host: 2(N-1) steps of M/N bytes.

    Each host has one edge of the ring to the next host, so that the slowest link sets the pace. A chunk passes each
    edge of the ring twice, but for one.

    Args:
        size: bytes.
        shape: of the job.
    """
    ranks = shape.ranks
    between = 0 if shape.hosts == 1 else shape.hosts if shape.devices > 1 else shape.hosts - 1
    latency = 2 * ((ranks - 1 - between) * shape.within.latency + between * shape.between.latency)
    return Cost(latency, 2 * (ranks - 1) / ranks * size / _slowest(shape) if ranks > 1 else 0.0)


def tree(size: float, shape: Shape) -> Cost:
    """Give the seconds of two binary trees for half of the bytes each: 2⌈log2 N⌉ latencies, 2M bytes of a rank.

    What Sanders, Speck and Träff reach in the limit of small chunks: no rank is inside of both trees.

    Args:
        size: bytes.
        shape: of the job.
    """
    latency = 2 * (_levels(shape.devices) * shape.within.latency + _levels(shape.hosts) * shape.between.latency)
    return Cost(latency, 2 * size / _slowest(shape) if shape.ranks > 1 else 0.0)


def hierarchical(size: float, shape: Shape) -> Cost:
    """Give the seconds of: each host sums up, hosts exchange, each host hands out.

    Between hosts each device has M/devices bytes, and its share of the host's bandwidth.

    Args:
        size: bytes.
        shape: of the job.
    """
    devices, hosts = shape.devices, shape.hosts
    latency = 2 * ((devices - 1) * shape.within.latency + (hosts - 1) * shape.between.latency)
    inside = 2 * (devices - 1) / devices * size / shape.within.bandwidth
    return Cost(latency, inside + 2 * (hosts - 1) / hosts * size / shape.between.bandwidth)


def halving(size: float, shape: Shape) -> Cost:
    """Give the seconds of recursive halving and doubling, within hosts before between them.

    Where a number is no power of two, those above the last one hand their part to another rank first, and get it back.

    Args:
        size: bytes.
        shape: of the job.
    """
    latency, transfer, left = 0.0, 0.0, size
    for count, link, share in ((shape.devices, shape.within, 1), (shape.hosts, shape.between, shape.devices)):
        power = 1 << (count.bit_length() - 1)
        steps = power.bit_length() - 1
        # The devices of a host send left bytes each at the same time by the same way.
        moved = 2 * (power - 1) / power * left + (2 * left if count > power else 0.0)
        latency += 2 * (steps + (count > power)) * link.latency
        transfer += moved * share / link.bandwidth
        left /= count
    return Cost(latency, transfer)


ALGORITHMS: dict[str, Callable[[float, Shape], Cost]] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
    "halving": halving,  # of MPI and gloo; NCCL does not have it
}
_CHOSEN_FROM = ("ring", "tree", "hierarchical")


def fastest(size: float, shape: Shape) -> str:
    """Name the fastest of ring, tree and hierarchical.

    Args:
        size: bytes.
        shape: of the job.
    """
    return min(_CHOSEN_FROM, key=lambda name: ALGORITHMS[name](size, shape).seconds)


def all_reduce(size: float, shape: Shape, algorithm: str = "fastest") -> Cost:
    """Give the seconds of an all-reduce.

    Args:
        size: bytes.
        shape: of the job.
        algorithm: one of ``ALGORITHMS``, or ``fastest``.
    """
    return ALGORITHMS[fastest(size, shape) if algorithm == "fastest" else algorithm](size, shape)


def _slowest(shape: Shape) -> float:
    """Bytes/s of the slowest link that is used."""
    used = [
        link.bandwidth for link, count in ((shape.within, shape.devices), (shape.between, shape.hosts)) if count > 1
    ]
    return min(used)


def _levels(count: int) -> int:
    """⌈log2 count⌉."""
    return (count - 1).bit_length()
