"""Nobody else gets in: what a job listens on, whose pickles it reads, and what becomes of what strangers send."""

import ast
import contextlib
import os
import pickle
import re
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import stranger
import torch
from conftest import PATIENCE
from test_launch import free_port

import ddp_patch
from ddp_patch.errors import LaunchError, OptionError, TrustError
from ddp_patch.job import loopback, plain_values, strangers
from ddp_patch.job.key import VARIABLE, Offer
from ddp_patch.job.seal import Seal

KEY = b"k" * 32


# --- the seal ---------------------------------------------------------------------------------------------------------

PLAIN = [
    *(None, True, 0, -(10**40), 0.1, -0.0, float("inf"), "text", "\ud800", b"\0bytes", 1 + 2j),
    *([], [1, [2]], (), (1, (2,)), {1, 2}, frozenset({"a"}), {1: {"b": (None,)}, (2, 3): b""}, torch.Size([2, 3])),
    *(torch.float16, Path("/a/b"), uuid.UUID(int=7), pickle.PicklingError("it"), np.float32(1.5), np.bool_(True)),
    *(OSError(2, "No such file", "a.pt"), KeyError("a"), SystemExit(3), TrustError("words"), UnicodeError("u")),
    *(subprocess.CalledProcessError(3, ["false"], b"out"), subprocess.CompletedProcess(["true"], 0, "out", None)),
]


@pytest.mark.parametrize("secret", [KEY, None], ids=["key", "plain"])
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_values_arrive_as_they_are(value, secret):
    seal = Seal(secret)
    came = seal.unpack("a", seal.pack("a", value))
    assert type(came) is type(value)
    assert repr(came) == repr(value)
    assert getattr(came, "__dict__", {}) == getattr(value, "__dict__", {})
    assert (getattr(came, "args", 0), getattr(came, "filename", 0)) == (
        getattr(value, "args", 0),
        getattr(value, "filename", 0),
    )


@pytest.mark.parametrize("secret", [KEY, None], ids=["key", "plain"])
def test_tensors_and_arrays_arrive_as_they_are(secret):
    seal = Seal(secret)
    dtypes = (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    tensors = [torch.arange(6).reshape(2, 3).t().to(dtype) for dtype in dtypes]
    tensors += [torch.empty(0, 4), torch.tensor(2.5), torch.tensor([1 + 2j]).conj()]
    for tensor, came in zip(tensors, seal.unpack("a", seal.pack("a", tensors)), strict=True):
        assert (came.dtype, came.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(came, tensor)
        came.zero_()  # its memory is its own
    arrays = [np.arange(6.0).reshape(2, 3).T, np.array([]), np.array("2026-11-23", "M8[D]"), np.array(["ab", "c"])]
    for array, came in zip(arrays, seal.unpack("a", seal.pack("a", arrays)), strict=True):
        assert (came.dtype, came.shape) == (array.dtype, array.shape)
        assert (came == array).all()
        assert came.flags.writeable


def test_where_a_file_is_and_when_it_was_written_arrives():
    found = os.stat(__file__)
    assert plain_values.loads(plain_values.dumps(found)) == found
    assert plain_values.loads(plain_values.dumps(found)).st_mtime_ns == found.st_mtime_ns


@pytest.mark.parametrize(
    "changed",
    [
        lambda told: told[:-1],
        lambda told: told[:31],
        lambda told: b"",
        lambda told: told + b"\0",
        lambda told: bytes([told[0] ^ 1]) + told[1:],
        lambda told: told[:-1] + bytes([told[-1] ^ 1]),
        lambda told: told[32:],
        lambda told: b"\0" * 32 + told[32:],
    ],
    ids=["cut", "in the code", "nothing", "longer", "another code", "another text", "without", "zeros"],
)
def test_what_was_changed_on_its_way_is_not_read(tmp_path, changed):
    seal, mark = Seal(KEY), tmp_path / "mark"
    told = seal.pack("a", stranger.Opens(mark))
    with pytest.raises(TrustError, match="of this job's ranks"):
        seal.unpack("a", changed(told))
    assert not mark.exists()
    seal.unpack("a", told)
    assert mark.exists()  # it would have been


def test_what_was_said_under_another_name_or_key_is_not_read(tmp_path):
    mark = tmp_path / "mark"
    told = Seal(KEY).pack("turn 1", stranger.Opens(mark))
    for seal, name in ((Seal(KEY), "turn 11"), (Seal(KEY), "turn "), (Seal(b"o" * 32), "turn 1"), (Seal(), "turn 1")):
        with pytest.raises(TrustError, match=r"turn .*: what came .*\(openssl rand -hex 32"):
            seal.unpack(name, told)
    assert not mark.exists()


def test_without_a_key_no_pickle_is_read_or_written(tmp_path):
    mark, seal = tmp_path / "mark", Seal()
    for told in (pickle.dumps(stranger.Opens(mark)), b"\0" * 32 + pickle.dumps(stranger.Opens(mark)), b"{}", b""):
        with pytest.raises(TrustError, match="not of this job's ranks"):
            seal.unpack("a", told)
    with pytest.raises(TrustError, match=rf"a: .*Opens travels as a pickle.* export {VARIABLE}=\$\(openssl"):
        seal.pack("a", [stranger.Opens(mark)])
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        '["error", "Opens", ["list"]]',
        '["error", "__import__", ["list", "os"]]',
        '["mkdir", "mark"]',
        '["tensor", "torch.float32", ["list", 4000000000, 4000000000], "cpu", [0, 4]]',
        '["tensor", "torch.float32", ["list", 2], "cpu", [-8, 8]]',
        '["array", "|O", ["list", 1], [0, 8]]',
        '["bytes", [0, 9]]',
        '{"a": 1}',
        "[]",
        "[" * 100_000,
        '["dict", 1]',
        '["list", ["nothing"]]',
    ],
)
def test_a_text_that_no_rank_wrote_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="are no value"):
        plain_values.loads(len(text).to_bytes(8, "little") + text.encode() + b"\0" * 8)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_said_plainly_is_named():
    loop = []
    loop.append(loop)
    for value in (object(), loop, np.array([object()]), lambda: 0, torch.nn.Parameter(torch.ones(1))):
        with pytest.raises(plain_values.NotPlainError):
            plain_values.dumps(value)


class FromALibrary(Exception):
    """Nobody knows it."""


def test_errors_of_libraries_are_raised_everywhere_or_refused():
    assert type(Seal(KEY).portable_error("a", FromALibrary("words"))) is FromALibrary
    assert type(Seal().portable_error("a", ValueError("words"))) is ValueError
    refused = Seal().portable_error("a", FromALibrary("words"))
    assert isinstance(refused, TrustError)
    assert "FromALibrary (words) travels as a pickle" in str(refused)


# --- the key ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def agreed(offers, told=None):
    return [offer.agreed(told or [its.message for its in offers]) for offer in offers]


def test_ranks_of_one_host_find_the_key_that_rank_0_holds():
    offers = [Offer(rank) for rank in range(3)]
    keys = agreed(offers)
    assert keys[0] == keys[1] == keys[2]
    assert len(keys[0]) == 32
    with open(offers[0].message["memory"], "rb") as held:
        assert held.read().hex() not in str([offer.message for offer in offers])
    for offer in offers:
        offer.close()
    assert not os.path.exists(offers[0].message["memory"])


def test_a_key_of_the_user_is_taken_out_of_the_environment_and_told_to_nobody(monkeypatch):
    offers = []
    for rank in range(2):
        monkeypatch.setenv(VARIABLE, "a" * 40)
        offers.append(Offer(rank))
        assert VARIABLE not in os.environ
    first, second = agreed(offers)
    assert first == second
    assert "a" * 32 not in str([offer.message for offer in offers])
    assert not any(offer.message["memory"] for offer in offers)


def test_every_run_has_a_key_of_its_own(monkeypatch):
    keys = set()
    for _ in range(2):
        monkeypatch.setenv(VARIABLE, "a" * 40)
        keys.update(agreed([Offer(0)]))
    assert len(keys) == 2


@pytest.fixture
def holder():
    """Rank 0, which holds a key."""
    offer = Offer(0)
    yield offer
    offer.close()


def test_ranks_of_several_hosts_without_a_key_have_none(holder):
    other = Offer(1)
    assert agreed([holder, other], [holder.message, {**other.message, "host": "another"}]) == [None, None]
    assert agreed([holder, other], [holder.message, {**other.message, "host": ""}]) == [None, None]
    assert agreed([holder], [{}]) == [None]  # as a stranger may have it


def test_the_store_cannot_name_what_somebody_else_wrote(holder, tmp_path, monkeypatch):
    (tmp_path / "known").write_text("x" * 64)
    with open(tmp_path / "known") as known:
        memory = os.memfd_create("another")
        os.write(memory, b"x" * 64)
        own = f"/proc/{os.getpid()}/fd"
        for path in (str(tmp_path / "known"), "", f"{own}/{known.fileno()}", f"{own}/{memory}", f"{own}/../../x"):
            assert holder.agreed([{**holder.message, "memory": path}]) is None
        os.close(memory)
    with pytest.raises(LaunchError, match="cannot be read"):
        holder.agreed([{**holder.message, "memory": f"{own}/{1 << 20}"}])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    assert ended.wait() == 0
    with pytest.raises(LaunchError, match="Rank 0, which holds the key of the job, ended within"):
        holder.agreed([{**holder.message, "memory": f"/proc/{ended.pid}/fd/3"}])
    assert holder.agreed([holder.message]) is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert holder.agreed([holder.message]) is None


def test_ranks_with_different_keys_say_so(monkeypatch):
    told = []
    for value in ("a" * 32, "b" * 32, ""):
        monkeypatch.setenv(VARIABLE, value)
        told.append(Offer(1))
    a, b, none = told
    for offers, words in (([a, b], "another"), ([a, none], "no"), ([none, a], "a")):
        for offer in offers:
            with pytest.raises(LaunchError, match=f"Rank 1 has {words} {VARIABLE}, unlike rank 0.*openssl"):
                offer.agreed([its.message for its in offers])


def test_a_key_that_could_be_guessed_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "secret")
    with pytest.raises(OptionError, match="has 6 characters, and could be guessed"):
        Offer(0)


# --- sockets ----------------------------------------------------------------------------------------------------------


def test_names_of_loopback_are_known():
    assert loopback.of_name("127.0.0.1") == "127.0.0.1"
    assert loopback.of_name("::1") == "::1"
    assert loopback.of_name("localhost") == "127.0.0.1"
    for name in ("0.0.0.0", "192.0.2.1", "node0"):
        assert loopback.of_name(name) is None


def test_a_hosts_own_name_is_not_loopback_though_it_may_stand_for_such_an_address(monkeypatch):
    """As in Debian's ``/etc/hosts``: the other hosts come to its network's address."""
    own = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: own)
    assert loopback.of_name("node0") is None


def test_ranks_of_one_host_connect_by_loopback_unless_an_interface_was_chosen(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    with loopback.sockets({"a"}):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    with loopback.sockets({"a", "b"}):
        assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_a_store_that_listens_on_loopback_can_be_asked_for_again():
    """As by a script that distributes itself, where ddp_patch stands aside."""
    store, port = loopback.listening_store()
    again = torch.distributed.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, multi_tenant=True)
    store.set("a", "1")
    assert again.get("a") == b"1"


def test_another_users_process_at_the_end_of_a_socket_is_refused(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        strangers.refuse_strangers(ours)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(TrustError, match="and not one of user 12345"):
            strangers.refuse_strangers(ours)


# --- a job, and strangers ---------------------------------------------------------------------------------------------

TRAIN = """
import os
import subprocess

import torch
from torch import nn

import ddp_patch

ddp_patch.enable(nproc=2, timeout=60)
torch.manual_seed(0)
model = nn.Linear(4, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 4).double(), torch.randn(24, 2).double())
for epoch in range(12):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=epoch % 2):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    assert subprocess.check_output(["echo", "a"], text=True) == "a\\n"
    print(epoch, f"{loss.item():.12f}", sorted(os.listdir(".")), flush=True)
    if epoch == 1:
        open("trains", "w").close()
"""


PYTHON = ["train.py"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]


def start(folder, *command, script=TRAIN, **variables):
    """Start a process of a job."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDP_PATCH_")}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**environ, "OMP_NUM_THREADS": "1", "DDP_PATCH_QUIET": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def ended(*processes):
    """Surround processes, of which none is left."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()  # and the system its ranks, with it
            process.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the job prints on one process."""
    alone = start(tmp_path_factory.mktemp("alone"), "train.py", script=TRAIN.replace("nproc=2", "nproc=1"))
    out, error = alone.communicate(timeout=PATIENCE)
    assert alone.returncode == 0, error
    return out


def listened(processes):
    """All that a job listens on until it ends."""
    end, seen = time.monotonic() + PATIENCE, set()
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        seen |= stranger.listening(each for process in processes for each in stranger.tree(process.pid))
        time.sleep(0.02)
    return seen


@pytest.mark.slow
def test_a_job_of_one_host_listens_on_loopback_alone(tmp_path):
    with ended(start(tmp_path, *PYTHON)) as (job,):
        seen = listened([job])
        assert job.returncode == 0, job.stderr.read()
    assert len(seen) >= 3  # the store, and gloo's of each rank
    assert {address for address, _ in seen} == {"127.0.0.1"}


@pytest.mark.slow
@pytest.mark.some("mpirun")
@pytest.mark.parametrize("launcher", ["hand", "mpirun"])
def test_ranks_of_one_host_that_others_started_listen_on_loopback_alone(tmp_path, launcher):
    met = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    named = {"hand": [{**met, "RANK": str(rank)} for rank in range(2)]}
    its = "OMPI_COMM_WORLD_"
    named["mpirun"] = [
        {f"{its}SIZE": "2", f"{its}LOCAL_SIZE": "2", f"{its}RANK": str(rank), f"{its}LOCAL_RANK": str(rank)}
        for rank in range(2)
    ]
    job = [start(tmp_path, *PYTHON, **variables) for variables in named[launcher]]
    with ended(*job):
        seen = listened(job)
        assert [rank.returncode for rank in job] == [0, 0], [rank.stderr.read() for rank in job]
    assert len(seen) >= 3
    assert {address for address, _ in seen} == {"127.0.0.1"}


@pytest.mark.slow
def test_the_key_of_a_job_is_in_no_command_line_and_in_no_child_of_the_script(tmp_path):
    script = TRAIN.replace('["echo", "a"]', '["sh", "-c", "env | grep -c DDP_PATCH_KEY >> count; echo a"]')
    with ended(start(tmp_path, *PYTHON, script=script)) as (job,):
        lines = set()
        while job.poll() is None:
            for pid in stranger.tree(job.pid):
                with contextlib.suppress(OSError):
                    lines.add(Path(f"/proc/{pid}/cmdline").read_text())
            time.sleep(0.05)
        assert job.returncode == 0, job.stderr.read()
    assert any("train.py" in line for line in lines)
    assert not any(re.search("[0-9a-f]{64}", line) for line in lines)
    assert set((tmp_path / "count").read_text().split()) == {"0"}


def beside(job, folder, what):
    """Run a stranger beside a job until it ends; how often it wrote, and what the job said."""
    mark, over = folder.parent / "mark", folder.parent / "over"
    command = [sys.executable, stranger.__file__, str(job.pid), str(mark), str(over), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            out, error = job.communicate(timeout=PATIENCE)
        finally:
            over.touch()
        did = int(other.communicate(timeout=PATIENCE)[0])
    assert not mark.exists()
    if (folder / "model.pt").exists():
        torch.load(folder / "model.pt")
    return did, out, error


# Of torchrun's own store see docs/security.md: it looks the names of strangers up, and answers nobody meanwhile.
@pytest.mark.slow
@pytest.mark.some("torchrun")
@pytest.mark.parametrize(
    ("command", "what"), [(PYTHON, "noise"), (TORCHRUN, "noise to ranks")], ids=["python", "torchrun"]
)
def test_noise_on_every_port_changes_nothing(tmp_path, undisturbed, command, what):
    folder = tmp_path / "job"
    with ended(start(folder, *command)) as (job,):
        sent, out, error = beside(job, folder, what)
    assert sent > 100
    assert job.returncode == 0, error
    assert out == undisturbed
    assert (folder / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.some("torchrun")
@pytest.mark.parametrize("command", [PYTHON, TORCHRUN], ids=["python", "torchrun"])
def test_an_answer_that_a_stranger_wrote_is_refused(tmp_path, command):
    folder = tmp_path / "job"
    with ended(start(folder, *command)) as (job,):
        written, _, error = beside(job, folder, "ahead")
    assert written >= 399
    assert job.returncode != 0
    assert re.search(r"TrustError: effect \d+ of session 1: what came is not of this job's ranks", error), error


@pytest.mark.slow
@pytest.mark.some("effect", "seen")
@pytest.mark.parametrize("which", ["ddp_patch", "effect", "lengths", "place", "seen"])
def test_a_job_whose_store_a_stranger_writes_to_goes_on_or_ends_with_an_error(tmp_path, undisturbed, which):
    folder = tmp_path / "job"
    with ended(start(folder, *PYTHON)) as (job,):
        written, out, error = beside(job, folder, which)
    assert written > 0
    assert undisturbed.startswith(out)
    assert (job.returncode == 0) == (out == undisturbed), error
    assert not job.returncode or "Error" in error


# --- several hosts ----------------------------------------------------------------------------------------------------

# Each rank takes the others for ranks of other hosts.
ELSEWHERE = "import os\n\nfrom ddp_patch.job import hosts\n\nhosts.host = lambda: str(os.getpid())\n"
SAMPLES = """
import torch

import ddp_patch


class Sample:
    def __init__(self, row):
        self.row = row


ddp_patch.enable(nproc=2, timeout=60)
data = [Sample(torch.full((2,), float(n))) for n in range(8)]
loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=lambda rows: torch.stack([s.row for s in rows]))
for batch in ddp_patch.shard_batch(loader):
    print(batch.sum().item())
"""


@pytest.mark.long
def test_a_common_script_needs_no_key(tmp_path, undisturbed):
    with ended(start(tmp_path, *TORCHRUN, script=ELSEWHERE + TRAIN)) as (job,):
        out, error = job.communicate(timeout=PATIENCE)
    assert (job.returncode, out) == (0, undisturbed), error


@pytest.mark.some("[key]")
@pytest.mark.parametrize("secret", ["", "0123456789abcdef" * 2], ids=["no key", "key"])
def test_what_only_pickles_needs_a_key_and_says_so(tmp_path, secret):
    with ended(start(tmp_path, *TORCHRUN, script=ELSEWHERE + SAMPLES, DDP_PATCH_KEY=secret)) as (job,):
        out, error = job.communicate(timeout=PATIENCE)
    if secret:
        assert (job.returncode, out) == (0, "12.0\n44.0\n"), error
    else:
        assert job.returncode != 0
        assert "TrustError: what the ranks share, number " in error
        assert "__main__.Sample travels as a pickle, and these ranks have no key" in error
        assert "export DDP_PATCH_KEY=$(openssl rand -hex 32)" in error


# --- one door ---------------------------------------------------------------------------------------------------------

DOORS = {
    "job/seal.py": "of ranks, with a code",
    "loading/pickling.py": "by a Unix socket, whose other end is of this user (job/strangers.py)",
    "portable.py": "of this very process",
    "remote/logs.py": "in a parcel, which is in a folder of this user's own",
    "remote/parcel.py": "in a folder of this user's own",
    "remote/rank.py": "in a folder of this user's own",
    "verify/pickles.py": "files of the script, by a table of classes",
    "verify/inside/double.py": "of this very process",
    "verify/observed.py": "weights only",
}
READS = {"loads", "load", "Unpickler"}
TELLS = ("_object", "_object_list")


@pytest.mark.slow
def test_pickles_are_read_at_few_doors():
    package, found = Path(ddp_patch.__file__).parent, set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                reads = owner in ("pickle", "cloudpickle", "torch", "marshal", "shelve") and node.attr in READS
                if reads or (owner in ("dist", "torch.distributed") and node.attr.endswith(TELLS)):
                    found.add(str(path.relative_to(package)))
    assert found == DOORS.keys()
