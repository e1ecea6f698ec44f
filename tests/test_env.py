"""``python -m ddp_patch env``: one table, whoever started the ranks."""

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE
from test_launch import free_port

from ddp_patch.env import facts
from ddp_patch.env.table import written
from ddp_patch.job import hosts, key, launcher

command = importlib.import_module("ddp_patch.env.command")  # beside the function of that name
ENV = ["-m", "ddp_patch", "env"]


def run(*command, **env):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    return subprocess.run(
        [sys.executable, *command], env={**environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_alone_it_says_so():
    done = run(*ENV, DDP_PATCH_NPROC="3", GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "Started by nobody: one process. ddp_patch.enable() would start 3 ranks of the script."
    )
    assert "lo 127.0.0.1" in done.stdout
    assert "DDP_PATCH_NPROC=3" in done.stdout


@pytest.mark.slow
def test_ranks_of_torchrun_show_one_table():
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *ENV, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["launcher"], found["world_size"], found["backend"], found["problem"]) == ("torchrun", 2, "gloo", "")
    assert [(its["rank"], its["local_rank"], its["device"]) for its in found["ranks"]] == [(0, 0, "cpu"), (1, 1, "cpu")]
    assert len({its["pid"] for its in found["ranks"]}) == 2
    assert found["ranks"][1]["set_by"]["torchrun"]["RANK"] == "1"


@pytest.mark.slow
def test_a_rank_that_nobody_joins_says_so():
    named = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    done = run(*ENV, **named, DDP_PATCH_TIMEOUT="2")
    assert done.returncode == 1
    assert done.stdout.startswith("Started by hand; these ranks cannot train together.")
    assert re.search(r"problem: Rank 0 on \S+ waited 2 seconds for rank 1, of 2, which did not come", done.stdout)


@pytest.mark.slow
def test_contradicting_launchers_are_shown_with_what_they_set():
    done = run(*ENV, PMI_RANK="0", PMI_SIZE="3", RANK="1", WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="1")
    assert done.returncode == 1
    assert "problem: By hand, RANK=1, WORLD_SIZE=2 but mpirun (MPICH, Intel MPI) says PMI_SIZE=3" in done.stdout
    assert "set by mpirun (MPICH, Intel MPI):\n  PMI_RANK=0, PMI_SIZE=3\n" in done.stdout


@pytest.mark.slow
def test_another_argument_is_refused():
    done = run(*ENV, "--yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "it takes --json, and no --yaml" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DDP_PATCH_NPROC": "two"}, "DDP_PATCH_NPROC='two'"),
        ({"DDP_PATCH_NPROCS": "2"}, "DDP_PATCH_NPROCS is set, and is no option."),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n", "MASTER_PORT": "1", "DDP_PATCH_NPROC": "3"},
            "nproc=3, but the launcher started 2 ranks",
        ),
    ],
)
def test_an_option_that_enable_refuses_is_a_problem(variables, words):
    done = run(*ENV, **variables)
    assert (done.returncode, done.stderr) == (1, "")
    assert words in " ".join(done.stdout.partition("problem: ")[2].split())


def test_more_ranks_than_accelerators_are_a_problem(monkeypatch):
    look = dataclasses.replace(hosts.look(None), devices=("a", "b"), error="")
    monkeypatch.setattr(hosts, "look", lambda local_rank: look)
    monkeypatch.setenv("DDP_PATCH_NPROC", "8")
    assert command._alone(None)["problem"].startswith("nproc=8 but 2 accelerators are visible")
    monkeypatch.setenv("DDP_PATCH_NPROC", "2")
    assert (command._alone(None)["would_start"], command._alone(None)["problem"]) == (2, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_rank_1", "words"),
    [
        ({}, ""),
        ({"PYTHONHASHSEED": "random"}, ""),  # enable() has both take the same
        ({"PYTHONHASHSEED": "7"}, "The ranks do not run the same: the order of sets of strings PYTHONHASHSEED=0 on "),
        ({"DDP_PATCH_KEY": "0123456789abcdef" * 3}, "Rank 1 has a DDP_PATCH_KEY, unlike rank 0"),
    ],
)
def test_ranks_that_enable_refuses_have_a_problem(of_rank_1, words):
    own = {key: value for key, value in os.environ.items() if key[:10] not in ("DDP_PATCH_", "PYTHONHASH")}
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *ENV, "--json"], env={**own, **told, **its}, stdout=subprocess.PIPE, text=True
        )
        for its in ({"RANK": "0", "PYTHONHASHSEED": "0"}, {"RANK": "1", **of_rank_1})
    ]
    (found, _), (nothing, _) = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    assert ([rank.returncode for rank in ranks], nothing) == ([int(bool(words)), 0], "")
    assert json.loads(found)["problem"].startswith(words)
    assert bool(json.loads(found)["problem"]) == bool(words)


@pytest.mark.parametrize(("version", "is_fine"), [("3.11.9", True), ("3.12.0", False)])
def test_versions_differ_where_enable_has_them_differ(monkeypatch, version, is_fine):
    told = launcher.detect({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n", "MASTER_PORT": "1"})
    offer = key.Offer(0)
    looks = []
    for info in ((3, 11, 8), tuple(map(int, version.split(".")))):
        monkeypatch.setattr(sys, "version_info", info)
        looks.append(dataclasses.replace(hosts.look(None), kind="cpu", devices=(), key=offer.message))
    monkeypatch.undo()
    problem = command._problem(told, looks, ["a", "a"], offer, False)
    offer.close()
    assert problem == "" if is_fine else problem.startswith("The ranks do not run the same: Python 3.11 on ")


def test_what_is_made_for_torch_says_from_what():
    environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "n", "NCCL_DEBUG": "INFO"}
    by = facts.set_by(environ, launcher.detect({**environ, "MASTER_PORT": "7"}))
    assert by == {
        "mpirun (Open MPI)": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        "the environment": {"MASTER_ADDR": "n", "NCCL_DEBUG": "INFO"},
        "ddp_patch, for torch": {
            "RANK (from OMPI_COMM_WORLD_RANK)": "1",
            "WORLD_SIZE (from OMPI_COMM_WORLD_SIZE)": "2",
            "MASTER_PORT (from default)": "7",
        },
    }


def test_values_of_all_ranks_stand_beside_each_other():
    def rank(number):
        return {
            **{"rank": number, "host": f"n{number}", "local_rank": 0, "local_world_size": 1, "device": "cpu"},
            **{
                "interface": "lo",
                "pid": 7,
                "versions": {},
                "folder": "/",
                "key": "not set",
                "set_by": {"srun": {"SLURM_PROCID": str(number)}},
            },
        }

    found = {
        "launcher": "srun",
        "inside_of": [],
        "world_size": 2,
        "backend": "gloo",
        "problem": "",
        "ranks": [rank(0), rank(1)],
    }
    text = written(found)
    assert text.startswith("srun started 2 ranks on 2 hosts.\n")
    assert "SLURM_PROCID=0|1" in text


@pytest.mark.long
def test_whether_the_ranks_have_a_key_is_shown_and_the_key_is_not():
    for value, words in (("", "not set"), ("0123456789abcdef" * 4, "set")):
        done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *ENV, DDP_PATCH_KEY=value)
        assert done.returncode == 0, done.stderr
        assert f"key        DDP_PATCH_KEY is {words}\n" in done.stdout
        assert "0123456789abcdef" not in done.stdout + done.stderr


def test_what_a_queue_lets_its_users_sign_with_is_not_shown():
    environ = {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_JWT": "eyJ",
        "NCCL_TOKEN": "t",
    }
    by = facts.set_by(environ, None)
    assert by["srun"]["SLURM_JWT"] == by["the environment"]["NCCL_TOKEN"] == "set, and not shown"
    assert by["srun"]["SLURM_PROCID"] == "0"
