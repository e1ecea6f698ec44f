"""Several hosts, which this machine plays: names, networks and disks of their own. Root, util-linux and iproute2."""

import contextlib
import datetime
import os
import re
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import pytest
import torch
from launchers.hosts import finished, hosts, mpirun, said, torchrun
from launchers.together import python, run
from parity.test_scripts import compare_text
from test_hub import archive

SCRIPTS = Path(__file__).parent / "scripts"
PACKAGE = Path(__file__).parent.parent.parent / "ddp_patch"


def alone(folder, script):
    done = run(*python(prepared(folder, script)), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepared(folder, script, of_the_run_before=True):
    """What is on a host before."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    rows = torch.randn(37, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.save(rows, folder / "data" / "rows.pt")
    (folder / "data" / "names.txt").write_text("rows pt")
    if script == "reads":
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / "old.txt").write_text("old" if of_the_run_before else "of another run, on another host")
        (folder / "run" / "counts.txt").write_text("1\n2\n3\n" if of_the_run_before else "1\n")
    shutil.copy(SCRIPTS / f"{script}.py", folder / "script.py")
    return "script.py"


def files(folder):
    own = ("tmp", "home")
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in own
    }


SUMS = """
import ddp_patch; ddp_patch.enable()
import torch
print(ddp_patch.deal(torch.arange(5.0)).sum().item())
with ddp_patch.per_rank():
    from ddp_patch.job import interfaces
    print(interfaces.requested())
"""


def summed(made, **options):
    """What two ranks print, which are told the same sum, and each the interface that it uses."""
    for host in made:
        (host.folder / "script.py").write_text(SUMS)
    done = torchrun(made, "script.py", **options)
    assert [it.returncode for it in done] == [0, 0], said(done)
    first, second = (it.stdout.split() for it in done)
    assert first[0] == "10.0"
    return first[1:], second


ACCELERATES = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: {number}
main_process_ip: 10.77.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: 'no'
num_machines: 2
num_processes: 4
rdzv_backend: static
same_network: true
use_cpu: false
"""


@pytest.mark.parametrize("by", ["the file", "an option"])
@pytest.mark.sample
def test_accelerate_launch_on_two_hosts_with_a_config_file_of_each_and_machine_ranks(tmp_path, by):
    with hosts(tmp_path, "alpha", "beta") as made:
        started = []
        for number, host in enumerate(made):
            (host.folder / "script.py").write_text(SUMS)
            (host.folder / "config.yaml").write_text(ACCELERATES.format(number=number if by == "the file" else 0))
            own = ["--machine_rank", number] if by == "an option" else []
            launch = ["-m", "accelerate.commands.launch", "--config_file", "config.yaml", *own]
            started.append(host.start(*python(*launch, "script.py")))
        done = finished(started)
        assert [it.returncode for it in done] == [0, 0], said(done)
        assert [sorted(it.stdout.split()) for it in done] == [["10.0", "net0", "net0"], ["net0", "net0"]], said(done)


# Else c10d looks names up: its own, and that of rank 0 for all.
NAMELESS = [["--rdzv-conf", f"is_host={int(n == 1)}", "--local-addr", f"10.77.0.{n}"] for n in (1, 2)]


@pytest.mark.parametrize(("rendezvous", "options"), [("static", ((), ())), ("c10d", NAMELESS)])
@pytest.mark.parametrize("known", ["nobody", "Debian's"])
def test_names_need_not_resolve(tmp_path, known, rendezvous, options):
    with hosts(tmp_path, "alpha", "beta", known=known) as made:
        assert summed(made, rendezvous=rendezvous, options=options) == (["net0"], ["net0"])


def test_a_host_may_know_itself_by_a_name_that_leads_nowhere_else(tmp_path):
    """MASTER_ADDR is 127.0.1.1 to the host that has that name."""
    with hosts(tmp_path, "alpha", "beta", known="Debian's") as made:
        assert summed(made, rendezvous="static", at="alpha:29500") == (["net0"], ["net0"])


def test_of_several_interfaces_the_one_toward_rank_0_is_used(tmp_path):
    """Names lead over net0."""
    with hosts(tmp_path, "alpha", "beta", cables=3) as made:
        assert summed(made, rendezvous="static", at="10.77.1.1:29500") == (["net1"], ["net1"])


def test_an_interface_that_is_named_is_used(tmp_path):
    with hosts(tmp_path, "alpha", "beta", cables=2) as made:
        named = {"GLOO_SOCKET_IFNAME": "net1"}
        assert summed(made, rendezvous="static", own=(named, named)) == (["net1"], ["net1"])


def test_an_interface_of_this_host_alone_is_refused_by_all(tmp_path):
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            (host.folder / "script.py").write_text(SUMS)
        done = torchrun(made, "script.py", rendezvous="static", own=({}, {"GLOO_SOCKET_IFNAME": "lo"}))
        assert all(it.returncode for it in done), said(done)
        for it in done:
            assert "Rank 1 on beta would tell the others to connect to 127.0.0.1, which only beta reaches" in it.stderr


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_hosts_may_have_ipv6_alone(tmp_path, rendezvous):
    with hosts(tmp_path, "alpha", "beta", addresses="fd77:{cable}::{host}") as made:
        assert summed(made, rendezvous=rendezvous, at="[fd77:0::1]:29500") == (["net0"], ["net0"])


def test_a_slow_link_changes_no_number(tmp_path):
    """20 ms each way."""
    wanted = alone(tmp_path / "alone", "trains")
    with hosts(tmp_path, "alpha", "beta", delay=0.02) as made:
        for host in made:
            prepared(host.folder, "trains")
        done = torchrun(made, "script.py", each=2, rendezvous="static")
        assert [it.returncode for it in done] == [0, 0], said(done)
        compare_text(done[0].stdout, wanted)


DATABASE = """
import sqlite3
import sys
import ddp_patch; ddp_patch.enable()
print(sqlite3.connect("kept.db").execute("select step from seen").fetchall())
"""


@pytest.mark.parametrize("shares", [True, False], ids=["one disk", "two disks"])
def test_a_database_that_another_host_does_not_see_is_refused_by_all(tmp_path, shares):
    with hosts(tmp_path, "alpha", "beta", shares=shares) as made:
        for number, host in enumerate(made):
            (host.folder / "script.py").write_text(DATABASE)
            with contextlib.closing(sqlite3.connect(host.folder / "kept.db")) as kept, kept:
                kept.execute("create table if not exists seen (step integer)")
                kept.execute("insert into seen values (3)" if number == 0 else "delete from seen where step = 4")
        done = torchrun(made, "script.py", rendezvous="static")
        if shares:
            assert [(it.returncode, it.stdout) for it in done] == [(0, "[(3,)]\n"), (0, "")], said(done)
            return
        assert [(it.returncode, it.stdout) for it in done] == [(1, "")] * 2, said(done)
        assert "sqlite3.connect reads it on every rank, but not all hosts see rank 0's" in done[0].stderr, said(done)


READS = """
import os
import ddp_patch; ddp_patch.enable()
import torch

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        with open(f"read by {os.getpid()}", "w") as noted:
            for index in range(7):
                noted.write(f"{index} ")
                yield torch.tensor([float(index)])

model = torch.nn.Linear(1, 1)
print(sum(len(model(rows)) for rows in torch.utils.data.DataLoader(Stream(), batch_size=3)))
"""


def test_one_rank_of_each_host_reads_what_cannot_be_dealt(tmp_path):
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            (host.folder / "script.py").write_text(READS)
        done = torchrun(made, "script.py", each=2, rendezvous="static")
        assert [it.returncode for it in done] == [0, 0], said(done)
        assert [it.stdout for it in done] == ["7\n", ""]
        for host in made:
            assert [path.read_text().split() for path in host.folder.glob("read by *")] == [list("0123456")]


HUB = """
import os
import ddp_patch; ddp_patch.enable()
import torch

def noted(request, real=torch.hub.urlopen):
    os.mkdir(f"asked by {os.getpid()}")  # not for all: who downloads is alone
    return real(request)

torch.hub.urlopen = noted
torch.hub.set_dir("hub")
torch.hub._git_archive_link = lambda *_, **__: "file:" + os.path.abspath("net.zip")
model = torch.hub.load("someone/net:main", "small", trust_repo=True, skip_validation=True)
print(model(torch.ones(4, 2, dtype=torch.float64)).shape)
"""


@pytest.mark.parametrize("has", [True, False], ids=["both", "rank 0's alone"])
def test_each_host_downloads_a_repository_once(tmp_path, has):
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            (host.folder / "script.py").write_text(HUB)
            if has or host is made[0]:
                (host.folder / "net.zip").write_bytes(archive())
        done = torchrun(made, "script.py", each=2, rendezvous="static")
        if not has:
            assert all(it.returncode for it in done), said(done)
            assert "torch.hub.load did on rank 2, the first of its host, not what it did on rank 0" in done[0].stderr
            return
        assert [it.returncode for it in done] == [0, 0], said(done)
        assert done[0].stdout.endswith("the repository is read\ntorch.Size([4, 1])\n"), said(done)
        for host in made:
            assert len([*host.folder.glob("asked by *")]) == 1
            assert (host.folder / "hub" / "someone_net_main" / "hubconf.py").exists()


RESUMES = """
import os
import ddp_patch; ddp_patch.enable()
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
if os.path.exists("last.pt"):
    model.load_state_dict(torch.load("last.pt"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=4):
    optimizer.zero_grad(); model(rows).sum().backward(); optimizer.step()
torch.save(model.state_dict(), "last.pt")
print("trained")
"""


@pytest.mark.parametrize("beta_has", [None, 2.0], ids=["none", "another"])
def test_a_checkpoint_that_another_host_has_not_is_an_error(tmp_path, beta_has):
    with hosts(tmp_path, "alpha", "beta") as made:
        for host, value in zip(made, (1.0, beta_has), strict=True):
            (host.folder / "script.py").write_text(RESUMES)
            if value:
                torch.save({"weight": torch.full((1, 3), value), "bias": torch.zeros(1)}, host.folder / "last.pt")
        began = time.monotonic()
        done = torchrun(made, "script.py", rendezvous="static")
        assert all(it.returncode for it in done), said(done)
        assert "trained" not in done[0].stdout
        assert "LockstepError" in done[0].stderr + done[1].stderr, said(done)
        assert time.monotonic() - began < 100


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize(
    "last", ["pass", "while True: ddp_patch.deal(torch.zeros(8, 2)).sum().item()"], ids=["end", "loop"]
)
def test_a_rank_that_fails_ends_all_hosts(tmp_path, rank, last, rendezvous):
    text = f"import ddp_patch; ddp_patch.enable()\nimport torch\nif ddp_patch.rank() == {rank}: raise KeyError('gone')\n{last}\n"
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            (host.folder / "script.py").write_text(text)
        began = time.monotonic()
        done = torchrun(made, "script.py", each=2, rendezvous=rendezvous)
        assert done[rank // 2].returncode == 1, said(done)
        assert "KeyError: 'gone'" in done[rank // 2].stderr
        assert last == "pass" or all(it.returncode for it in done), said(done)  # else the others had ended
        assert time.monotonic() - began < 100


GOES_ON = """
import ddp_patch
ddp_patch.enable()
import torch
print("going", flush=True)
while True:
    ddp_patch.deal(torch.zeros(8, 2)).sum().item()
"""


@pytest.mark.parametrize("delay", [0.0, 1.0], ids=["at a collective", "between two"])
def test_a_host_that_vanishes_ends_the_job_on_the_others(tmp_path, delay):
    """Its cable is pulled: no connection is closed, and nothing answers any more."""
    text = GOES_ON.replace("while True:", f"import time\nwhile True:\n    time.sleep({delay})")
    text = "import socket; socket.setdefaulttimeout(5)\n" + text  # as scripts that download do
    with hosts(tmp_path, "alpha", "beta") as made:
        started = []
        for rank, host in enumerate(made):
            (host.folder / "script.py").write_text(text)
            ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
            where = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
            started.append(host.start(sys.executable, "script.py", **ranks, **where))
        said_by = started[0].said[0]
        end = time.monotonic() + 60
        while "going" not in os.pread(said_by.fileno(), 1000, 0).decode():
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(2)
        assert made[1].run("ip", "link", "set", "net0", "down").returncode == 0
        began = time.monotonic()
        done = finished(started)
        assert all(it.returncode for it in done), said(done)
        assert "the connection to another rank was lost" in done[0].stderr, said(done)
        assert "script.py:" in done[0].stderr
        assert time.monotonic() - began < 30


# --- mpirun -----------------------------------------------------------------------------------------------------------

OPEN_MPI = ["mpirun.openmpi", "--host", "alpha:2,beta:2", "--wdir", "/mnt", "--mca", "plm_rsh_agent", "AGENT"]
OPEN_MPI += ["--mca", "oob_tcp_if_include", "net0", "-x", "DDP_PATCH_QUIET", "-x", "OMP_NUM_THREADS"]
MPICH = ["mpirun.mpich", "-launcher", "rsh", "-launcher-exec", "AGENT", "-hosts", "alpha:2,beta:2", "-wdir", "/mnt"]
MPICH += ["-iface", "net0"]
MPIRUN = pytest.mark.parametrize(
    ("mpirun_", "where"),
    [
        (OPEN_MPI, ["-x", "MASTER_ADDR=alpha", "-x", "MASTER_PORT=29500"]),
        (MPICH, ["-genv", "MASTER_ADDR", "alpha", "-genv", "MASTER_PORT", "29500"]),
    ],
    ids=["Open MPI", "MPICH"],
)


@MPIRUN
@pytest.mark.sample
def test_mpiruns_ranks_on_two_hosts_do_what_one_process_does_and_write_once(tmp_path, mpirun_, where):
    wanted = alone(tmp_path / "alone", "trains")
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            prepared(host.folder, "trains")
        before = files(made[1].folder)
        done = mpirun(made, tmp_path, *mpirun_, *where, "-np", 4, *python("script.py"))
        assert done.returncode == 0, done.stderr
        compare_text(done.stdout, wanted)
        assert files(made[0].folder) == files(tmp_path / "alone")
        assert files(made[1].folder) == before


@MPIRUN
def test_mpiruns_ranks_on_two_hosts_are_told_to_say_where_rank_0_is(tmp_path, mpirun_, where):
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            (host.folder / "script.py").write_text(SUMS)
        done = mpirun(made, tmp_path, *mpirun_, "-np", 4, *python("script.py"), DDP_PATCH_TIMEOUT="5")
        assert done.returncode != 0
        assert "10.0" not in done.stdout
        assert "MASTER_ADDR" in done.stderr
        assert where[-1].replace("=", " ").split()[-1] in done.stderr  # the line to write


# --- hosts that differ ------------------------------------------------------------------------------------------------

OTHER_TORCH = """
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.99.0")
"""


def refused(made, own):
    """What each of four ranks says that ends with an error. No agent ends a rank that has not said it yet."""
    named = {"WORLD_SIZE": "4", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    places = [(number, 2 * number + local) for number in range(2) for local in range(2)]
    done = finished([made[n].start(*python("script.py"), **{**named, **own[n]}, RANK=str(rank)) for n, rank in places])
    assert [(it.returncode, it.stdout) for it in done] == [(1, "")] * 4, said(done)
    return [it.stderr.splitlines()[-1] for it in done]


@pytest.mark.parametrize("delay", [0.0, 0.3], ids=["", "slow link"])
@pytest.mark.parametrize("differs", ["the script", "torch", "ddp_patch"])
def test_hosts_that_run_something_else_are_named_by_every_rank(tmp_path, differs, delay):
    """Also where rank 0, which holds the store, knows long before the others."""
    with hosts(tmp_path, "alpha", "beta", delay=delay) as made:
        beta = made[1].folder
        for host in made:
            (host.folder / "script.py").write_text(SUMS)
        if differs == "the script":
            (beta / "script.py").write_text(SUMS + "# edited\n")
        elif differs == "torch":
            (beta / "sitecustomize.py").write_text(OTHER_TORCH)
        else:
            shutil.copytree(PACKAGE, beta / "ddp_patch", ignore=shutil.ignore_patterns("__pycache__"))
            (beta / "ddp_patch" / "version.py").write_text('__version__ = "0.0.9"\nOLDEST_TORCH = (2, 13)\n')
        for line in refused(made, own=({}, {"PYTHONPATH": "/mnt"})):
            words = rf"^ddp_patch\.errors\.LaunchError: The ranks do not run the same: {differs} \S+.* on alpha; {differs} \S+.* on beta\."
            assert re.search(words, line), line


CLOCKS = """
import datetime, os, time
import ddp_patch; ddp_patch.enable()
import numpy as np, torch
torch.manual_seed(int(time.time()))
np.random.seed(int(time.time()) % 2**31)
folder = "run " + datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
os.makedirs(folder)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(11, 3), batch_size=4, shuffle=True)
began = time.time()
for rows in loader:
    loss = (model(rows + np.random.rand()) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), f"{folder}/last.pt")
with open(f"{folder}/log.txt", "w") as log:
    log.write(f"{time.ctime()} {loss.item()}")
kept = torch.load(f"{folder}/last.pt")
print(len(kept), os.listdir(folder) != [], time.time() - began < 60)
"""
OTHER_CLOCK = """
import time
now = time.time
time.time = lambda: now() + 86400 * 400
time.time_ns = lambda: int(time.time() * 1e9)
"""


@pytest.mark.parametrize("shares", [True, False], ids=["one disk", "two disks"])
def test_clocks_may_differ(tmp_path, shares):
    """Seeds and names are of rank 0's clock; that of the other host is 400 days ahead."""
    with hosts(tmp_path, "alpha", "beta", shares=shares) as made:
        for host in made:
            (host.folder / "script.py").write_text(CLOCKS)
        (made[1].folder / "later").mkdir()
        (made[1].folder / "later" / "sitecustomize.py").write_text(OTHER_CLOCK)
        done = torchrun(made, "script.py", rendezvous="static", own=({}, {"PYTHONPATH": "/mnt/later"}))
        assert [it.returncode for it in done] == [0, 0], said(done)
        assert [it.stdout for it in done] == ["2 True True\n", ""]
        folders = [path for host in made for path in host.folder.glob("run *")]
        assert len(folders) == (2 if shares else 1)  # one, seen from both
        assert folders[0].name.startswith(f"run {datetime.date.today().year}")


# --- hosts that do not come -------------------------------------------------------------------------------------------


def by_hand(host, *ranks):
    """Start ranks of four, two on each host, as a recipe of one's own does: torchrun's agents wait for each other."""
    (host.folder / "script.py").write_text(SUMS)
    named = {"WORLD_SIZE": "4", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "DDP_PATCH_TIMEOUT": "10"}
    done = finished([host.start(*python("script.py"), **named, RANK=str(rank)) for rank in ranks])
    assert [it.returncode for it in done] == [1] * len(ranks), said(done)
    return [it.stderr.splitlines()[-1] for it in done]


@pytest.mark.sample
def test_hosts_that_come_name_the_ranks_that_do_not(tmp_path):
    with hosts(tmp_path, "alpha", "beta") as made:
        for line in by_hand(made[0], 0, 1):
            assert re.search(r"Rank [01] on alpha waited 10 seconds for ranks 2, 3, of 4, which did not come", line)


def test_hosts_that_come_say_where_rank_0_is_missing(tmp_path):
    with hosts(tmp_path, "alpha", "beta") as made:
        for line in by_hand(made[1], 2, 3):
            assert re.search(r"Rank [23] of 4, on beta, did not meet the others at 10\.77\.0\.1:29500", line)


def test_a_host_whose_script_fails_before_the_line_is_named(tmp_path):
    with hosts(tmp_path, "alpha", "beta") as made:
        (made[0].folder / "script.py").write_text(SUMS)
        (made[1].folder / "script.py").write_text("raise KeyError('no such variable')")
        done = torchrun(made, "script.py", rendezvous="static", DDP_PATCH_TIMEOUT="5")
        assert all(it.returncode for it in done), said(done)
        assert "waited 5 seconds for rank 1, of 2, which did not come to ddp_patch.enable()" in done[0].stderr


@pytest.mark.parametrize("missing", ["alpha", "beta"])
def test_torchruns_static_rendezvous_waits_for_hosts_as_long_as_it_is_told(tmp_path, missing):
    """As docs/launchers.md has it; ten minutes otherwise (torch 2.13)."""
    with hosts(tmp_path, "alpha", "beta") as made:
        for host in made:
            (host.folder / "script.py").write_text(SUMS)
        came = [None if host.name == missing else host for host in made]
        own = ["--rdzv-conf", "timeout=5"]
        (done,) = torchrun(came, "script.py", rendezvous="static", options=(own, own))
        assert (done.returncode, done.stdout) == (1, ""), said([done])
        words = {
            "alpha": r"timed out after 5000ms while trying to connect to \(10\.77\.0\.1, 29500\)",
            "beta": "1/2 clients joined",
        }
        assert re.search(words[missing], done.stderr), said([done])


@pytest.mark.parametrize("shares", [True, False], ids=["one disk", "two disks"])
@pytest.mark.parametrize(
    ("script", "each", "rendezvous"),
    [("trains", 1, "c10d"), ("trains", 2, "static"), ("reads", 1, "static"), ("reads", 2, "c10d")],
)
def test_hosts_do_what_one_process_does_and_write_once(tmp_path, script, each, rendezvous, shares):
    wanted = alone(tmp_path / "alone", script)
    with hosts(tmp_path, "alpha", "beta", shares=shares) as made:
        for number, host in enumerate(made):
            prepared(host.folder, script, of_the_run_before=number == 0 or shares)
        before = files(made[1].folder)
        done = torchrun(made, "script.py", each=each, rendezvous=rendezvous)
        assert [it.returncode for it in done] == [0, 0], said(done)
        compare_text(done[0].stdout, wanted)
        assert done[1].stdout == ""
        assert files(made[0].folder) == files(tmp_path / "alone")
        if not shares:
            assert files(made[1].folder) == before
