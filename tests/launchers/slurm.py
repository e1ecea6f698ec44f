"""SLURM on this host alone: a controller, a node and munge of our own, in a folder that is thrown away."""

import contextlib
import os
import socket
import subprocess
import time

CONF = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PATIENCE = 60  # seconds


@contextlib.contextmanager
def cluster(folder):
    """Give the path of its configuration, for SLURM_CONF."""
    conf = folder / "slurm.conf"
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("", 0))).getsockname()[1] for _ in range(2)]
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, ports=ports))
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={key}"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    daemons = []
    try:
        for number, command in enumerate((munge, ["slurmctld", "-D"], ["slurmd", "-D"])):
            with (folder / f"said.{number}").open("w") as said:
                daemons.append(subprocess.Popen(command, env=environ, stdout=said, stderr=said, start_new_session=True))
            if command is munge:
                _until(lambda: (folder / "munge.sock").exists())
        _until(
            lambda: "idle" in subprocess.run(["sinfo"], env=environ, capture_output=True, text=True, check=False).stdout
        )
        yield str(conf)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _until(holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "SLURM does not start"
        time.sleep(0.1)
