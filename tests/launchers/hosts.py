"""Hosts on this machine: namespaces with a name, interfaces, processes and a folder of their own, joined by cables.

The first process of each waits for this one to end, and all others of its host end with it, whatever becomes of the
tests: nothing of it has a name that could be left behind.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conftest import PATIENCE
from launchers.together import environment

FOLDER = Path("/mnt")  # of each host: its own, or one that all share
MOST = 200_000  # characters of what a host says, in a failure
AGENT = """#!/bin/sh
# What mpirun starts its helper on another host by, as it would rsh: agent HOST COMMAND ...
while [ "$1" != alpha ] && [ "$1" != beta ]; do shift; done
host=$1
shift
exec nsenter --target $(cat {pids}/$host) --all env --chdir={folder} TMPDIR={folder}/tmp HOME={folder}/home sh -c "$*"
"""
SET_UP = f"""
mount --make-rprivate /
mount --bind "$1" {FOLDER}
mount -t tmpfs none /dev/shm
mkdir -p {FOLDER}/tmp {FOLDER}/home
hostname "$2"
if [ "$3" ]; then mount --bind "$3" /etc/hosts; fi
ip link set lo up
echo ready
exec cat
"""


class Host:
    """One of them."""

    def __init__(self, name, folder, names):
        """Begin it.

        Args:
            name: of the host.
            folder: where the tests find its files.
            names: what it has in place of /etc/hosts.
        """
        self.name, self.folder = name, folder
        parts = ("net", "uts", "ipc", "mount", "pid")
        self._first = subprocess.Popen(
            [
                *("unshare", *(f"--{part}" for part in parts), "--fork", "--kill-child", "--mount-proc"),
                *("bash", "-euc", SET_UP, "bash", str(folder), name, str(names)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._first.stdout.readline() != "ready\n":
            said = self._first.communicate()[1]
            raise RuntimeError(
                f"No hosts could be made on this machine, for which it takes root with CAP_SYS_ADMIN and CAP_NET_ADMIN, "
                f"util-linux and iproute2: {said.strip()}"
            )
        self.pid = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()[0]

    def start(self, *command, **env):
        """Start a command there; its output is read by ``finished``."""
        said = [tempfile.TemporaryFile("w+") for _ in range(2)]
        environ = {**environment(), "TMPDIR": f"{FOLDER}/tmp", "HOME": f"{FOLDER}/home", **env}
        started = subprocess.Popen(
            ["nsenter", "--target", self.pid, "--all", "env", f"--chdir={FOLDER}", *map(str, command)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said[0],
            stderr=said[1],
            text=True,
        )
        started.said = said
        return started

    def run(self, *command, **env):
        return finished([self.start(*command, **env)])[0]

    def end(self):
        self._first.stdin.close()
        self._first.wait(PATIENCE)
        self._first.stdout.close()
        self._first.stderr.close()


@contextlib.contextmanager
def hosts(tmp_path, *names, shares=False, known="each other", addresses="10.77.{cable}.{host}", cables=1, delay=0.0):
    """Give two hosts, with an interface for each cable: net0, net1, ... of addresses 10.77.0.1 and 10.77.0.2, ...

    Args:
        tmp_path: of the test.
        names: of the hosts.
        shares: they have one folder, on one disk.
        known: what the hosts know by name: "each other"; "Debian's", each itself as 127.0.1.1; "nobody", not themselves.
        addresses: of the interfaces.
        cables: that join them.
        delay: seconds that each frame takes.
    """
    made, ends = [], []
    try:
        for number, name in enumerate(names, 1):
            folder = tmp_path / ("shared" if shares else name)
            folder.mkdir(exist_ok=True)
            table = tmp_path / f"names of {name}"
            table.write_text(_names(names, number, known, addresses))
            made.append(Host(name, folder, table))
        for cable in range(cables):
            ends += _slow(made, f"net{cable}", delay) if delay else _join(made, f"net{cable}")
            for number, host in enumerate(made, 1):
                length = ["/64", "nodad"] if ":" in addresses else ["/24"]
                address = addresses.format(cable=cable, host=number) + length[0]
                assert host.run("ip", "address", "add", address, "dev", f"net{cable}", *length[1:]).returncode == 0
                assert host.run("ip", "link", "set", f"net{cable}", "up").returncode == 0
        yield made
    finally:
        for host in made:
            host.end()
        for end in ends:
            end.wait(PATIENCE)
            end.stdout.close()


def _names(names, own, known, addresses):
    lines = ["127.0.0.1 localhost"]
    for number, name in enumerate(names, 1):
        if known == "each other" or (known == "Debian's" and number != own):
            lines.append(f"{addresses.format(cable=0, host=number)} {name}")
        elif known == "Debian's":
            lines.append(f"127.0.1.1 {name}")
    return "\n".join(lines) + "\n"


def finished(started, patience=PATIENCE):
    """Wait for what was started on hosts, together; what hangs is ended and fails."""
    end = time.monotonic() + patience
    done, late = [], False
    for process in started:
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
        texts = []
        for stream in process.said:
            stream.seek(0)
            texts.append(stream.read()[-MOST:])
            stream.close()
        done.append(subprocess.CompletedProcess(process.args, process.returncode, *texts))
    assert not late, "hosts hung:\n" + said(done)
    return done


def said(done):
    return "\n".join(
        f"--- host {number}, code {it.returncode}\n{it.stdout}{it.stderr}" for number, it in enumerate(done)
    )


def _join(made, name):
    first, second = (host.pid for host in made)
    pair = ["link", "add", name, "netns", first, "type", "veth", "peer", "name", name, "netns", second]
    subprocess.run(["ip", *pair], check=True, capture_output=True, text=True)
    return []


def _slow(made, name, delay):
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    started = []
    for host, end in zip(made, ends, strict=True):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        command = [sys.executable, Path(__file__).with_name("slow_cable.py"), name, delay, end.fileno()]
        started.append(
            subprocess.Popen(
                ["nsenter", "--target", host.pid, "--all", *map(str, command)],
                pass_fds=[end.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert started[-1].stdout.readline() == "ready\n"
    for end in ends:
        end.close()
    return started


def torchrun(made, *script, each=1, rendezvous="c10d", at="10.77.0.1:29500", options=((), ()), own=({}, {}), **env):
    """Start torchrun on every host, and give what was done on each once all have ended.

    Args:
        made: the hosts; one that is left out does not come.
        script: and its arguments.
        each: ranks on each host.
        rendezvous: torchrun's backend, or "static".
        at: which address and port.
        options: of torchrun, for each host.
        own: variables of each host.
        env: variables of both.
    """
    address, _, port = at.rpartition(":")
    started = []
    for number, host in enumerate(made):
        if host is None:
            continue
        where = ["--rdzv-backend", rendezvous, "--rdzv-endpoint", at, "--rdzv-id", "trial"]
        if rendezvous == "static":
            where = ["--master-addr", address.strip("[]"), "--master-port", port, "--node-rank", number]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", len(made), "--nproc-per-node", each]
        started.append(host.start(*command, *where, *options[number], *script, **{**env, **own[number]}))
    return finished(started)


def mpirun(made, folder, *command, **env):
    """Start mpirun in the network of the first host, and its ranks on all, with what each kind of mpirun writes for it."""
    pids = folder / "pids"
    pids.mkdir()
    for host in made:
        (pids / host.name).write_text(host.pid)
    agent = folder / "agent"
    agent.write_text(AGENT.format(pids=pids, folder=FOLDER))
    agent.chmod(0o755)
    command = [str(agent) if part == "AGENT" else str(part) for part in command]
    return subprocess.run(
        ["nsenter", "--target", made[0].pid, "--net", *command],
        cwd=FOLDER,
        env={**environment(), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
