"""What ddp_patch did to this run, as text for the script's author."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..ledger import FEWER_ROWS, Gathers, Ledger
from ..pace import StepTime


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
                "On batches: the forward runs as it is written, and each function in it that keeps rows apart on rows",
                [f"{name}: {why}" for name, why in ledger.on_batches.items()],
            ),
            _block(
                "On the whole batch, on every rank",
                [f"{name}: {why}" for name, why in ledger.computed_whole().items()],
            ),
            _block("Loaders", [f"{name}: {how}" for name, how in ledger.loaders.items()]),
            _block("Work of a forward that is split over the ranks", _work(ledger, self.world_size)),
            _block("Time of an optimizer step on this rank", _time(ledger, self.world_size, self.device)),
            _block("Rows of this rank per model call", _rows(ledger)),
            _block("Gathered whole, slower than rows", _gathers(ledger)),
            _block("Functions that you registered", _registered(ledger)),
            _block("Collectives", _collectives(ledger)),
            _block("Gradients", _gradients(ledger)),
            _block("Chosen by measurement", [f"{name}: {text}" for name, text in ledger.choices.items()]),
            _block("Notes", list(ledger.notes)),
        ]
        head = f"ddp_patch report: {self.world_size} ranks, this one on {self.device}\n"
        return head + _INSIDE.sub("", "".join(blocks))

    @property
    def patched(self) -> list[str]:
        """What was patched: a name, and what it does now."""
        return list(self.ledger.patched)


def _nothing(ledger: Ledger) -> str:
    if ledger.batches and ledger.small_batches == ledger.batches:
        return f"none: every batch had {FEWER_ROWS}, and every rank computed all of it; choose a larger batch_size"
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
_ALIKE = 0.05  # of a step's time, by which the ranks and one process may differ and are called as fast
_HOST = "the CPU"
_INSIDE = re.compile(r"[\w.]+\.<locals>\.")  # of a function that stands in another one: what it stands in
_DEALT, _NO_WORKERS = "each rank loads its own", "num_workers=0"


def _summary(ledger: Ledger, size: int, device: str) -> list[str]:
    """What is split, and what to change, most first."""
    if not ledger.replicas:
        return [f"no model is split: {_nothing(ledger).partition(': ')[2]}"]
    iterations = max(1, ledger.iterations)
    often = [
        (entry, place)
        for place, entry in ledger.gathers.items()
        if entry.collectives - entry.watched > _RARELY * iterations and ledger.iterations
    ]
    lines = _by_the_clock(ledger, size, device)
    aside = ", not counting the gathers below" if often else ""
    lines += [f"{name}: its forward {_at_most(part, size)}{aside}" for name, part in ledger.work.items()]
    advice = [f"{name} is computed whole by every rank: {why}" for name, why in ledger.computed_whole().items()]
    if not ledger.work or min(ledger.work.values()) < _NEARLY_ALL:
        advice += [f"{name} is not split as a whole: {why}" for name, why in ledger.on_batches.items()]
    for entry, (function, line) in sorted(often, key=lambda item: -item[0].bytes):
        times = (entry.collectives - entry.watched) / max(1, iterations - bool(entry.watched))
        sent = entry.bytes / max(1, entry.collectives)
        advice.append(f"{function} at {line} gathers the batch {times:.1f} times a step, {sent:,.0f} bytes each")
    if not advice and ledger.on_batches:
        names = ", ".join(ledger.on_batches)
        return [*lines, f"nothing that costs much: of {names} only small parts run on batches (see below)"]
    if not advice:
        return [*lines, "nothing to change: no module is computed whole, no step gathers a batch"]
    left = [f"and {len(advice) - _MOST} more, below"] if len(advice) > _MOST else []
    return [*lines, *(f"to change: {text}" for text in advice[:_MOST]), *left]


def _by_the_clock(ledger: Ledger, size: int, device: str) -> list[str]:
    pace, faster = ledger.pace.summary(), _faster(ledger, size, device)
    if pace is None or faster is None:
        return []
    if abs(faster - 1) < _ALIKE:
        return ["by the clock about as fast as one process"]
    times = f"{_ms(pace.total)}, one process about {_ms(faster * pace.total)}"
    if faster > 1:
        return [f"by the clock about {faster:.1f} times as fast as one process: a step takes {times}"]
    return [
        f"by the clock slower than one process: a step takes about {1 / faster:.1f} times as long ({times})",
        "what ranks cost beside the work is more than they save; larger batches make it a smaller part of a step",
    ]


def _at_most(part: float, size: int) -> str:
    times = f"{_times(part, size):.2f}"
    return "no faster than in one process" if times == "1.00" else f"at most {times} times as fast as in one process"


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
        else f", of which about {_ms(min(pace.python, pace.computing))} are ddp_patch's own Python"
    )
    lines = [
        f"{_ms(pace.total)}, the mean of the middle half of {_steps(ledger, pace)}:",
        f"{_ms(pace.loading)} loading, {_ms(pace.waiting)} waiting for other ranks, {_ms(pace.effects)} for files, "
        "folders and commands,",
        f"{_ms(pace.optimizer)} in the optimizer, {_ms(pace.computing)} for forward, backward and the script{overhead}",
    ]
    faster = _faster(ledger, size, device)
    if faster is not None:
        alone = _ms(faster * pace.total)
        lines.append(f"one process, with as many cores as a rank has, would take about {alone}")
    return lines


def _steps(ledger: Ledger, pace: StepTime) -> str:
    """Say which steps were clocked, of how many."""
    several = " of optimizers" if ledger.steps != ledger.iterations else ""
    if pace.made - pace.steps > pace.first + pace.profiled:
        return f"the last {pace.steps} of {pace.made} steps{several}"
    profiled = f", and the {pace.profiled} in which Python's profiler ran" if pace.profiled else ""
    return f"{pace.steps} steps{several} (of {pace.made}, the first {pace.first} are left out{profiled})"


def _faster(ledger: Ledger, size: int, device: str) -> float | None:
    """How many times as fast as one process the ranks are, by their clock; None where that cannot be said."""
    pace = ledger.pace.summary()
    if pace is None or pace.python is None or not ledger.work or device != _HOST:  # which waits for no accelerator
        return None
    is_dealt = all(_DEALT in how and _NO_WORKERS in name for name, how in ledger.loaders.items())
    computing = max(pace.computing - pace.python, 0.0) * _times(min(ledger.work.values()), size)
    alone = computing + pace.optimizer + pace.effects + pace.loading * (size if is_dealt else 1)
    return alone / pace.total if alone else None  # all that was seen is the ranks' own cost


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _rows(ledger: Ledger) -> list[str]:
    return [f"{rows} rows: {_number(calls, 'call')}" for rows, calls in sorted(ledger.rows.items(), reverse=True)]


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _gathers(ledger: Ledger) -> list[str]:
    ordered = sorted(ledger.gathers.items(), key=lambda item: (-item[1].bytes, item[0]))
    return [f"{function} at {line}: {_gathered(entry)}" for (function, line), entry in ordered]


def _gathered(entry: Gathers) -> str:
    if not entry.collectives:
        return f"{_number(entry.calls, 'call')}, no gather: all that it got was whole already"
    calls = f"{_number(entry.calls, 'call')}, " if entry.calls else ""
    watched = f", {entry.watched} of them in a first call" if entry.watched else ""
    return f"{calls}{_number(entry.collectives, 'gather')}, {entry.bytes:,} bytes per rank{watched}"


def _registered(ledger: Ledger) -> list[str]:
    """Where each was computed: what says that it is split now."""
    lines = []
    for name, calls in ledger.registered.items():
        whole = (
            f"{_number(calls.whole, 'call')} on every rank, of whole batches or plain tensors" if calls.whole else ""
        )
        rows = f"{_number(calls.rows, 'call')} on this rank's rows" if calls.rows else ""
        lines += [f"{name}: {', '.join(filter(None, [rows, whole]))}"] if rows or whole else []
    return lines


def _collectives(ledger: Ledger) -> list[str]:
    several = ", counting those of several optimizers as one" if ledger.steps != ledger.iterations else ""
    per_step = f" per optimizer step ({ledger.iterations} steps{several})" if ledger.iterations else ""
    iterations = max(1, ledger.iterations)
    return [
        f"{kind}: {count / iterations:.2f}{per_step}, {_size(ledger.collective_bytes[kind], count)}"
        for kind, count in sorted(ledger.collectives.items())
    ]


def _size(total: int, count: int) -> str:
    return f"{total / count:,.0f} bytes each" if total else "of Python objects, whose bytes are not counted"


def _gradients(ledger: Ledger) -> list[str]:
    lines = []
    if ledger.deferred:
        lines.append(
            f"{ledger.deferred} backwards did not average gradients, as another one was to follow before the step"
        )
    if ledger.late:
        lines.append(f"{ledger.late} times gradients were averaged after their backward, when they were looked at")
    if ledger.compared:
        lines.append(f"{ledger.compared} times parameters and gradients were compared: they were equal on all ranks")
    if ledger.overflows:
        lines.append(f"{ledger.overflows} steps were left out, since gradients overflowed in half precision")
    return lines
