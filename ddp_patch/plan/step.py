"""What a step is, by options and a profile: its work, and the batches that its rows are in."""

from __future__ import annotations

from . import units
from .answers import Answers
from .job import Run, StepWork
from .problems import PlanError
from .profile import work as measured


def work_of(answers: Answers, step: float | None, rows: float, runs: tuple[Run, ...]) -> StepWork:
    """Give what a step computes.

    Args:
        answers: of options and the profile.
        step: seconds, if they were said.
        rows: of the step.
        runs: of the profile.

    Raises:
        PlanError: for what cannot be.
    """
    fixed, share = answers.number("--fixed", units.time, or_zero=True), answers.number("--backward", units.count)
    if share is not None and share > 1:
        raise PlanError(f"--backward is {share:g}, and is a share of the step: at most 1. Write --backward 0.67")
    if step is None:
        found = measured(runs)
        if fixed is not None:
            found = StepWork(
                max(found.seconds(rows) - fixed, 0.0) / rows, fixed, found.backward, min(found.idle, fixed)
            )
        if share is None and not any("backward_seconds" in run.parts for run in runs):
            answers.or_else(None, 0.0, "a backward of 2/3 of the step")
        return found if share is None else StepWork(found.per_row, found.fixed, share)
    fixed = answers.or_else(fixed, 0.0, "nothing in a step that does not shrink with its rows (--fixed)")
    if fixed >= step:
        raise PlanError(f"--fixed is {fixed:g} and --step {step:g} seconds: it is a part of it. Write a smaller one")
    share = answers.or_else(share, StepWork(0.0).backward, "a backward of 2/3 of the step")
    return StepWork((step - fixed) / rows, fixed, share)


def batches_of(answers: Answers, rows: float, runs: tuple[Run, ...]) -> int:
    """Give how many batches a step has, each with a backward of its own.

    Args:
        answers: of options and the profile.
        rows: of the step.
        runs: of the profile.

    Raises:
        PlanError: for what is no number of batches.
    """
    batches = answers.number("--accumulate", units.count)
    if batches is None:
        return runs[0].batches if runs else 1
    if batches != int(batches):
        raise PlanError(f"--accumulate is {batches:g}, and has to be a whole number. Write --accumulate {int(batches)}")
    if batches > rows:
        raise PlanError(
            f"--accumulate is {batches:g}, and {rows:g} rows are no {batches:g} batches. Write --batch with the rows "
            "of all of them"
        )
    return int(batches)
