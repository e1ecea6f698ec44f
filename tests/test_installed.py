"""Which files are a package's, wherever it is installed."""

import sys

import pytest
import torch

from ddp_patch import installed
from ddp_patch.calling.own import is_own_file


@pytest.fixture(autouse=True)
def _forgets():
    yield
    for function in (installed.is_installed, installed._others, is_own_file):
        function.cache_clear()


def test_packages_of_a_folder_that_pip_was_told(tmp_path, monkeypatch):
    folder = tmp_path / "target"
    (folder / "some-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["/scripts", *sys.path, str(folder)])
    file = str(folder / "some" / "module.py")
    assert installed.is_installed(file)
    assert not is_own_file(file)
    assert not installed.is_installed(str(tmp_path / "target2" / "module.py"))


def test_a_script_is_its_authors_beside_packages_that_were_put_there(tmp_path, monkeypatch):
    (tmp_path / "some-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path[1:]])
    assert not installed.is_installed(str(tmp_path / "train.py"))
    monkeypatch.setattr(sys, "path", ["/scripts", *sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    assert is_own_file(str(tmp_path / "train.py"))


def test_torch_is_a_package_where_its_source_is(monkeypatch):
    monkeypatch.setattr(torch, "__file__", "/home/a/pytorch/torch/__init__.py")
    installed._others.cache_clear()
    assert installed.is_installed("/home/a/pytorch/torch/nn/functional.py")
    assert not installed.is_installed("/home/a/pytorch/train.py")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_the_usual_folders(folder):
    assert installed.is_installed(f"/venv/lib/python3.11/{folder}/some/module.py")
    assert not installed.is_installed(f"/home/a/my_{folder}/module.py")
