"""Training scripts composed at random see on several ranks what one process sees."""

import json
import os

import pytest
from conftest import THOROUGH
from parity.programs import compose, describe, perform, run_all

CHUNK = 10
FIRST = int(os.environ.get("PROGRAMS_FIRST", "0"))
COUNT = 200 if THOROUGH else 30


@pytest.mark.quick("20")
@pytest.mark.thorough
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_programs_see_what_one_process_sees(ranks, first):
    left = [compose(seed) for seed in range(first, min(first + CHUNK, FIRST + COUNT))]
    failures = []
    while left:
        outcome = ranks.call(run_all, 3, left)
        notes = [read(outcome.cwd / f"numbers.{rank}") for rank in range(3)]
        # The job ends at the first error, so that the program after the last one that all ranks noted had it.
        done = min(len(rank) for rank in notes)
        for program, *given in zip(left, *notes, strict=False):
            wrong = difference(alone(program), given)
            if wrong:
                failures.append(
                    f"{describe(program)}\n{wrong}" + ("\n" + outcome.said() if "error" in str(given) else "")
                )
        if done < len(left) and not any("error" in note for note in (rank[-1] for rank in notes if rank)):
            how = "hung" if outcome.late else "ended"
            failures.append(f"{describe(left[done])}\nthe ranks {how}\n{outcome.said()}")
            done += 1
        elif len({len(rank) for rank in notes}) > 1:
            failures.append(f"{describe(left[done])}\nan error on some ranks only\n{outcome.said()}")
            done += 1
        left = left[done:]
    assert not failures, "\n\n".join(failures)


def alone(program):
    try:
        return {"seed": program["seed"], "numbers": perform(program)}
    except Exception as error:
        return {"seed": program["seed"], "error": type(error).__name__}


def difference(wanted, given):
    """Say what differs between one process and the ranks, if anything."""
    for rank, found in enumerate(given):
        if "error" in wanted or "error" in found:
            if found.get("error") != wanted.get("error"):
                return f"rank {rank}: {found.get('error', 'no error')}, alone {wanted.get('error', 'no error')}"
        elif found["numbers"] != pytest.approx(wanted["numbers"], rel=1e-9, abs=1e-10, nan_ok=True):
            if len(found["numbers"]) != len(wanted["numbers"]):
                return f"rank {rank}: {len(found['numbers'])} numbers, alone {len(wanted['numbers'])}"
            pairs = enumerate(zip(found["numbers"], wanted["numbers"], strict=True))
            off = [(i, a, b) for i, (a, b) in pairs if a != pytest.approx(b, rel=1e-9, abs=1e-10, nan_ok=True)]
            return f"rank {rank}: {len(off)} of {len(wanted['numbers'])} numbers, first (place, rank, alone): {off[:3]}"
    return None


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
