"""How ranks come about: launchers that are joined, launches of our own, and clear words where neither works."""

import dataclasses
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import warnings
import zipapp
from pathlib import Path

import pytest
import torch
from conftest import PATIENCE, THOROUGH
from parity.test_scripts import alone, compare_text

from ddp_patch.errors import LaunchError
from ddp_patch.job import hosts, interfaces, launcher, program, reaching, relaunch, software
from ddp_patch.state import State
from ddp_patch.version import OLDEST_TORCH

SCRIPTS = Path(__file__).parent / "parity" / "scripts"
RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def run(*command, cwd=None, **env):
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("DDP_PATCH_", "PYTHONHASH"))}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**environ, "OMP_NUM_THREADS": "1", "DDP_PATCH_QUIET": "1", **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done


# --- decisions, without launching -------------------------------------------------------------------------------------


def test_nobody_started_ranks():
    assert launcher.detect({}) is None
    assert launcher.detect({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) is None  # a shell inside an allocation


def test_torchrun_variables_place_a_rank():
    placement = launcher.detect({**RANK, "LOCAL_WORLD_SIZE": "2"})
    assert (placement.rank, placement.world_size, placement.local_rank) == (1, 2, 1)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT is not"),
        ({**RANK, "RANK": "2"}, "contradict each other"),
        ({**RANK, "WORLD_SIZE": "two"}, "WORLD_SIZE='two' is not a number"),
        ({**RANK, "OMPI_COMM_WORLD_SIZE": "4"}, "WORLD_SIZE=2 but mpirun (Open MPI) says OMPI_COMM_WORLD_SIZE=4"),
        ({"PMI_SIZE": "3"}, "each of them would train alone"),
    ],
)
def test_contradicting_launchers_are_refused(environ, words):
    with pytest.raises(LaunchError) as caught:
        launcher.detect(environ)
    assert words in str(caught.value)


def test_one_rank_per_accelerator():
    assert relaunch.worker_count(None, 0) == 1
    assert relaunch.worker_count(None, 4) == 4
    assert relaunch.worker_count(3, 0) == 3
    assert relaunch.worker_count(2, 4) == 2
    with pytest.raises(LaunchError, match="nproc=3 but 2 accelerators are visible"):
        relaunch.worker_count(3, 2)
    assert relaunch.worker_count(3, 2, may_share=True) == 3


def test_own_command_keeps_flags_modules_and_arguments():
    assert program.script_command(["python", "-u", "s.py", "-m", "x"], "/py") == ["/py", "-u", "s.py", "-m", "x"]
    assert program.script_command(["python", "-m", "pkg", "1"], "/py") == ["/py", "-m", "pkg", "1"]
    assert program.script_command(["python", "t.py", "--out", "-"], "/py") == ["/py", "t.py", "--out", "-"]
    assert program.script_command(["python", "-uW", "ignore", "-m", "pkg"], "/py")[1:] == ["-uW", "ignore", "-m", "pkg"]
    for typed in (
        ["python"],
        ["python", "-"],
        ["python", "-u"],
        ["python", "-", "--epochs", "3"],
        ["python", "-W", "ignore"],
        ["python", "-q"],
    ):
        with pytest.raises(LaunchError, match="python -m ddp_patch --nproc 2"):
            program.script_command(typed, "/py")


@pytest.mark.parametrize(
    ("line", "flags", "what", "rest"),
    [
        ("-um pkg --lr 1", ["-u"], "-m", ["pkg", "--lr", "1"]),
        ("-mpkg", [], "-m", ["pkg"]),
        ("-uX dev -Wignore s.py -m x", ["-uX", "dev", "-Wignore"], "s.py", ["-m", "x"]),
        ("--check-hash-based-pycs always -Ic pass a", ["--check-hash-based-pycs", "always", "-I"], "-c", ["pass", "a"]),
        ("-u - 3", ["-u"], "-", ["3"]),
        ("-i", ["-i"], None, []),
    ],
)
def test_an_interpreters_arguments_are_taken_apart(line, flags, what, rest):
    assert program.parts(line.split()) == (flags, what, rest)


def test_a_notebooks_kernel_is_not_started_again():
    """It would be ended, and with it what the cells before have made."""
    kernel = ["python", "-m", "ipykernel_launcher", "-f", "/run/kernel-1.json"]
    file = ["python", "/venv/lib/python3.12/site-packages/ipykernel_launcher.py", "-f", "/run/kernel-1.json"]
    for argv in (kernel, file):
        with pytest.raises(
            LaunchError, match=r"kernel of a notebook.*ddp_patch\.launch\(train, nproc=2\), or @ddp_patch"
        ):
            program.script_command(argv, "/py")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["import ddp_patch; ddp_patch.enable(nproc=2)", "ddp_patch.enable(nproc=2)"])
def test_a_test_is_not_started_again(tmp_path, line):
    """By the way that it is run: what it prints would go to pytest's files, which nobody reads then."""
    body = f"{line}\n\ndef test(): pass\n" if "import" in line else f"import ddp_patch\n\ndef test(): {line}\n"
    (tmp_path / "test_a.py").write_text(body)
    done = run("-m", "pytest", "-p", "no:cacheprovider", "test_a.py", cwd=tmp_path)
    assert "LaunchError: pytest runs in this process" in done.stdout
    assert "Write ddp_patch.launch(train, nproc=2) in a test, or ddp_patch.enable(nproc=1)." in done.stdout


@pytest.mark.slow
def test_a_test_under_a_launcher_names_the_hash(tmp_path):
    (tmp_path / "test_a.py").write_text("import ddp_patch\n\ndef test(): ddp_patch.enable()\n")
    done = run("-m", "pytest", "-p", "no:cacheprovider", "test_a.py", cwd=tmp_path, **RANK)
    assert "LaunchError: pytest runs in this process" in done.stdout
    assert "Write PYTHONHASHSEED=0 before the launcher's command." in done.stdout


@pytest.mark.long
def test_a_script_that_imports_pytest_is_started_again(tmp_path):
    (tmp_path / "train.py").write_text(
        "import pytest, ddp_patch\nddp_patch.enable(nproc=2)\nprint(pytest.approx(1) == ddp_patch.world_size() - 1)\n"
    )
    done = run("train.py", cwd=tmp_path, PYTEST_CURRENT_TEST="test_a.py::test (call)", PYTEST_VERSION="9")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.slow
def test_an_older_torch_is_named_before_anything_starts(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n\ntorch.__version__ = '2.9.1+cu128'\nimport ddp_patch\n\nddp_patch.enable(nproc=2)\n"
    )
    done = run("train.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "torch 2.9.1+cu128 is installed, and ddp_patch works with torch 2.13 or newer" in done.stderr
    for fine in ("2.13.0", "2.13.0+cpu", "2.14.0a0+git1", "3.0"):
        relaunch.refuse_old_torch(fine)


def test_the_oldest_torch_is_the_one_that_is_declared():
    declared = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'"torch>={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"' in declared


def test_workers_share_hashes_and_cores():
    environ = relaunch.worker_environment({}, 3, 8)
    assert environ == {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2"}
    assert relaunch.worker_environment({"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}, 3, 8)["PYTHONHASHSEED"] == "7"
    for drawn in ("random", ""):
        assert relaunch.worker_environment({"PYTHONHASHSEED": drawn}, 3, 8)["PYTHONHASHSEED"] == "0"


ELSEWHERE = """
import os
import sys

import torch

os.chdir("data")
if "hash" in sys.argv:
    os.environ["PYTHONHASHSEED"] = "42"  # as seed_everything does
import ddp_patch

ddp_patch.enable(nproc=2)
with ddp_patch.per_rank():
    words = map(str, [os.path.basename(os.getcwd()), hash("a"), *sys.argv])
    os.write(1, (" ".join(words) + "\\n").encode())  # at once, whatever the other rank says
"""


@pytest.mark.slow
@pytest.mark.some("arguments1")
@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["src/train.py"], {"PYTHONHASHSEED": "random"}),
        (["-u", "src/train.py", "hash", "-"], {}),
    ],
)
def test_a_script_is_started_again_from_where_it_was(tmp_path, arguments, given):
    """By a relative path, from a folder where somebody left a module that is called as one of Python's own."""
    (tmp_path / "src").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "argparse.py").write_text("raise SystemExit('not of the script')\n")
    (tmp_path / "src" / "train.py").write_text(ELSEWHERE)
    command = [sys.executable, *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        command, cwd=tmp_path, env={**environ, **given}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition("data ")[2] for line in done.stdout.splitlines())
    assert len(said) == 2
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.some("below")
@pytest.mark.parametrize("imported", ["above", "below"])
def test_a_module_is_started_again_from_where_it_was(tmp_path, imported):
    (tmp_path / "pack").mkdir()
    (tmp_path / "data").mkdir()
    lines = ["import ddp_patch", "import os", "os.chdir('data')"]
    lines = lines if imported == "above" else [*lines[1:], lines[0]]
    said = ["ddp_patch.enable(nproc=2)", "print(os.path.basename(os.getcwd()), __spec__.name)"]
    (tmp_path / "pack" / "train.py").write_text("\n".join([*lines, *said]))
    done = run("-m", "pack.train", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "data pack.train\n"), done.stderr


@pytest.mark.parametrize(
    ("folder", "search", "expected"),
    [
        ("{}", ["{}/lib", "{}"], "{}"),  # a folder of the script's own comes first
        ("{}/data", ["{}", "{}/lib"], "{}"),
        ("{}/data", ["{}/python311.zip"], "{}/data"),
        ("{}/data", [""], "{}/data"),
    ],
)
def test_where_modules_were_looked_for_tells_where_the_program_was(monkeypatch, tmp_path, folder, search, expected):
    monkeypatch.setattr(State, "folder", folder.format(tmp_path))
    monkeypatch.setattr(State, "search", tuple(path.format(tmp_path) for path in search))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pack"])
    assert program.folder_of_start() == expected.format(tmp_path)


@pytest.mark.slow
def test_a_hash_that_a_script_draws_is_not_the_ranks(tmp_path):
    """Under a launcher, another one on each rank and at each start."""
    (tmp_path / "train.py").write_text(
        "import os, random\n"
        "os.environ['PYTHONHASHSEED'] = str(random.randint(1, 10**9))\n"
        "import ddp_patch\n\n"
        "ddp_patch.enable()\n"
        "with ddp_patch.per_rank():\n"
        "    os.write(1, f'hash {hash(\"a\")}\\n'.encode())\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    launcher_of_torch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(
        [sys.executable, *launcher_of_torch],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("hash")]
    assert len(said) == 2
    assert said[0] == said[1]


@pytest.mark.slow
def test_ranks_that_a_launcher_forks_keep_its_hash(tmp_path):
    """A program of theirs to start again is not there: theirs is the launcher."""
    (tmp_path / "launch.py").write_text(
        "import os, socket\n\n"
        "print('the launcher starts', flush=True)\n"
        "with socket.create_server(('127.0.0.1', 0)) as free:\n"
        "    place = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(free.getsockname()[1]))\n"
        "for rank in ('0', '1'):\n"
        "    if not os.fork():\n"
        "        os.environ.update(place, RANK=rank, LOCAL_RANK=rank, PYTHONHASHSEED='0')\n"
        "        import ddp_patch\n\n"
        "        ddp_patch.enable()\n"
        "        print('trained')\n"
        "        raise SystemExit\n"
        "print(os.wait()[1], os.wait()[1])\n"
    )
    done = run("launch.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the launcher starts", "trained", "0 0"]


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A package of another name that starts processes as Python's own does, such as multiprocess of datasets."""
    folder = tmp_path_factory.mktemp("twin") / "site-packages"  # none of the script's own files
    own = Path(multiprocessing.__file__).parent
    (folder / "multiprocess").mkdir(parents=True)
    for file in own.glob("*.py"):  # but for the C code, which it shares
        text = re.sub(r"(?<!_)multiprocessing", "multiprocess", file.read_text())
        (folder / "multiprocess" / file.name).write_text(text)
    return folder


@pytest.mark.slow
def test_children_of_another_multiprocessing_are_no_program(tmp_path, twin):
    (tmp_path / "train.py").write_text(
        "import ddp_patch\n\n"
        "ddp_patch.enable(nproc=2)\n"
        "from multiprocess import get_context\n\n"
        "def square(number):\n"
        "    return number * number\n\n"
        "if __name__ == '__main__':\n"
        "    with get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(square, [2, 3]))\n"
    )
    done = run("train.py", cwd=tmp_path, PYTHONPATH=str(twin))
    assert (done.returncode, done.stdout) == (0, "[4, 9]\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-u"], ["-", "--epochs", "3"]])
def test_a_script_from_standard_input_is_refused(arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        input="import ddp_patch\nddp_patch.enable(nproc=2)\nprint('trained')\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "typed at a prompt or read from standard input" in done.stderr


@pytest.mark.slow
def test_an_interpreter_that_takes_no_hash_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("import ddp_patch\n\nddp_patch.enable(nproc=2)\n")
    done = subprocess.run(
        [sys.executable, "-I", "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "python -E and -I leave PYTHONHASHSEED alone" in done.stderr


def test_cuda_used_on_another_ranks_device_is_refused():
    from ddp_patch.errors import OrderError
    from ddp_patch.job import groups

    groups.refuse_others_device(hosts.RankLocation(launcher.Placement(0, 2, 0, 2), 0, False), 0)
    groups.refuse_others_device(hosts.RankLocation(launcher.Placement(1, 2, 1, 2), None, False), None)
    with pytest.raises(OrderError, match=r"device 0, but this is local rank 1.*Move ddp_patch\.enable"):
        groups.refuse_others_device(hosts.RankLocation(launcher.Placement(1, 2, 1, 2), 1, False), 0)


# --- where ranks are, by what they see --------------------------------------------------------------------------------


def gpus(host, count):
    return tuple(f"GPU-{host}-{index}" for index in range(count))


def seen(host, devices=(), kind=None, local_rank=None):
    return hosts.HostView(host, f"node-{host}", kind or ("cuda" if devices else "cpu"), tuple(devices), local_rank)


def placed(ranks, may_share=False):
    """Local rank, ranks on the host, index of the device, and whether any is shared, of each rank."""
    found = [
        hosts.place(launcher.LaunchInfo(rank, len(ranks), its.local_rank, None), ranks, may_share)
        for rank, its in enumerate(ranks)
    ]
    return [(p.placement.local_rank, p.placement.local_world_size, p.device, p.shares) for p in found]


RECIPES = {
    # RANK and WORLD_SIZE alone, as SLURM recipes have it: 128 ranks are not taken for 128 of one host.
    "all visible": ([seen(r // 8, gpus(r // 8, 8)) for r in range(128)], [(r % 8, 8, r % 8) for r in range(128)]),
    "one visible for each task": (
        [seen(0, [f"GPU-{r}"], local_rank=r) for r in range(8)],
        [(r, 8, 0) for r in range(8)],
    ),
    "tasks whose local rank is always 0": (
        [seen(0, [f"GPU-{r}"], local_rank=0) for r in range(4)],
        [(r, 4, 0) for r in range(4)],
    ),
    "containers of their own": ([seen(r, gpus(0, 2), local_rank=r) for r in range(2)], [(0, 1, 0), (0, 1, 1)]),
    "slices of one": ([seen(0, ["MIG-a", "MIG-b"]) for _ in range(2)], [(0, 2, 0), (1, 2, 1)]),
    "ranks dealt round over hosts": (
        [seen(r % 2, gpus(r % 2, 2)) for r in range(4)],
        [(0, 2, 0), (0, 2, 0), (1, 2, 1), (1, 2, 1)],
    ),
    "the launcher's order": (
        [seen(0, gpus(0, 2), local_rank=1), seen(0, gpus(0, 2), local_rank=0)],
        [(1, 2, 1), (0, 2, 0)],
    ),
    "visible in another order": ([seen(0, ["a", "b"]), seen(0, ["b", "a"])], [(0, 2, 0), (1, 2, 0)]),
    "overlapping": (
        [seen(0, ["a", "b"]), seen(0, ["a", "b", "c"]), seen(0, ["c", "a", "b"])],
        [(0, 3, 0), (1, 3, 1), (2, 3, 0)],
    ),
    "hosts of different sizes": (
        [seen(0, gpus(0, 1)), seen(1, gpus(1, 2)), seen(1, gpus(1, 2))],
        [(0, 1, 0), (0, 2, 0), (1, 2, 1)],
    ),
    "no accelerators": ([seen(r // 2) for r in range(4)], [(0, 2, None), (1, 2, None)] * 2),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_rank_gets_a_device_of_its_own(recipe):
    ranks, wanted = RECIPES[recipe]
    assert placed(ranks) == [(*its, False) for its in wanted]


def test_ranks_that_would_share_a_device_say_so():
    for ranks, words in (
        ([seen(0, gpus(0, 1))] * 2, "Ranks 0, 1 on node-0 would share one cuda device.*nproc-per-node=1"),
        ([seen(r // 4, gpus(r // 4, 2)) for r in range(8)], "Ranks 0, 2 on node-0.*nproc-per-node=2"),
    ):
        for rank in range(len(ranks)):
            with pytest.raises(LaunchError, match=words):
                hosts.place(launcher.LaunchInfo(rank, len(ranks), None, None), ranks, may_share=False)
    assert placed([seen(0, gpus(0, 1))] * 3, may_share=True) == [(r, 3, 0, True) for r in range(3)]


def test_ranks_that_share_talk_by_gloo_unless_every_nccl_takes_several():
    def by_gloo(*takes):
        ranks = [dataclasses.replace(seen(0, gpus(0, 1)), takes_several=several) for several in takes]
        return hosts.place(launcher.LaunchInfo(0, len(ranks), 0, None), ranks, True).by_gloo

    assert [by_gloo(False, False), by_gloo(True, False), by_gloo(True, True)] == [True, True, False]
    assert not software.nccl_takes_several({"NCCL_MULTI_RANK_GPU_ENABLE": "0"})


class Slice:
    """A slice of a GPU, as torch describes it."""

    uuid, pci_domain_id, pci_bus_id, pci_device_id = "of the GPU", 0, 23, 0


def test_slices_of_one_gpu_are_devices_that_nccl_takes_for_one(monkeypatch):
    monkeypatch.setattr(hosts, "accelerator_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Slice)

    def look(name):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
        return hosts.look(None)

    ranks = [look("MIG-5b3c1a10-0001"), look("MIG-5b3c1a10-0002,MIG-5b3c1a10-0003")]
    assert [its.devices for its in ranks] == [("MIG-5b3c1a10-0001",), ("MIG-5b3c1a10-0002",)]
    for takes, by_gloo in ((False, True), (True, False)):
        its = [dataclasses.replace(view, takes_several=takes) for view in ranks]
        for rank in range(2):
            found = hosts.place(launcher.LaunchInfo(rank, 2, None, None), its, may_share=False)
            assert (found.device, found.shares, found.by_gloo) == (0, False, by_gloo)
    assert len({look("0").devices, look("GPU-1").devices}) == 1  # by which name it was made visible


@pytest.mark.parametrize(
    ("device", "by_gloo", "backends"), [(None, False, None), (0, True, "gloo"), (0, False, "cpu:gloo,cuda:nccl")]
)
def test_models_and_batches_may_be_on_the_host_or_on_the_accelerator(monkeypatch, device, by_gloo, backends):
    from ddp_patch.job import groups

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    place = hosts.RankLocation(launcher.Placement(0, 2, 0, 2), device, by_gloo, by_gloo)
    assert groups._backends(place) == backends


def test_one_kind_of_device():
    ranks = [seen(0, gpus(0, 2)), seen(0, gpus(0, 2)), seen(1)]
    for rank in range(3):
        with pytest.raises(LaunchError, match=r"cuda on ranks 0, 1 \(node-0\); cpu on rank 2 \(node-1\)"):
            hosts.place(launcher.LaunchInfo(rank, 3, None, None), ranks, may_share=True)


def test_a_rank_that_cannot_use_its_accelerators_is_named_on_all(monkeypatch):
    def broken(kind, index):
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(hosts, "accelerator_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(hosts, "_identity", broken)
    ranks = [seen(0, gpus(0, 1)), hosts.look(None)]
    for rank in range(2):
        with pytest.raises(LaunchError, match=r"Rank 1 on .* cannot use its accelerators: RuntimeError: device-side"):
            hosts.place(launcher.LaunchInfo(rank, 2, None, None), ranks, may_share=True)


def said_by_torch(what):
    def is_available():
        warnings.warn(what, stacklevel=2)
        return False

    return is_available


def test_a_driver_that_is_too_old_is_named_on_all_ranks(monkeypatch):
    """torch answers that there is no GPU, and warns once: all ranks would compute on the host without a word."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    too_old = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
    monkeypatch.setattr(torch.cuda, "is_available", said_by_torch(too_old))
    ranks = [seen(0), hosts.look(None)]
    for rank in range(2):
        with pytest.raises(LaunchError, match=r"Rank 1 on .* cannot use its accelerators: The NVIDIA driver .* 11040"):
            hosts.place(launcher.LaunchInfo(rank, 2, None, None), ranks, may_share=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as the error advises
    assert not hosts.look(None).error
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "is_available", said_by_torch("Can't initialize NVML"))  # no GPU at all
    assert not hosts.look(None).error


# --- real launches ----------------------------------------------------------------------------------------------------

PLACED = """
import ddp_patch; ddp_patch.enable()
import torch
from torch.utils.data import DataLoader, TensorDataset
(x,) = next(iter(DataLoader(TensorDataset(torch.arange(7.0)), 7)))
print(x.sum().item())
from ddp_patch.job.job import Job
with ddp_patch.per_rank():
    open(f"place.{ddp_patch.rank()}", "w").write(str(Job.current.placement))
"""


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


@pytest.mark.slow
def test_a_launcher_need_not_say_what_is_local(tmp_path):
    """As recipes for SLURM have it: no LOCAL_RANK, no LOCAL_WORLD_SIZE, no agent's store."""
    (tmp_path / "train.py").write_text(PLACED)
    named = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env={**environ, **named, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [out for out, _ in said] == ["21.0\n", ""]
    for rank in range(2):
        wanted = f"Placement(rank={rank}, world_size=2, local_rank={rank}, local_world_size=2)"
        assert (tmp_path / f"place.{rank}").read_text() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_the_others_do_not_come_to_says_so(tmp_path, rank):
    (tmp_path / "train.py").write_text(PLACED)
    port = free_port()
    named = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run("train.py", cwd=tmp_path, DDP_PATCH_TIMEOUT="2", **named)
    assert done.returncode == 1
    wanted = (
        r"LaunchError: Rank 0 on \S+ waited 2 seconds for rank 1, of 2, which did not come to ddp_patch\.enable\(\)",
        rf"LaunchError: Rank 1 of 2, on \S+, did not meet the others at 127\.0\.0\.1:{port} \(MASTER_ADDR, MASTER_PORT\): ",
    )
    assert re.search(wanted[rank], done.stderr), done.stderr


SELF = """
import ddp_patch; ddp_patch.enable({options})
import json, os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(7.0)), 7)
(x,) = next(iter(loader))
print(json.dumps(dict(
    argv=sys.argv, path0=sys.path[0], name=__name__, file=__file__, total=x.sum().item(), kind=type(x).__qualname__,
    names=list({{"a", "b", "c", "d", "e"}}), world=os.environ.get("WORLD_SIZE"), flags=sys.flags.optimize,
)))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    script = folder / "script.py"
    script.write_text(SELF.format(options=""))
    done = run("-O", script, "--flag", "a b", PYTHONHASHSEED="0")
    assert done.returncode == 0, done.stderr
    return script, json.loads(done.stdout)


def check_same(done, alone):
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout
    got = json.loads(lines[0])
    assert got == {**alone, "kind": "BatchTensor"}


@pytest.mark.slow
def test_a_script_starts_its_own_ranks_and_leaves_no_folder(plain, tmp_path):
    script, alone = plain
    check_same(run("-O", script, "--flag", "a b", DDP_PATCH_NPROC="2", TMPDIR=str(tmp_path)), alone)
    assert not [name for name in os.listdir(tmp_path) if not name.startswith("torchinductor_")]  # a cache, of torch


@pytest.mark.slow
def test_torchrun_is_joined_and_string_hashes_agree(plain):
    script, alone = plain
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, "--flag", "a b")
    check_same(done, {**alone, "flags": 0})


@pytest.mark.slow
def test_accelerate_launch_is_joined(plain):
    script, alone = plain
    done = run(
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", script, "--flag", "a b",
    )  # fmt: skip
    check_same(done, {**alone, "flags": 0})


# As `accelerate config` writes it.
ACCELERATES = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""


@pytest.mark.slow
def test_accelerate_launch_is_joined_with_a_config_file(plain, tmp_path):
    script, alone = plain
    (tmp_path / "config.yaml").write_text(ACCELERATES)
    config = ("--config_file", tmp_path / "config.yaml", "--main_process_port", "0")
    check_same(run("-m", "accelerate.commands.launch", *config, script, "--flag", "a b"), {**alone, "flags": 0})


@pytest.mark.slow
def test_a_module_is_run_as_python_runs_it(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 5\n")
    (package / "__main__.py").write_text(
        "import sys\nfrom .other import VALUE\nprint(VALUE, sys.argv[1:], __package__)\n"
    )
    wanted = run("-m", "pack", "1", "--x", cwd=tmp_path)
    for options in ([], ["--nproc", "2"]):
        done = run("-m", "ddp_patch", *options, "-m", "pack", "1", "--x", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, wanted.stdout, "")


PRECISE = """
import sys, torch
import ddp_patch
ddp_patch.enable()
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)

class Whole(nn.Linear):
    def forward(self, x):
        self.kept = x.mean(0)
        return super().forward(x - self.kept)

for make in (nn.Linear, Whole, lambda *sizes: nn.DataParallel(nn.Linear(*sizes))):
    model = make(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,))), 8):
        if "by hand" in sys.argv:
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x)
            out = out.float()
        else:
            out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(out.dtype, out[3].tolist(), round(loss.item(), 3))
"""


PRECISION = {"ACCELERATE_DYNAMO_BACKEND": "NO"}  # which accelerate launch sets as well


@pytest.mark.slow
def test_a_precision_that_a_shell_exports_is_not_the_scripts(ranks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PRECISE)
    (wanted,) = ranks.script(script, 1).ok().stdout
    found = ranks.script(script, 2, env={"ACCELERATE_MIXED_PRECISION": "bf16"}).ok().stdout[0]
    compare_text(
        found, wanted, 1e-5
    )  # float32 is rounded otherwise where there are fewer rows; bfloat16 has eight bits


@pytest.mark.slow
def test_accelerates_bf16_is_autocast_around_the_model(ranks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PRECISE)
    (wanted,) = ranks.script(script, 1, "by hand").ok().stdout
    by_hand = ranks.script(script, 2, "by hand").ok().stdout
    launched = ranks.script(script, 2, env=PRECISION | {"ACCELERATE_MIXED_PRECISION": "bf16"}).ok().stdout
    assert launched == by_hand
    compare_text(launched[0].splitlines()[0], wanted.splitlines()[0], 1e-2)  # bfloat16 has eight bits
    assert "bfloat16" not in launched[0]


SCALED = """
import sys, torch
import ddp_patch
ddp_patch.enable()
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
weight = nn.Parameter(torch.ones(()))  # trained, outside the model
optimizer = torch.optim.Adam([*model.parameters(), weight], 0.01)
by_hand = torch.amp.GradScaler("cpu", enabled="by hand" in sys.argv)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(40, 4)), 8)):
    x.requires_grad_()
    with torch.autocast("cpu", torch.float16, enabled=by_hand.is_enabled()):
        out = model(x)
    out = out.float()
    # In half precision, most gradients of this loss are zero without a scale, and overflow with one in step 2.
    loss = (1e4 if step == 2 else 1e-6) * (out.pow(2).mean() * weight + (x[:, :1] * out).mean())
    by_hand.scale(loss / 2).backward(retain_graph=True)
    by_hand.scale(loss / 2).backward()
    by_hand.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    by_hand.step(optimizer)
    by_hand.update()
    if not by_hand.is_enabled():
        assert x.grad.abs().max() < 1e-3 or step == 2  # true gradients for inputs as well
    print(step, float(norm) if norm.isfinite() else "overflow", weight.item(), [p.grad is None for p in model.parameters()])
    optimizer.zero_grad()
print([round(v, 6) for p in model.parameters() for v in p.flatten().tolist()], optimizer.state[weight]["step"].item())
if ddp_patch.report().world_size > 1:
    print("left out" if "1 steps were left out" in str(ddp_patch.report()) else ddp_patch.report(), file=sys.stderr)
"""


@pytest.mark.slow
def test_accelerates_fp16_scales_losses_as_a_grad_scaler_by_hand(ranks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCALED)
    fp16 = PRECISION | {"ACCELERATE_MIXED_PRECISION": "fp16"}
    (wanted,) = ranks.script(script, 1, "by hand").ok().stdout
    launched = ranks.script(script, 2, env=fp16).ok()
    compare_text(launched.stdout[0], wanted, 2e-3)
    assert "left out" in launched.stderr[0]
    own = ranks.script(script, 2, "by hand", env=fp16).ok()  # the script's own goes first
    compare_text(own.stdout[0], wanted, 2e-3)


SEEN = """
import torch
import ddp_patch
ddp_patch.enable()
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
gain = nn.Parameter(torch.ones(()))  # trained, outside the model
optimizer = torch.optim.SGD([*model.parameters(), gain], 0.1)

said = {}

def say(name, value):
    said.setdefault(name, []).append(float(value.abs().max()))

def clamped(name, grad):
    say(name, grad)
    return grad.clamp(-0.01, 0.01)

model[0].weight.register_hook(lambda grad: clamped("of a parameter", grad))
gain.register_hook(lambda grad: clamped("of one outside", grad))
model[2].bias.register_post_accumulate_grad_hook(lambda p: say("accumulated", p.grad))
gain.register_post_accumulate_grad_hook(lambda p: say("accumulated outside", p.grad))
for x, in DataLoader(TensorDataset(torch.randn(24, 4)), 8):
    optimizer.zero_grad()
    out = model(x)
    out.retain_grad()
    out.register_hook(lambda grad: clamped("of a batch", grad))
    mean = out.mean(0)
    mean.register_hook(lambda grad: clamped("of a mean", grad))
    mean.register_hook(lambda grad: (grad.mul_(2), None)[1])
    mean.retain_grad()
    loss = 0.02 * (out.pow(2).mean() + (mean * gain).exp().sum())  # of gradients that do not overflow, scaled
    loss.backward(retain_graph=True)
    loss.backward()
    say("kept of a batch", out.grad)
    say("kept", mean.grad)
    optimizer.step()
    loss = 0.1 * model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(create_graph=True)
    loss = loss + sum(p.grad.pow(2).sum() for p in model.parameters())
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        say("of a penalty", p.grad)
    optimizer.step()
for name in sorted(said):
    print(name, *said[name])
"""


@pytest.mark.slow
def test_a_script_sees_gradients_at_their_true_size_under_accelerates_fp16(ranks, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SEEN)
    (wanted,) = ranks.script(script, 1).ok().stdout
    fp16 = PRECISION | {"ACCELERATE_MIXED_PRECISION": "fp16"}
    compare_text(ranks.script(script, 2, env=fp16).ok().stdout[0], wanted, 2e-2)


@pytest.mark.long
def test_accelerates_fp8_is_not_silently_dropped(plain):
    script, _ = plain
    done = run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script),
        **PRECISION, ACCELERATE_MIXED_PRECISION="fp8",
    )  # fmt: skip
    assert done.returncode != 0
    assert "mixed_precision=fp8" in done.stderr


# --- the command line -------------------------------------------------------------------------------------------------

PLAIN = """
import sys, helper
print(sys.argv, sys.path[0], __file__, __name__, helper.VALUE, sys.modules["__main__"].__file__)
class Thing: pass
import pickle
print(type(pickle.loads(pickle.dumps(Thing()))).__module__)
def inner():
    raise KeyError("gone")
if "raise" in sys.argv: inner()
if "exit" in sys.argv: sys.exit(5)
if "text" in sys.argv: sys.exit("bad luck")
"""


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    (folder / "sub").mkdir()
    (folder / "sub" / "helper.py").write_text("VALUE = 7\n")
    (folder / "sub" / "plain.py").write_text(PLAIN)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["none", "raise", "exit", "text"])
def test_command_line_runs_a_script_as_python_does(untouched, argument):
    wanted = run("sub/plain.py", argument, "-x", cwd=untouched)
    done = run("-m", "ddp_patch", "sub/plain.py", argument, "-x", cwd=untouched)
    assert (done.returncode, done.stdout, done.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "zip file"])
def test_command_line_runs_a_folder_and_a_zip_file_as_python_does(tmp_path, kind):
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 7\n")
    (folder / "__main__.py").write_text(PLAIN + "print(__package__, __spec__.name, __cached__ is None)\n")
    if kind == "zip file":
        zipapp.create_archive(folder, tmp_path / "app.pyz")
    target = "app" if kind == "folder" else "app.pyz"
    for ending in ("none", "raise"):
        wanted = run(target, ending, cwd=tmp_path)
        said = [line for line in wanted.stderr.splitlines(keepends=True) if "<frozen runpy>" not in line]
        for flags in ([], ["--nproc", "2"]):
            done = run("-m", "ddp_patch", *flags, target, ending, cwd=tmp_path)
            assert (done.returncode, done.stdout) == (wanted.returncode, wanted.stdout)
            assert done.stderr.startswith("".join(said))


@pytest.mark.slow
@pytest.mark.parametrize(("argument", "code"), [("raise", 1), ("exit", 5)])
def test_command_line_keeps_the_ending_on_two_ranks(untouched, argument, code):
    wanted = run("sub/plain.py", argument, cwd=untouched)
    done = run("-m", "ddp_patch", "--nproc", "2", "sub/plain.py", argument, cwd=untouched)
    assert (done.returncode, done.stdout) == (code, wanted.stdout)
    if argument == "raise":
        assert done.stderr.startswith(wanted.stderr)
        assert done.stderr[len(wanted.stderr) :].startswith("ddp_patch: rank ")
    else:
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "can't open file 'missing.py'"),
        (["."], "can't find '__main__' module in '.'"),
        (["--speed", "9", "x.py"], "unknown option --speed"),
        (["--nproc", "0", "x.py"], "nproc takes a process count of at least 1"),
        (["--nproc", "many", "x.py"], "nproc takes a process count of at least 1"),
        (["--nproc"], "--nproc needs a value"),
        ([], "no script to run"),
        (["-m", "no_such_module"], "No module named no_such_module"),
    ],
)
def test_command_line_refuses_what_it_cannot_do(tmp_path, arguments, words):
    (tmp_path / "x.py").write_text("")
    done = run("-m", "ddp_patch", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py"))[: None if THOROUGH else 2])
def test_untouched_scripts_print_the_same_through_the_command_line(ranks, tmp_path, name):
    script = SCRIPTS / f"{name}.py"
    wanted = alone(ranks, script)
    done = run("-m", "ddp_patch", "--nproc", "2", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    compare_text(done.stdout, wanted.stdout[0])


@pytest.mark.slow
def test_a_program_from_standard_input_says_what_to_write():
    done = subprocess.run(
        [sys.executable, "-"],
        input="import ddp_patch; ddp_patch.enable(nproc=2)",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0
    assert "python -m ddp_patch --nproc 2 script.py" in done.stderr


# --- interfaces -------------------------------------------------------------------------------------------------------


def at(network, address, misnamed=""):
    return dataclasses.replace(seen(network), network=str(network), address=address, misnamed=misnamed)


def test_addresses_that_the_others_reach_are_fine():
    assert placed([at(0, "127.0.0.1"), at(0, "127.0.1.1")])  # one host
    assert placed([at(0, "10.0.0.1"), at(1, "10.0.0.2")])
    assert placed([at(0, ""), at(1, "")])  # not known
    assert placed([at(0, "127.0.1.1"), at(1, "10.0.0.2")])  # rank 0's host knows itself by that name


def chosen(monkeypatch, ranks, own=0):
    monkeypatch.setattr(os, "environ", {})
    reaching.choose_interface(ranks, own)
    return os.environ.get("GLOO_SOCKET_IFNAME")


def test_gloo_is_told_the_interface_toward_rank_0_where_there_are_several_hosts(monkeypatch):
    """That of 127.0.0.1 stands for one that other hosts reach."""
    assert chosen(monkeypatch, [at(0, "127.0.0.1"), at(0, "127.0.0.1")]) is None  # one host
    assert chosen(monkeypatch, [dataclasses.replace(at(0, "127.0.0.1"), is_given=True), at(1, "10.0.0.2")]) is None
    assert chosen(monkeypatch, [at(0, "10.255.255.1"), at(1, "10.0.0.2")]) is None  # no interface has it
    monkeypatch.setattr(interfaces, "is_loopback", lambda where: where.startswith("127.0.1"))
    assert chosen(monkeypatch, [at(0, "127.0.0.1"), at(1, "10.0.0.2")]) == "lo"
    assert chosen(monkeypatch, [at(0, "127.0.1.1"), at(1, "127.0.0.1")]) == "lo"  # toward another host


def test_ranks_that_run_something_else_are_named_with_their_hosts():
    same = (("Python", "3.11"), ("torch", "2.13.0"), ("the script", "train.py (sha256 ab)"))
    software.refuse_others([("a", same), ("a", same), ("b", same)])
    other = (("Python", "3.11"), ("torch", "2.13.1"), ("the script", "train.py (sha256 ab)"))
    with pytest.raises(LaunchError) as caught:
        software.refuse_others([("a", same), ("b", other), ("c", other), ("c", other)])
    assert "do not run the same: torch 2.13.0 on a; torch 2.13.1 on b, c." in str(caught.value)
    assert "pip install torch==2.13.0" in str(caught.value)
    with pytest.raises(LaunchError, match=r"Python 3\.11 on a; Python unknown on b"):
        software.refuse_others([("a", same), ("b", ())])  # of a version of ddp_patch that did not tell


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (
            [at(0, "10.0.0.1"), dataclasses.replace(at(1, "127.0.1.1"), is_given=True)],
            "Rank 1 on node-1 would tell the others to connect to 127.0.1.1",
        ),
        ([at(0, "127.0.1.1"), at(1, "127.0.1.1")], "Rank 0 on node-0 would tell the others to connect to 127.0.1.1"),
        ([at(0, "", "GLOO_SOCKET_IFNAME='ib7' names no interface")], "Rank 0 on node-0: GLOO_SOCKET_IFNAME='ib7'"),
    ],
)
def test_every_rank_says_which_host_the_others_cannot_reach(ranks, words):
    for rank in range(len(ranks)):
        with pytest.raises(LaunchError) as caught:
            hosts.place(launcher.LaunchInfo(rank, len(ranks), None, None), ranks, False)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "names", "is_fine"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", True),
        ("GLOO_SOCKET_IFNAME", "lo,ib7", False),
        ("NCCL_SOCKET_IFNAME", "lo", True),
        ("NCCL_SOCKET_IFNAME", "l", True),
        ("NCCL_SOCKET_IFNAME", "=l", False),
        ("NCCL_SOCKET_IFNAME", "=lo,ib7", True),
        ("NCCL_SOCKET_IFNAME", "ib", False),
        ("NCCL_SOCKET_IFNAME", "^docker", True),
        ("NCCL_SOCKET_IFNAME", "", True),
    ],
)
def test_interfaces_are_chosen_as_gloo_and_nccl_do(monkeypatch, variable, names, is_fine):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv(variable, names)
    said = interfaces.misnamed()
    assert said == "" if is_fine else said.startswith(f"{variable}={names!r} names no interface of this host")


def test_gloo_is_asked_for_the_address_of_the_interface_that_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert interfaces.address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    assert interfaces.address() == ""


@pytest.mark.slow
def test_an_interface_that_is_not_there_ends_every_rank_with_its_name(tmp_path):
    (tmp_path / "train.py").write_text("import ddp_patch; ddp_patch.enable()\nprint('trained')\n")
    environ = {**os.environ, "DDP_PATCH_NPROC": "2", "GLOO_SOCKET_IFNAME": "ib7"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "trained" not in done.stdout
    assert "GLOO_SOCKET_IFNAME='ib7' names no interface of this host, which has " in done.stderr


UNREACHED = """
import os
import torch.distributed as dist

def refuse(*args, **kwargs):
    raise RuntimeError("[enforce fail at /gloo/transport/tcp/pair.cc] Connection refused, remote=[10.9.8.7]:1234")

if os.environ["RANK"] == os.environ["UNREACHED"]:
    dist.new_group = refuse
import ddp_patch; ddp_patch.enable()
print("trained")
"""
# Devices that connect once the hosts have: NCCL raises, or waits for what nobody answers.
UNREACHED_DEVICES = """
import os, time
import torch
import torch.distributed as dist
from ddp_patch.job import joining, reaching

reaching.is_to_be_tried_by_devices = lambda place, seen: True
torch.accelerator.synchronize = lambda device: None
all_reduce = dist.all_reduce

def meet(*args, **kwargs):
    if os.environ["RANK"] == os.environ["UNREACHED"]:
        raise dist.DistBackendError("NCCL error in: init.cpp:98\\nsocketPollConnect: Connect to 10.9.8.7<4711> failed")
    if os.environ["UNREACHED"] == "nobody":
        time.sleep(600)
    return all_reduce(*args, **kwargs)

dist.all_reduce = meet
joining._DEVICES_WAIT = 3.0 if os.environ["UNREACHED"] == "nobody" else 600.0
import ddp_patch; ddp_patch.enable()
print("trained")
"""


def by_hand(tmp_path, script, unreached):
    """What three ranks say that are started by hand: no launcher ends the others."""
    (tmp_path / "train.py").write_text(script)
    named = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "UNREACHED": str(unreached)}
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")} | named
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env={**environ, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]  # the time-out of what waits is 30 minutes
    return [(rank.returncode, out, error) for rank, (out, error) in zip(ranks, said, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("unreached", [0, 1])  # the store is rank 0's
@pytest.mark.parametrize(("script", "why"), [(UNREACHED, "[enforce fail"), (UNREACHED_DEVICES, "NCCL error in")])
def test_a_rank_that_cannot_connect_is_named_by_all(tmp_path, script, why, unreached):
    for code, out, error in by_hand(tmp_path, script, unreached):
        assert (code, out) == (1, ""), error
        assert f"LaunchError: Rank {unreached} of 3, on {socket.gethostname()}, could not reach the other" in error
        assert f"ranks over GLOO_SOCKET_IFNAME=lo, NCCL_SOCKET_IFNAME==lo: {why}" in error
        assert "and NCCL_SOCKET_IFNAME for accelerators" in error


@pytest.mark.slow
def test_devices_that_nobody_answers_are_not_waited_for(tmp_path):
    for code, out, error in by_hand(tmp_path, UNREACHED_DEVICES, "nobody"):
        assert (code, out) == (1, ""), error
        assert any(f"LaunchError: Rank {rank} of 3, on {socket.gethostname()}" in error for rank in range(3)), error
        assert "NCCL_SOCKET_IFNAME==lo: their devices did not connect within 3 s" in error


@pytest.mark.slow
def test_devices_of_several_hosts_connect_before_the_script_goes_on(tmp_path):
    said = [(code, out) for code, out, _ in by_hand(tmp_path, UNREACHED_DEVICES, "none")]
    assert said == [(0, "trained\n"), (0, ""), (0, "")]
