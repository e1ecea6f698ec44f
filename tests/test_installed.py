"""Which files are a package's, wherever it is installed."""

import subprocess
import sys

import pytest
import torch

from ddp_patch import installed
from ddp_patch.calling.own import is_own_file


@pytest.fixture(autouse=True)
def _forgets():
    yield
    for function in (installed.is_installed, installed._others, installed._packages_in, is_own_file):
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
        assert not is_own_file(str(tmp_path / "target" / name))
    for name in ("target/train.py", "target/something.py", "target2/some/module.py", "bin/some"):
        assert is_own_file(str(tmp_path / name))


def test_a_project_that_is_worked_on_is_its_authors(tmp_path, monkeypatch):
    install(tmp_path, record="")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(tmp_path / "a.zip"), str(tmp_path / "none")])
    assert is_own_file(str(tmp_path / "some" / "module.py"))


def test_torch_is_a_package_where_its_source_is(monkeypatch):
    monkeypatch.setattr(torch, "__file__", "/home/a/pytorch/torch/__init__.py")
    installed._others.cache_clear()
    assert installed.is_installed("/home/a/pytorch/torch/nn/functional.py")
    assert not installed.is_installed("/home/a/pytorch/train.py")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_the_usual_folders(folder):
    assert installed.is_installed(f"/venv/lib/python3.11/{folder}/some/module.py")
    assert not installed.is_installed(f"/home/a/my_{folder}/module.py")


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
