"""The ranks of one tool, started by ``matrix.py``.

Reads a case and a port per line of standard input, and answers with one JSON line. The tool is imported once; every
rank of every case is a fork of its own, so that a crash or a hang costs nobody else.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from typing import Any

import numpy as np
import torch
from matrix_cases import CASES, Case
from matrix_tools import TOOLS, Tool, measure

OTHERS = 10.0  # seconds for the other ranks once one has finished its epoch
FAILED = 3.0  # the same, once one has failed


def run_rank(answer: int, tool: Tool, case: Case, rows: int) -> None:
    """Measure as one rank, in a fork of its own, and wait to be killed: a real script has more to do."""
    # What a fresh process has, rather than what its parent had.
    torch.seed()
    np.random.seed()
    random.seed()
    try:
        result = measure(tool, case, rows)
    except BaseException as error:  # noqa: BLE001 — whatever it is, it is what the tool made of the script
        traceback.print_exc()
        result = {"error": type(error).__name__, "says": str(error)}
    os.write(answer, json.dumps(result).encode() + b"\n")
    signal.pause()


def fork_ranks(tool: Tool, case: Case, rows: int, ranks: int, port: str) -> dict[int, tuple[int, int]]:
    """Start the ranks; gives their process ids, and the pipe and the rank of each."""
    given = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    given |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "matrix", "GROUP_RANK": "0"}
    started = {}
    for rank in range(ranks):
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.environ.update(given, RANK=str(rank), LOCAL_RANK=str(rank))
            try:
                run_rank(writing, tool, case, rows)
            finally:
                os._exit(1)
        os.close(writing)
        started[process] = (reading, rank)
    return started


def outcomes(started: dict[int, tuple[int, int]], within: float) -> list[dict[str, Any]]:
    """Wait for what the ranks have to say, and end them; "hang" for one that said nothing in time."""
    end = time.monotonic() + within
    answers: dict[int, dict[str, Any]] = {}
    said = dict.fromkeys(started, b"")
    while len(answers) < len(started) and time.monotonic() < end:
        waiting = {reading: process for process, (reading, rank) in started.items() if rank not in answers}
        for reading in select.select(list(waiting), [], [], end - time.monotonic())[0]:
            process = waiting[reading]
            part = os.read(reading, 1 << 16)
            said[process] += part
            if part and not said[process].endswith(b"\n"):
                continue
            answer = json.loads(said[process]) if part else {"error": "ended", "says": "the process ended"}
            answers[started[process][1]] = answer
            end = min(end, time.monotonic() + (FAILED if "error" in answer else OTHERS))
    for process, (reading, _rank) in started.items():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reading)
    return [answers.get(rank, {"error": "hang", "says": "no answer in time"}) for rank in range(len(started))]


def serve(name: str, rows: int, ranks: int, within: float) -> None:
    """Measure every case that a line of standard input names, until the input ends."""
    # Whatever a library prints goes to standard error, so that only answers are read as answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    importlib.import_module(TOOLS[name].module)
    gc.freeze()
    for line in sys.stdin:
        number, port = line.split()
        started = fork_ranks(TOOLS[name], CASES[int(number)], rows, ranks, port)
        answers.write(json.dumps(outcomes(started, within)) + "\n")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
