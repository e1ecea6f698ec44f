"""Starts scripts on ranks as torchrun does, by forking a process that has torch imported already.

One JSON request per line on standard input, ``{"script", "nproc", "cwd", "env", "args", "through", "timeout"}``; one answer per
line: exit codes and what the ranks wrote. ``through``: "" for the script itself, "ddp_patch" for one process's view.
"""

import contextlib
import faulthandler
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback

os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="Agg", PYTHONHASHSEED="0")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def warm_up():
    import accelerate  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import sklearn.datasets
    import sklearn.metrics
    import torch
    import torch.distributed
    import torch.utils.tensorboard  # noqa: F401

    sklearn.datasets.load_digits()


def run(request, rank, port):
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(f"{request['logs']}/{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)
    faulthandler.enable(2)  # an abort says where
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if request["nproc"] > 1:
        values = (rank, rank, request["nproc"], "127.0.0.1", port)
        os.environ.update({name: str(value) for name, value in zip(NAMES, values, strict=True)})
    sys.argv = [request["script"], *request["args"]]
    sys.path[0] = os.path.dirname(request["script"])
    try:
        if request["through"]:
            import ddp_patch.__main__

            ddp_patch.__main__.main([request["script"], *request["args"]])
        else:
            runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(request):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(request["nproc"]):
        pid = os.fork()
        if pid == 0:
            raise SystemExit(run(request, rank, port))
        ranks[pid] = rank
    codes, failed, end = {}, None, time.monotonic() + request["timeout"]
    while len(codes) < len(ranks):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[ranks[pid]] = os.waitstatus_to_exitcode(status)
            failed = failed or (codes[ranks[pid]] and time.monotonic())
        else:
            if time.monotonic() > end or (failed and time.monotonic() > failed + 5):
                in_time = time.monotonic() < end + 3
                for other in ranks:
                    if ranks[other] not in codes:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(other, signal.SIGABRT if in_time else signal.SIGKILL)
            time.sleep(0.01)
    return {"codes": [codes[rank] for rank in sorted(codes)]}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warm_up()
    answers.write("ready\n")
    for line in sys.stdin:
        answers.write(json.dumps(serve(json.loads(line))) + "\n")
