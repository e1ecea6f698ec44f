"""A migrated script against its original: the new one on ranks that see their own rows, the old one on one process.

Compared are the mean of the ranks' losses, the gradients that optimizers get, and what rank 0 prints and writes. So
that they can be equal at all, the old script's shuffled loaders give the very batches that the ranks had together, and
draws for rows are held still in both. That the order is a sound one is looked at apart.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from .arguments import VerifyRequest
from .causes import causes
from .compare import compare, varies
from .difference import Difference, without
from .inquiry import failure, notes
from .observed import Observed, observe
from .order import Order, batches_of, judged
from .ranks import apart
from .runs import FinishedRun, Launcher, Spec
from .tolerance import Tolerance
from .verdict import Verdict, could_not_tell, of_its_own

_FAR = 1e3  # times the allowance


class Against:
    """Asks about one pair of scripts."""

    def __init__(self, request: VerifyRequest, launcher: Launcher, run: Callable[[Spec], FinishedRun]) -> None:
        """Prepare.

        Args:
            request: what is asked.
            launcher: of the new script.
            run: makes a run.
        """
        assert request.against is not None
        self._old: Path = request.against
        self._new = Spec(
            script=request.script,
            module=request.module,
            args=request.args,
            launcher=launcher,
            steps=request.steps,
            float64=request.float64,
            still=True,
            is_local=True,
        )
        self._run = run

    def ask(self, nproc: int) -> Verdict:
        """Compare N ranks of the new script with the old one."""
        self._runs: list[tuple[str, float, str]] = []
        title = f"{nproc} ranks against {self._old.name}"
        spec = dataclasses.replace(self._new, nproc=nproc)
        verdict = self._verdict(spec, title)
        if verdict.word == "differs" and not spec.float64 and verdict.ranks is not None and not verdict.ranks.failed:
            self._in_float64(verdict, dataclasses.replace(spec, float64=True))
        verdict.runs = self._runs
        return verdict

    def _verdict(self, spec: Spec, title: str) -> Verdict:
        ranks = self._ranks(spec)
        order = batches_of(ranks)
        old = self._alone(spec, order)
        if old.failed or old.is_empty:
            return Verdict("could not tell", title, failure(old), alone=old)
        # torchrun has an exit code of its own.
        merged = dataclasses.replace(_merged(ranks), code=old.code)
        tolerance = Tolerance("float64" if spec.float64 else old.dtype)
        verdict = Verdict("same", title, alone=old, ranks=merged, tolerance=tolerance.described(old.age))
        verdict.still = sorted({note["what"] for note in old.notes.get("still", [])})
        if any(rank.failed for rank in ranks):
            failed = next((rank for rank in ranks if rank.is_late), None) or next(rank for rank in ranks if rank.failed)
            verdict.ranks, verdict.word, verdict.why = failed, "differs", f"on {title}: {failure(failed)}"
            verdict.differences = compare(old, merged, tolerance)
            return could_not_tell(verdict, verdict.why) if failed.is_late else verdict
        judgement = list(judged(old, ranks, order))
        evident = [*judgement, *apart(ranks, tolerance)]
        verdict.notes = [*notes(old, merged, tolerance), *_expected(order, ranks, is_sound=not judgement)]
        found = compare(old, merged, tolerance)
        if found:
            again = self._alone(spec, order)
            if again.failed:
                return could_not_tell(verdict, f"{self._old.name} once more: {failure(again)}")
            by_itself = varies(old, again, tolerance)
            itself = compare(old, again, tolerance, by_itself)
            verdict.varies = [*by_itself.named(), *sorted({other.key for other in itself})]
            found, excused = without(compare(old, merged, tolerance, by_itself), itself)
            if not evident and (not found or any(one.what in ("loss", "gradient", "weights") for one in excused)):
                verdict.differences = found
                return of_its_own(verdict, excused)
        found = [*evident, *found]
        verdict.differences = sorted((_with_line(one, ranks) for one in found), key=lambda one: one.order)
        if not verdict.differences:
            verdict.why = "every number is the same, on the same batches"
            return verdict
        verdict.word, verdict.why = "differs", f"on {title} its numbers are others"
        verdict.causes = causes(old, ranks, verdict.differences, spec.script)
        return verdict

    def _in_float64(self, verdict: Verdict, spec: Spec) -> None:
        if any(found.what in ("rows", "end", "count", "rate") for found in verdict.differences):
            verdict.float64 = "not tried: what differs is no rounding"
            return
        runs = self._runs
        in_float64 = self._verdict(spec, verdict.title)
        self._runs = runs
        late = next((seen for seen in (in_float64.alone, in_float64.ranks) if seen is not None and seen.is_late), None)
        if late is not None:
            could_not_tell(verdict, f"in float64: {failure(late)}")
        elif in_float64.word == "same" and _is_a_decision(verdict.differences):
            verdict.float64 = (
                "it is gone in float64, but only files differ, and by far more than rounding: other values were written"
            )
        elif in_float64.word == "same":
            verdict.word, verdict.why = "same up to rounding", "in float64 every number is the same: this is rounding"
            verdict.float64 = "it is gone in float64"
            verdict.before, verdict.differences, verdict.causes = verdict.differences, [], []
        elif in_float64.word == "differs" and in_float64.first is not None and not _failed(in_float64):
            verdict.float64 = f"it is there in float64 as well, so it is no rounding: {in_float64.first.said}"
        else:
            verdict.float64 = "the scripts do not run in float64, so it cannot be told whether this is rounding"

    def _ranks(self, spec: Spec) -> list[Observed]:
        done = self._run(spec)
        ranks = [observe(done, rank) for rank in range(spec.nproc)]
        self._runs.append((f"{spec.script.name}, {spec.name}", done.ended.seconds, ranks[0].how or "failed"))
        return ranks

    def _alone(self, spec: Spec, order: Order) -> Observed:
        alone = dataclasses.replace(
            spec, script=self._old, module="", launcher="plain", nproc=1, batches=json.dumps(order.for_loaders())
        )
        seen = observe(self._run(alone))
        self._runs.append((f"{self._old.name}, {alone.name}", seen.seconds, seen.how or "failed"))
        return seen


def _failed(verdict: Verdict) -> bool:
    return verdict.ranks is None or verdict.ranks.failed


def _is_a_decision(found: list[Difference]) -> bool:
    """Tell another choice of what to write from rounding, which losses, weights or lines would show as well."""
    return all(one.what == "file" for one in found) and max(one.times for one in found) > _FAR


def _merged(ranks: list[Observed]) -> Observed:
    """What the ranks did together, as one process would have: averaged losses; the rest is rank 0's."""
    first = ranks[0]
    counts = {len(rank.losses) for rank in ranks}
    if len(counts) > 1:
        return first
    losses = [
        dataclasses.replace(one, value=fmean(rank.losses[place].value for rank in ranks))
        for place, one in enumerate(first.losses)
    ]
    return dataclasses.replace(first, losses=losses)


def _with_line(found: Difference, ranks: list[Observed]) -> Difference:
    """Name the line that wrote a file, if it was seen."""
    if found.what != "file" or found.line:
        return found
    for note in ranks[0].notes.get("write", []):
        if note["path"] and note["path"] in found.said:
            return dataclasses.replace(found, line=note["line"])
    return found


def _expected(order: Order, ranks: list[Observed], is_sound: bool) -> list[str]:
    """Say what is compared how, and what cannot be the same."""
    said = [
        "the ranks' losses are averaged; gradients, lines and files are rank 0's",
        "the old script's shuffled loaders give the batches that the ranks had together",
    ]
    if order.padded and is_sound:
        said.append(
            f"{order.padded} rows were loaded twice, to give every rank as many: the old script had them twice too"
        )
    said.extend(_of_every_rank(ranks))
    return said


def _of_every_rank(ranks: list[Observed]) -> list[str]:
    templates = {said.template for said in ranks[0].out}
    lines: dict[str, Any] = {}
    for rank in ranks[1:]:
        lines.update({said.line: None for said in rank.out if said.template in templates})
    return [f"{line} prints on every rank; rank 0's is compared" for line in lines]
