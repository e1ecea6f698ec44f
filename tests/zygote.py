"""Starts ranks by forking a process that has torch imported already, so that a case takes well under a second.

Reads one JSON request per line on standard input and answers with one JSON line. Every rank is a real process with
its own process group over gloo; the rendezvous store lives in a process of its own, as torchrun's agent does.
"""

import atexit
import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")


def warm_up():
    import accelerate  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed  # noqa: F401

    import ddp_patch.patches  # noqa: F401

    # What is shared with the parent stays shared: a collection would touch, and so copy, all of it.
    gc.collect()
    gc.freeze()


def hold_store(pipe):
    from datetime import timedelta

    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=300))
    os.write(pipe, str(store.port).encode())
    os.close(pipe)
    signal.pause()


def start_store():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            hold_store(writing)
        finally:
            os._exit(0)
    os.close(writing)
    port = os.read(reading, 16).decode()
    os.close(reading)
    return pid, port


def run_rank(request, rank, port):
    nproc = request["nproc"]
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(f"{request['logs']}/{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = open(0)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False, buffering=1)
    faulthandler.enable(2)  # an abort says where
    if "PATIENCE" in os.environ:  # and so does what hangs
        faulthandler.dump_traceback_later(request["timeout"] - 5, file=2)
    os.chdir(request["cwd"])
    if nproc > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(nproc),
            LOCAL_WORLD_SIZE=str(nproc),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT="0",
        )
    os.environ.update(request.get("env", {}))
    if "hosts" in request:
        from ddp_patch.job import hosts

        hosts.host = lambda: request["hosts"][rank]
    sys.path[0:0] = request.get("path", [])
    code = 0
    try:
        run = run_script if "script" in request else call_function
        run(request, rank) if not request.get("thread") else in_thread(run, request, rank)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    return code


def in_thread(run, *args):
    """Run beside the main thread, as a launcher may that keeps its processes."""
    raised = []

    def catch():
        try:
            run(*args)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=catch, name="Runner")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def run_script(request, rank):
    from ddp_patch.__main__ import main

    if request["nproc"] > 1:
        main([*request.get("options", []), request["script"], *request.get("args", [])])
        return
    # Alone, the script runs without anything of ours in the process's way.
    import builtins
    import types

    module = types.ModuleType("__main__")
    vars(module).update(__file__=request["script"], __builtins__=builtins)
    sys.argv = [request["script"], *request.get("args", [])]
    sys.modules["__main__"] = module
    with open(request["script"]) as source:
        exec(compile(source.read(), request["script"], "exec", dont_inherit=True), vars(module))


def call_function(request, rank):
    import importlib

    import ddp_patch

    module, name = request["function"].split(":")
    function = getattr(importlib.import_module(module), name)
    own = contextlib.nullcontext() if request.get("bare") else ddp_patch.enable(**request.get("enable", {}))
    with own:
        result = function(*request.get("args", []))
    with open(f"{request['logs']}/result.{rank}", "w") as stream:
        json.dump(result, stream)


def end(code, request):
    """End as the interpreter does for any program: threads, exit functions, streams; and, where asked, its modules.

    To take hundreds of modules apart that are shared with the parent costs three times what a case does.
    """
    if request.get("finalizes"):
        gc.unfreeze()  # what is not taken apart Triton calls a leak (torch 2.15, on CUDA)
        raise SystemExit(code)  # out through the bottom of this script
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):  # a script may have closed it
                stream.flush()
    finally:
        os._exit(code)


def start_ranks(request, port):
    pids = {}
    for rank in range(request["nproc"]):
        pid = os.fork()
        if pid == 0:
            end(run_rank(request, rank, port), request)
        pids[pid] = rank
    return pids


def serve_and_kill(request):
    """Kill a rank, or the launcher, a while after a file came to be; the ranks that are left end as under torchrun."""
    store, port = start_store()
    reading, writing = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        os.environ["TORCHELASTIC_RUN_ID"] = "killed"
        pids = start_ranks(request, port)
        os.write(writing, json.dumps(list(pids)).encode())
        os.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        os._exit(0)
    pids = json.loads(os.read(reading, 1000))
    os.close(reading)
    os.close(writing)
    end = time.monotonic() + request["timeout"]
    while not os.path.exists(request["kill"]["file"]) and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(request["kill"]["after"])
    who = request["kill"]["who"]
    with contextlib.suppress(ProcessLookupError):  # it ended by itself: the test looks at what it left
        os.kill(launcher if who == "launcher" else pids[who], signal.SIGKILL)
    end = time.monotonic() + request["timeout"]
    while any(is_running(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    left = [pid for pid in pids if is_running(pid)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in (store, launcher):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"codes": [0] * request["nproc"], "late": bool(left), "ended": []}


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes between open and read
        return False


def serve(request):
    if "kill" in request:
        return serve_and_kill(request)
    store, port = start_store() if request["nproc"] > 1 else (None, "")
    pids = start_ranks(request, port)
    codes, ended, late, failed_at = {}, [], False, None
    end = time.monotonic() + request["timeout"]
    while len(codes) < request["nproc"]:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            codes[pids[pid]] = os.waitstatus_to_exitcode(status)
            if codes[pids[pid]] != 0 and failed_at is None:
                failed_at = time.monotonic()
        elif pid == 0:
            # As torchrun does, a failing rank takes the others with it; the grace lets them fail by themselves first.
            late = late or time.monotonic() > end
            if late or (failed_at is not None and time.monotonic() > failed_at + request.get("grace", 30)):
                left = [other for other in pids if pids[other] not in codes]
                shows_stacks = late and not ended
                inside = [pid for other in left for pid in children(other)] if shows_stacks else []
                for other in (*left, *inside):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other, signal.SIGABRT if shows_stacks else signal.SIGKILL)
                ended = ended or [pids[other] for other in left]
                time.sleep(2 if shows_stacks else 0)
            time.sleep(0.002)
    if store is not None:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    return {"codes": [codes[rank] for rank in range(request["nproc"])], "late": late, "ended": ended}


def children(pid):
    """List the processes that one has started, as workers of a loader: a rank may be waiting for one."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as listed:
        return [int(each) for each in listed.read().split()]
    return []


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell has those that it starts in the background ignore it
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warm_up()
    answers.write("ready\n")
    for line in sys.stdin:
        answers.write(json.dumps(serve(json.loads(line))) + "\n")
