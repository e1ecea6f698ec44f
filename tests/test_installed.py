"""Which files are a package's, wherever it is installed."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from conftest import PATIENCE

from ddp_patch import installed
from ddp_patch.calling.scripts_code import is_scripts_file
from ddp_patch.effects import callers


@pytest.fixture(autouse=True)
def _forgets():
    yield
    for function in (installed.is_installed, installed._others, installed._packages_in, is_scripts_file):
        function.cache_clear()


def install(folder, *, record="some/__init__.py,sha256=a,1\none.py,,\n../../bin/some,,\nsome-1.0.dist-info/RECORD,,\n"):
    (folder / "some-1.0.dist-info").mkdir(parents=True)
    if record:
        (folder / "some-1.0.dist-info" / "RECORD").write_text(record)


def test_packages_of_a_folder_that_pip_was_told(tmp_path, monkeypatch):
    install(tmp_path / "target")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "target"), *sys.path])
    for name in ("some/module.py", "some/__init__.py", "one.py"):
        assert installed.is_installed(str(tmp_path / "target" / name))
        assert not is_scripts_file(str(tmp_path / "target" / name))
    for name in ("target/train.py", "target/something.py", "target2/some/module.py", "bin/some"):
        assert is_scripts_file(str(tmp_path / name))


def test_a_project_that_is_worked_on_is_its_authors(tmp_path, monkeypatch):
    install(tmp_path, record="")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(tmp_path / "a.zip"), str(tmp_path / "none")])
    assert is_scripts_file(str(tmp_path / "some" / "module.py"))


def test_torch_is_a_package_where_its_source_is(monkeypatch):
    monkeypatch.setattr(torch, "__file__", "/home/a/pytorch/torch/__init__.py")
    installed._others.cache_clear()
    assert installed.is_installed("/home/a/pytorch/torch/nn/functional.py")
    assert not installed.is_installed("/home/a/pytorch/train.py")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_the_usual_folders(folder):
    assert installed.is_installed(f"/venv/lib/python3.11/{folder}/some/module.py")
    assert not installed.is_installed(f"/home/a/my_{folder}/module.py")


@pytest.mark.long
def test_a_script_beside_what_was_installed_there_acts_once(tmp_path):
    install(tmp_path / "app")
    (tmp_path / "app" / "some").mkdir()
    (tmp_path / "app" / "some" / "__init__.py").write_text("")
    (tmp_path / "app" / "scripts").mkdir()
    script = tmp_path / "app" / "scripts" / "train.py"
    script.write_text(
        "import ddp_patch; ddp_patch.enable(nproc=2)\nimport subprocess, some\n"
        f"subprocess.run('echo ran >> {tmp_path}/ran.txt', shell=True)\n"
    )
    subprocess.run(
        [sys.executable, script], cwd="/", env={"PYTHONPATH": str(tmp_path / "app"), "OMP_NUM_THREADS": "1"}, check=True
    )
    assert (tmp_path / "ran.txt").read_text() == "ran\n"


PROJECT = """
import os, subprocess, tempfile, threading
import ddp_patch
ddp_patch.enable(nproc=2)
import other


def main():
    subprocess.run("echo ran >> ran.txt", shell=True)
    with open("log.txt", "a") as log:
        log.write("a\\n")
    folder = f"{tempfile.gettempdir()}/results-{os.path.basename(os.getcwd())}.txt"
    with open(folder, "a") as results:
        results.write("b\\n")
    print(len(open(folder).read()), other.ask().strip())
    os.remove(folder)
"""
COMMAND = """#!python
import sys
from {package}.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


def environment(folder, commands):
    """Make one in which a project and what it needs are installed, and give its Python and its packages."""
    packages = folder / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    (folder / "env" / "bin" / "python").symlink_to(sys.executable)
    for package in ("mytrain", "other"):
        (packages / package).mkdir(parents=True)
        (packages / package / "__init__.py").write_text("")
        (packages / f"{package}-1.0.dist-info").mkdir()
        (packages / f"{package}-1.0.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
    (packages / "other" / "__init__.py").write_text(
        "import subprocess\ndef ask():\n    return subprocess.check_output('echo x | tee -a asked.txt', shell=True, text=True)\n"
    )
    (packages / "mytrain" / "main.py").write_text(PROJECT)
    (packages / "mytrain-1.0.dist-info" / "entry_points.txt").write_text(
        "[console_scripts]\n" + "".join(f"{name} = mytrain.main:main\n" for name in commands)
    )
    (folder / "env" / "bin" / "train-it").write_text(COMMAND.format(package="mytrain"))
    return folder / "env" / "bin", packages


@pytest.mark.slow
@pytest.mark.some("as it is")
@pytest.mark.skipif(not (Path(sys.prefix) / "pyvenv.cfg").exists(), reason="not in a virtual environment")
@pytest.mark.parametrize("by_name", [True, False], ids=["as it is", "by a link"])
def test_a_project_that_is_started_by_its_command_acts_once(tmp_path, by_name):
    commands, _ = environment(tmp_path, ["other-one", "train-it"])
    command = commands / "train-it"
    if not by_name:
        command = tmp_path / "train-it"
        command.symlink_to(commands / "train-it")
    (tmp_path / "run").mkdir()
    path = os.pathsep.join([str(Path(__file__).parent.parent), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [commands / "python", command],
        cwd=tmp_path / "run",
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 x\n"
    found = {name.name: name.read_text() for name in (tmp_path / "run").iterdir()}
    assert found == {"ran.txt": "ran\n", "log.txt": "a\n", "asked.txt": "x\nx\n"}  # a library asks for each rank


def test_what_is_no_command_of_a_package_names_none(tmp_path, monkeypatch):
    for file in ("", __file__, str(tmp_path / "torchrun"), str(Path(sys.executable).with_name("nothing"))):
        assert callers._package_of(file) == ""
    assert callers._package_of(str(Path(sys.executable).with_name("torchrun"))) == "torch"
