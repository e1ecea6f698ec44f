"""Starts the runs of verify by forking a process that has torch imported already: a second instead of ten.

What runs in them is ``ddp_patch.verify.recorded`` itself; the launchers are not, which other tests start for real.
Reads one JSON request per line and answers with one JSON line. A store lives in a process of its own, as torchrun's does.
"""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")


class Warm:
    """Takes the place of ``ddp_patch.verify.process.run``."""

    def __init__(self):
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_PATCH_", "ACCEL"))}
        environ.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )
        assert self._server.stdout.readline() == "ready\n"

    def __call__(self, command, folder, environ, logs, timeout):
        from ddp_patch.verify.process import ProcessResult

        nproc = 1
        for index, word in enumerate(command):
            if "from ddp_patch.job.agent" in word or word == "--num_processes":
                nproc = int(command[index + 1])
            elif word.startswith("--nproc-per-node="):
                nproc = int(word.partition("=")[2])
        at = next(index for index, word in enumerate(command) if "from ddp_patch.verify.recorded" in word)
        if "accelerate.commands.launch" in command:
            environ = {**environ, "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
        request = {
            "nproc": nproc,
            "argv": command[at + 1 :],
            "folder": str(folder),
            "environ": environ,
            "logs": str(logs),
        }
        begin = time.monotonic()
        self._server.stdin.write(json.dumps({**request, "timeout": timeout}) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return ProcessResult(answer["code"], time.monotonic() - begin, answer["late"])

    def close(self):
        self._server.stdin.close()
        self._server.wait(timeout=60)


def warm_up():
    import accelerate  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed  # noqa: F401

    import ddp_patch.patches
    import ddp_patch.verify.inside.recorder  # noqa: F401

    gc.collect()
    gc.freeze()


def start_store():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        from datetime import timedelta

        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=300))
        os.write(writing, str(store.port).encode())
        os.close(writing)
        signal.pause()
    os.close(writing)
    port = os.read(reading, 16).decode()
    os.close(reading)
    return pid, port


def run_rank(request, rank, port):
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(f"{request['logs']}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, buffering=1)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    if request["nproc"] > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request["nproc"]),
            LOCAL_WORLD_SIZE=str(request["nproc"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT="0",
        )
    sys.path.pop(0)  # of this file
    from ddp_patch.verify import recorded

    try:
        recorded.main(request["argv"])
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def serve(request):
    store, port = start_store() if request["nproc"] > 1 else (None, "")
    pids = {}
    for rank in range(request["nproc"]):
        pid = os.fork()
        if pid == 0:
            code = run_rank(request, rank, port)
            gc.unfreeze()  # what is not taken apart Triton calls a leak (torch 2.15, on CUDA)
            raise SystemExit(code)
        pids[pid] = rank
    codes, late, failed_at, end = {}, False, None, time.monotonic() + request["timeout"]
    while len(codes) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            codes[pids[pid]] = os.waitstatus_to_exitcode(status)
            if codes[pids[pid]] and failed_at is None:
                failed_at = time.monotonic()
        elif pid == 0:
            late = late or time.monotonic() > end
            if late or (failed_at is not None and time.monotonic() > failed_at + 10):
                for other, rank in pids.items():
                    if rank not in codes:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(other, signal.SIGKILL)
            time.sleep(0.005)
    if store is not None:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    return {"code": next((code for code in codes.values() if code), 0), "late": late}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warm_up()
    answers.write("ready\n")
    for line in sys.stdin:
        answers.write(json.dumps(serve(json.loads(line))) + "\n")
