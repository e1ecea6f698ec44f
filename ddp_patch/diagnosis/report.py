"""What ddp_patch did to this run, as text for the script's author."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ledger import Ledger


@dataclass(frozen=True)
class Report:
    """A snapshot of one session. ``str(report)`` is meant to be read."""

    world_size: int
    device: str
    ledger: Ledger = field(default_factory=Ledger)

    def __str__(self) -> str:
        """Render the report."""
        if self.world_size == 1:
            return "ddp_patch report: one process, nothing was patched; this is the script itself.\n"
        ledger = self.ledger
        blocks = [
            _block("In short", _summary(ledger, self.world_size, self.device)),
            _block(
                "Replicas",
                [f"{name}: {why}" for name, why in ledger.replicas.items()] or [_nothing(ledger)],
            ),
            _block(
                "On batches: function by function, and on rows where these and the modules inside keep rows apart",
                [f"{name}: {why}" for name, why in ledger.on_batches.items()],
            ),
            _block(
                "On the whole batch, on every rank",
                [f"{name}: {why}" for name, why in ledger.on_whole.items()],
            ),
            _block("Loaders", [f"{name}: {how}" for name, how in ledger.loaders.items()]),
            _block("Work of a forward that is split over the ranks", _work(ledger, self.world_size)),
            _block("Time of an optimizer step on this rank", _time(ledger, self.world_size, self.device)),
            _block("Rows of this rank per model call", _rows(ledger)),
            _block("Gathered whole, slower than rows", _gathers(ledger)),
            _block("Collectives", _collectives(ledger)),
            _block("Gradients", _gradients(ledger)),
            _block("Chosen by measurement", [f"{name}: {text}" for name, text in ledger.choices.items()]),
            _block("Notes", list(ledger.notes)),
        ]
        head = f"ddp_patch report: {self.world_size} ranks, this one on {self.device}\n"
        return head + "".join(blocks)

    @property
    def patched(self) -> list[str]:
        """What was patched: a name, and what it does now."""
        return list(self.ledger.patched)


def _nothing(ledger: Ledger) -> str:
    if any(_DEALT in how for how in ledger.loaders.values()):
        return (
            "none: no batch reached a module that is trained; what else your script computes of a loader's batches is "
            "on rows where its functions keep these apart"
        )
    return "none: no batch reached a model, so every rank computed everything; right, but not faster"


def _block(title: str, lines: list[str]) -> str:
    return f"  {title}\n" + "".join(f"    {line}\n" for line in lines) if lines else ""


_MOST = 5  # lines of advice
_RARELY = 0.5  # gathers per step, below which they do not matter
_NEARLY_ALL = 0.98  # of a forward's work
_HOST = "the CPU"
_DEALT, _NO_WORKERS = "each rank loads its own", "num_workers=0"


def _summary(ledger: Ledger, size: int, device: str) -> list[str]:
    """What is split, and what to change, most first."""
    if not ledger.replicas:
        return [f"no model is split: {_nothing(ledger).partition(': ')[2]}"]
    lines = [
        f"{name}: at most {_times(part, size):.2f} times as fast as one process" for name, part in ledger.work.items()
    ]
    faster = _faster(ledger, size, device)
    if faster is not None:
        advised = "" if faster > 1 else ": steps are too short to be shared; larger batches make them longer"
        lines.append(f"by the clock about {faster:.1f} times as fast as one process{advised}")
    iterations = max(1, ledger.iterations)
    advice = [f"{name} is computed whole by every rank: {why}" for name, why in ledger.on_whole.items()]
    if not ledger.work or min(ledger.work.values()) < _NEARLY_ALL:
        advice += [f"{name} is not split as a whole: {why}" for name, why in ledger.on_batches.items()]
    often = [
        (entry, place)
        for place, entry in ledger.gathers.items()
        if entry.collectives > _RARELY * iterations and ledger.iterations
    ]
    for entry, (function, line) in sorted(often, key=lambda item: -item[0].bytes):
        times, sent = entry.collectives / iterations, entry.bytes / max(1, entry.collectives)
        advice.append(f"{function} at {line} gathers the batch {times:.1f} times a step, {sent:,.0f} bytes each")
    if not advice and ledger.on_batches:
        names = ", ".join(ledger.on_batches)
        return [*lines, f"nothing that costs much: of {names} only small parts run on batches, as is said below"]
    if not advice:
        return [*lines, "nothing to change: no module is computed whole, no step gathers a batch"]
    left = [f"and {len(advice) - _MOST} more, below"] if len(advice) > _MOST else []
    return [*lines, *(f"to change: {text}" for text in advice[:_MOST]), *left]


def _times(part: float, size: int) -> float:
    return 1 / (1 - part + part / size)


def _work(ledger: Ledger, size: int) -> list[str]:
    return [
        f"{name}: {100 * part:.1f} % of its products, convolutions and attention, so at most "
        f"{_times(part, size):.2f} times as fast"
        for name, part in ledger.work.items()
    ]


def _time(ledger: Ledger, size: int, device: str) -> list[str]:
    """Where the time goes, and what one process would take: what is split, as often; without the ranks' own cost."""
    pace = ledger.pace.summary()
    if pace is None:
        return []
    overhead = (
        ""
        if pace.python is None
        else f", of which about {_ms(min(pace.python, pace.computing))} are Python of ddp_patch's"
    )
    lines = [
        f"{_ms(pace.total)}, the mean of the middle half of {pace.steps} steps:",
        f"{_ms(pace.loading)} loading, {_ms(pace.waiting)} waiting for other ranks, {_ms(pace.effects)} for effects,",
        f"{_ms(pace.optimizer)} in the optimizer, {_ms(pace.computing)} for forward, backward and the script{overhead}",
    ]
    faster = _faster(ledger, size, device)
    if faster is not None:
        alone = _ms(faster * pace.total)
        lines.append(f"one process on the cores of one rank would take about {alone}: {faster:.1f} times as long")
    return lines


def _faster(ledger: Ledger, size: int, device: str) -> float | None:
    """How many times as fast as one process the ranks are, by their clock; None where that cannot be said."""
    pace = ledger.pace.summary()
    if pace is None or pace.python is None or not ledger.work or device != _HOST:  # which waits for no accelerator
        return None
    is_dealt = all(_DEALT in how and _NO_WORKERS in name for name, how in ledger.loaders.items())
    computing = max(pace.computing - pace.python, 0.0) * _times(min(ledger.work.values()), size)
    return (computing + pace.optimizer + pace.effects + pace.loading * (size if is_dealt else 1)) / pace.total


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _rows(ledger: Ledger) -> list[str]:
    return [f"{rows} rows: {calls} calls" for rows, calls in sorted(ledger.rows.items(), reverse=True)]


def _gathers(ledger: Ledger) -> list[str]:
    ordered = sorted(ledger.gathers.items(), key=lambda item: (-item[1].bytes, item[0]))
    return [
        f"{function} at {line}: {entry.calls} calls, {entry.collectives} gathers, {entry.bytes:,} bytes per rank"
        for (function, line), entry in ordered
    ]


def _collectives(ledger: Ledger) -> list[str]:
    several = ", counting those of several optimizers as one" if ledger.steps != ledger.iterations else ""
    per_step = f" per optimizer step ({ledger.iterations} steps{several})" if ledger.iterations else ""
    iterations = max(1, ledger.iterations)
    return [
        f"{kind}: {count / iterations:.2f}{per_step}, {ledger.collective_bytes[kind] / iterations:,.0f} bytes"
        for kind, count in sorted(ledger.collectives.items())
    ]


def _gradients(ledger: Ledger) -> list[str]:
    lines = []
    if ledger.deferred:
        lines.append(f"{ledger.deferred} backwards went without an all-reduce, as another one was to follow")
    if ledger.late:
        lines.append(f"{ledger.late} times gradients were averaged after their backward, when they were looked at")
    if ledger.compared:
        lines.append(f"{ledger.compared} times parameters and gradients were compared: they were equal on all ranks")
    if ledger.overflows:
        lines.append(f"{ledger.overflows} steps were left out, since gradients overflowed in half precision")
    return lines
