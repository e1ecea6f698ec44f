"""The real mpirun of Open MPI and of MPICH, as Debian packs them side by side: openmpi-bin, mpich."""

import re
import socket
import time

import pytest
from launchers.together import MPICH, OPEN_MPI, SCRIPTS, leaving_no_note, python, run
from parity.test_scripts import alone, compare_text

LAUNCHERS = {"Open MPI": OPEN_MPI, "MPICH": MPICH}
ANSWERS = """
import os
import ddp_patch; ddp_patch.enable()
print(ddp_patch.world_size(), [name for name in os.environ if name.endswith(("_RANK", "_SIZE")) and "COMM" in name])
with ddp_patch.per_rank():
    open(f"rank.{ddp_patch.rank()}", "w").close()
"""
pytestmark = pytest.mark.parametrize("mpirun", LAUNCHERS.values(), ids=LAUNCHERS)


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("script", ["dataparallel_classifier", "mixup"])
def test_a_script_prints_what_it_prints_alone(ranks, tmp_path, mpirun, nproc, script):
    wanted = alone(ranks, SCRIPTS / f"{script}.py")
    with leaving_no_note():
        done = run(*mpirun, nproc, *python("-m", "ddp_patch", SCRIPTS / f"{script}.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    compare_text(done.stdout, wanted.stdout[0])


@pytest.mark.sample
def test_the_line_joins_mpiruns_ranks_and_hides_them(tmp_path, mpirun):
    (tmp_path / "train.py").write_text(ANSWERS)
    done = run(*mpirun, 2, *python("train.py"), cwd=tmp_path, DDP_PATCH_QUIET="0")
    assert (done.returncode, done.stdout) == (0, "2 []\n"), done.stderr
    assert re.search(r"ddp_patch: 2 ranks on the CPU, started by mpirun \((Open MPI|MPICH, Intel MPI)\)\.", done.stderr)
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


def test_two_programs_after_each_other_in_one_mpirun_do_not_meet_each_other(tmp_path, mpirun):
    (tmp_path / "train.py").write_text(ANSWERS)
    (tmp_path / "fails.py").write_text("import ddp_patch; ddp_patch.enable(); print(ddp_patch.world_size())\n")
    done = run(*mpirun, 2, "bash", "-c", f"{python()[0]} fails.py; exec {python()[0]} train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n2 []\n"), done.stderr


def test_two_jobs_at_once_do_not_meet_each_other(tmp_path, mpirun):
    import concurrent.futures

    (tmp_path / "train.py").write_text(ANSWERS)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = [pool.submit(run, *mpirun, 2, *python("train.py"), cwd=tmp_path) for _ in range(2)]
        assert [job.result().stdout for job in jobs] == ["2 []\n"] * 2


def test_one_rank_of_mpirun_is_the_script_itself(tmp_path, mpirun):
    (tmp_path / "train.py").write_text("import ddp_patch; ddp_patch.enable(); print(ddp_patch.world_size())")
    assert run(*mpirun, 1, *python("train.py"), cwd=tmp_path).stdout == "1\n"


def test_a_rank_that_fails_ends_the_job_with_its_traceback(tmp_path, mpirun):
    """Hydra leaves the other ranks alone (MPICH 4.0): they find out by themselves, in the next collective."""
    (tmp_path / "train.py").write_text(
        "import ddp_patch; ddp_patch.enable()\nimport torch\nif ddp_patch.rank() == 1: raise KeyError('gone')\n"
        "while True: ddp_patch.deal(torch.zeros(4, 2)).sum().item()\n"
    )
    began = time.monotonic()
    done = run(*mpirun, 2, *python("train.py"), cwd=tmp_path)
    assert done.returncode != 0
    assert "[rank 1] KeyError: 'gone'" in done.stderr
    assert time.monotonic() - began < 60


def test_mpirun_inside_of_torchrun_is_refused_by_all(tmp_path, mpirun):
    (tmp_path / "train.py").write_text(ANSWERS)
    torchrun = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
    inner = f"{' '.join(map(str, mpirun))} 2 {python()[0]} train.py 2>&1 | tee said.$RANK; exit 1"
    done = run(*torchrun, "bash", "-c", inner, cwd=tmp_path)
    assert done.returncode != 0
    for rank in range(2):
        assert re.search(r"By torchrun, RANK=.*, WORLD_SIZE=2 but mpirun", (tmp_path / f"said.{rank}").read_text())


def test_a_port_in_use_is_named_by_rank_0_and_the_others_do_not_hang(tmp_path, mpirun):
    """Each goes on where mpirun would end it, so that all are heard: what has the port never answers."""
    (tmp_path / "train.py").write_text(ANSWERS)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = f"{python()[0]} train.py 2> said.$(cat /proc/$$/environ | tr '\\0' '\\n' | grep -E '^(PMI|OMPI_COMM_WORLD)_RANK' | cut -d= -f2); exit 0"
        run(
            *(*mpirun, 2, "bash", "-c", command),
            cwd=tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, DDP_PATCH_TIMEOUT="3",
        )  # fmt: skip
    assert (
        f"cannot take the port 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT): another program"
        in (tmp_path / "said.0").read_text()
    )
    found = f"found at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) something that does not answer"
    said = (tmp_path / "said.1").read_text()
    assert found in said or "does not wait for rank 0, which ended before" in said, said  # whichever it sees first


@pytest.mark.sample
def test_env_shows_one_table_of_all_ranks(mpirun):
    with leaving_no_note():
        done = run(*mpirun, 2, *python("-m", "ddp_patch", "env"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started 2 ranks on 1 host.") == 1
    assert "(a free port of this host, chosen by ddp_patch)" in done.stdout
    assert re.search(r"set by ddp_patch, for torch:\n  RANK \(from \w+_RANK\)=0\|1, WORLD_SIZE", done.stdout)
