"""Which runs it takes to tell: alone and on ranks; and where they differ, once more alone, held still, in float64."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import torch

from .compare import compare, varies
from .difference import Difference, reached, without
from .observed import Observed, observe
from .pitfalls import pitfalls
from .printed import Varying
from .runs import FinishedRun, Spec
from .tensors import noise
from .tolerance import Tolerance
from .verdict import Verdict, could_not_tell, of_its_own

_NO_GPU = (
    "No CUDA GPUs",
    "not compiled with CUDA",
    "NVIDIA driver",
    "No HIP GPUs",
    "assert torch.cuda.is_available()",
)
_GPU = re.compile(
    r"\b(CUDA|GPUs?)\b.*\b(required|needed|available|found|necessary)\b|\b(no|needs?|requires?)\b.*\b(CUDA|GPUs?)\b",
    re.I,
)
Perform = Callable[[Spec], FinishedRun]


class Inquiry:
    """Asks one script, on as many ranks as are wanted. What was run once is not run again."""

    def __init__(self, spec: Spec, perform: Perform, original: Path | None = None) -> None:
        """Prepare.

        Args:
            spec: of the script under ddp_patch.
            perform: makes a run.
            original: another script to run alone.
        """
        self._spec = spec
        self._original = original
        self._perform = perform
        self._seen: dict[Spec, Observed] = {}
        self._again: Observed | None = None
        self._varying = Varying()

    def ask(self, nproc: int) -> Verdict:
        """Compare N ranks with one process."""
        self._runs: list[tuple[str, float, str]] = []
        spec = dataclasses.replace(self._spec, nproc=nproc)
        verdict = self._verdict(spec)
        verdict.runs = self._runs
        return verdict

    def _verdict(self, spec: Spec) -> Verdict:
        title = f"{spec.nproc} ranks"
        alone = self._run(self._alone(spec))
        if alone.failed or alone.is_empty:
            return Verdict("could not tell", title, failure(alone), alone=alone)
        tolerance = Tolerance("float64" if spec.float64 else alone.dtype)
        ranks = self._run(spec)
        verdict = Verdict("same", title, alone=alone, ranks=ranks, tolerance=tolerance.described(alone.age))
        verdict.notes = notes(alone, ranks, tolerance)
        verdict.differences = compare(alone, ranks, tolerance)
        if not verdict.differences:
            verdict.why = "every number is the same"
            return verdict
        again = self._twice(self._alone(spec))
        if again.failed:
            return could_not_tell(verdict, f"alone once more: {failure(again)}")
        excused = self._excuse(verdict, alone, again, ranks, tolerance)
        if not verdict.differences:
            return of_its_own(verdict, excused)
        if ranks.failed:
            verdict.word, verdict.why = "differs", f"on {title}: {failure(ranks)}"
        if ranks.is_late:
            verdict.why += f"; alone it took {alone.seconds:.0f} s"
            self._of_late_ranks(verdict, spec, excused, tolerance)
        elif not ranks.failed:
            self._narrowed(verdict, spec, excused, tolerance)
        if verdict.word == "differs" and verdict.ranks is not None:
            verdict.causes = pitfalls(spec.script, verdict.ranks, verdict.differences)
        return verdict

    def _excuse(
        self, verdict: Verdict, alone: Observed, again: Observed, ranks: Observed, tolerance: Tolerance
    ) -> list[Difference]:
        """Take out what differs between two runs alone as well."""
        self._varying = varies(alone, again, tolerance)
        itself = compare(alone, again, tolerance, self._varying)
        verdict.varies = [*self._varying.named(), *sorted({found.key for found in itself})]
        verdict.differences, excused = without(compare(alone, ranks, tolerance, self._varying), itself)
        return excused

    def _of_late_ranks(self, verdict: Verdict, spec: Spec, excused: list[Difference], tolerance: Tolerance) -> None:
        """Judge by the numbers that they came to: nothing else tells slow ranks from stuck ones."""
        why, verdict.differences = verdict.why, reached(verdict.differences)
        if verdict.differences:
            self._narrowed(verdict, spec, excused, tolerance)
        if not verdict.differences:
            could_not_tell(verdict, why)

    def _narrowed(self, verdict: Verdict, spec: Spec, excused: list[Difference], tolerance: Tolerance) -> Verdict:
        """Find out whether a difference is of draws, or of rounding."""
        base, title = spec, verdict.title
        still = dataclasses.replace(spec, still=True)
        quiet = self._run(self._alone(still))
        if quiet.is_late:
            return could_not_tell(verdict, f"with random draws held still, alone: {failure(quiet)}")
        verdict.still = sorted({_described(note) for note in quiet.notes.get("still", [])})
        if verdict.still and not quiet.failed:
            ranks, found = self._compared(still, quiet)
            if ranks.is_late and not found:
                return could_not_tell(verdict, f"with random draws held still, on {title}: {failure(ranks)}")
            if not found:
                verdict.before, verdict.differences = verdict.differences, []
                verdict.word, verdict.why = "same up to draws", "with random draws held still, every number is the same"
                return verdict
            base = still
            verdict.alone, verdict.ranks, verdict.differences = quiet, ranks, found
        if excused and any(found.what in ("loss", "gradient", "weights") for found in excused):
            return of_its_own(verdict, excused)
        verdict.word = "differs"
        verdict.why = f"on {title} its numbers are others" + (" even with draws held still" if base.still else "")
        if base.float64 or tolerance.dtype == "float64":
            verdict.float64 = "the script computes in float64: this is no rounding"
            return verdict
        return self._in_float64(verdict, dataclasses.replace(base, float64=True))

    def _in_float64(self, verdict: Verdict, spec: Spec) -> Verdict:
        alone = self._run(self._alone(spec))
        if alone.is_late:
            return could_not_tell(verdict, f"in float64, alone: {failure(alone)}")
        if alone.failed:
            verdict.float64 = "the script does not run in float64, so it cannot be told whether this is rounding"
            return verdict
        ranks, found = self._compared(spec, alone)
        if ranks.is_late and not found:
            return could_not_tell(verdict, f"in float64, on {verdict.title}: {failure(ranks)}")
        if found:
            verdict.float64 = f"it is there in float64 as well, so it is no rounding: {found[0].said}"
        else:
            suffix = " and random draws held still" if spec.still else ""
            verdict.word = "same up to rounding"
            verdict.why = (
                f"in float64{suffix}, every number is the same: the difference is rounding that training amplifies"
            )
            verdict.float64 = "it is gone in float64"
            verdict.before, verdict.differences = verdict.differences, []
        return verdict

    def _compared(self, spec: Spec, alone: Observed) -> tuple[Observed, list[Difference]]:
        """Compare in another way of running; of ranks that are late, what they came to."""
        tolerance = Tolerance("float64" if spec.float64 else alone.dtype)
        ranks = self._run(spec)
        found = compare(alone, ranks, tolerance, self._varying)
        return ranks, reached(found) if ranks.is_late else found

    def _run(self, spec: Spec) -> Observed:
        if spec not in self._seen:
            self._seen[spec] = observe(self._perform(spec))
            seen = self._seen[spec]
            self._runs.append((spec.name, seen.seconds, seen.how or "failed"))
        return self._seen[spec]

    def _alone(self, spec: Spec) -> Spec:
        original = {} if self._original is None else {"script": self._original, "module": ""}
        return dataclasses.replace(spec, launcher="plain", nproc=1, **original)  # type: ignore[arg-type]

    def _twice(self, spec: Spec) -> Observed:
        if self._again is None:
            self._again = observe(self._perform(spec))
            self._runs.append((f"{spec.name}, again", self._again.seconds, self._again.how or "failed"))
        return self._again


def _described(note: dict[str, str]) -> str:
    return f"{note['what']} ({note['line']})" if note["line"] else note["what"]


def failure(seen: Observed) -> str:
    """Say why a run has nothing to compare."""
    said = seen.stderr.strip()
    if seen.is_late:
        return f"it was not done after {seen.seconds:.0f} s and was ended. Write --steps 50, or a longer --timeout"
    if seen.error.startswith("EOFError"):
        return "it reads from standard input, which nobody answers here. Give it what it asks for as arguments"
    needs_gpu = any(word in said for word in _NO_GPU) or _GPU.search(seen.error)
    if seen.failed and needs_gpu and not torch.accelerator.is_available():
        return "it needs a GPU, and there is none here"
    if seen.failed and seen.error:
        return seen.error
    if seen.failed:
        return f"it ended with code {seen.code} before it could say why"
    if seen.gave_up:
        last = f": {said.splitlines()[-1]}" if said else ""
        return f"it ended with exit code {seen.exit_code} before it trained or wrote anything{last}"
    return "it printed nothing, trained nothing and wrote nothing, so there is nothing to compare"


def notes(alone: Observed, ranks: Observed, tolerance: Tolerance) -> list[str]:
    """Say what was seen beside the numbers."""
    said = [
        f"{name} gets no gradient but rounding (below {tolerance.noise:.1e} of all): its values are not compared"
        for name in noise(alone, tolerance)
    ]
    for note in alone.notes.get("outside", []):
        said.append(f"{note['line']} writes {note['path']}, outside of its folder: not kept apart, not compared")
    if alone.left_out | ranks.left_out:
        said.append(f"left out, not compared: {', '.join(sorted(alone.left_out | ranks.left_out))}")
    if ranks.how == "enough" or alone.how == "enough":
        said.append(f"ended after {alone.step_count} optimizer steps, as asked")
    return said
