"""Migrated scripts run on two ranks, and learn what one process learns."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from conftest import PATIENCE, THOROUGH
from parity.test_scripts import compare_text
from test_migrate import HAND_MADE, LEGACY

from ddp_patch.migrate.rewrite import rewrite

CLOSE = 0.02  # of a loss, per epoch
SHORT = ("digits_dataparallel.py", "trainer_class.py")  # by default
# Scripts whose loss depends on draws for rows: another seed, alone, changes it as much.
DRAWS = {
    "cnn_mixup.py": "mixup's coefficients",
    "weighted_sampler.py": "the sampler",
    "tensorboard_vae.py": "the noise of the VAE",
}
_LOSS = re.compile(r"loss[_=: a-zA-Z]*?([\d.]+\d)", re.IGNORECASE)


def cases(names):
    return [pytest.param(p, id=p.stem) for p in LEGACY if THOROUGH or p.name in names]


class Launcher:
    """Scripts alone and on ranks, with torch imported already."""

    def __init__(self, folder):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
        for name in [n for n in environ if n.startswith(("DDP_PATCH_", "ACCELERATE_"))]:
            del environ[name]
        script = Path(__file__).parent / "migrate" / "launcher.py"
        self._process = subprocess.Popen([sys.executable, str(script)], stdin=-1, stdout=-1, text=True, env=environ)
        assert self._process.stdout.readline() == "ready\n"
        self._folder, self._count, self._alone = folder, 0, {}

    def run(self, text, name, nproc):
        return self.run_folder({name: text}, name, nproc)

    def run_folder(self, texts, name, nproc):
        self._count += 1
        folder = self._folder / f"{self._count}"
        for part in ("logs", "work"):
            (folder / part).mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
        request = {
            "script": str(folder / name), "nproc": nproc, "cwd": str(folder / "work"), "logs": str(folder / "logs"),
            "args": ["--no-shuffle"] if "--no-shuffle" in texts[name] else [], "env": {"FIXED_ORDER": "1"}, "through": "",
            "timeout": PATIENCE,
        }  # fmt: skip
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())["codes"]
        said = [(folder / "logs" / f"err.{rank}").read_text() for rank in range(nproc)]
        assert not any(codes), "\n".join([str(codes), *said])
        out = [(folder / "logs" / f"out.{rank}").read_text() for rank in range(nproc)]
        files = {str(p.relative_to(folder / "work")) for p in (folder / "work").rglob("*") if p.is_file()}
        return out, {name for name in files if "tfevents" not in name}

    def alone(self, path):
        if path not in self._alone:
            out, files = self.run(path.read_text(), path.name, 1)
            self._alone[path] = out[0], files
        return self._alone[path]

    def end(self):
        self._process.stdin.close()
        self._process.wait(timeout=PATIENCE)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    started = Launcher(tmp_path_factory.mktemp("migrate"))
    yield started
    started.end()


def losses(text):
    """List the losses of epochs, not of steps: a step's may be near zero."""
    lines = (line for line in text.splitlines() if re.search(r"epoch|test|average", line, re.IGNORECASE))
    return [float(number) for line in lines for number in _LOSS.findall(line)]


@pytest.mark.slow
@pytest.mark.some("ddp-trainer")
@pytest.mark.collection
@pytest.mark.parametrize("path", cases(SHORT))
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_two_ranks_reach_the_loss_of_one_process(launcher, path, target):
    wanted, files = launcher.alone(path)
    out, written = launcher.run(rewrite(path.read_text(), target, path.name), path.name, 2)
    if target == "accelerate" or path.name != HAND_MADE:
        assert out[1] == ""  # one rank prints
    assert written == files
    assert len(losses(out[0])) == len(losses(wanted)) > 0
    if path.name not in DRAWS:
        assert losses(out[0]) == pytest.approx(losses(wanted), rel=CLOSE)


@pytest.mark.slow
@pytest.mark.collection
@pytest.mark.parametrize("path", cases(("ddp_by_hand.py",)))
def test_with_the_line_two_ranks_print_what_one_process_prints(launcher, path):
    wanted, files = launcher.alone(path)
    out, written = launcher.run(rewrite(path.read_text(), "patch", path.name), path.name, 2)
    assert out[1] == ""
    assert written == files
    if path.name == "tensorboard_vae.py":  # draws noise for rows
        assert losses(out[0]) == pytest.approx(losses(wanted), rel=CLOSE)
    else:
        compare_text(out[0], wanted, precision=1e-4)


@pytest.mark.slow
@pytest.mark.collection
@pytest.mark.parametrize("path", cases(("digits_dataparallel.py",)))
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_there_and_back_prints_what_the_original_prints(launcher, path, target):
    wanted, files = launcher.alone(path)
    back = rewrite(rewrite(path.read_text(), target, path.name), "patch", path.name)
    out, written = launcher.run(back, path.name, 1)
    assert out[0] == wanted
    assert written == files


@pytest.mark.collection
@pytest.mark.skipif(not THOROUGH, reason="set THOROUGH=1")
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("target", ["ddp", "accelerate"])
def test_where_only_draws_differ_another_seed_differs_as_much(launcher, name, target):
    path = LEGACY[0].parent / name
    wanted, _ = launcher.alone(path)
    other = re.sub(r"(manual_seed\(|np\.random\.seed\()([\w.]+)\)", r"\g<1>\2 + 5)", path.read_text())
    spread = [abs(a - b) for a, b in zip(losses(launcher.run(other, name, 1)[0][0]), losses(wanted), strict=True)]
    on_two, _ = launcher.run(rewrite(path.read_text(), target, name), name, 2)
    assert max(abs(a - b) for a, b in zip(losses(on_two[0]), losses(wanted), strict=True)) < 3 * max(spread)


@pytest.mark.slow
@pytest.mark.some("torchrun")
@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("ddp", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
        (
            "accelerate",
            ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
             "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
        ),
    ],
    ids=["torchrun", "accelerate launch"],
)  # fmt: skip
def test_a_real_launcher_starts_it(launcher, tmp_path, target, command):
    path = LEGACY[0].parent / "accumulation.py"
    (tmp_path / path.name).write_text(rewrite(path.read_text(), target, path.name))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, path.name, "--no-shuffle"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(losses(launcher.alone(path)[0]), rel=CLOSE)
