"""torch.hub: a first run downloads what one process does, though all ranks of a host have one cache."""

import contextlib
import io
import os
import sys
import tempfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

HUBCONF = """
import torch
print("the repository is read")
def small(url=None):
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    if url:
        model.load_state_dict(torch.hub.load_state_dict_from_url(url, progress=False))
    return model
"""


def archive():
    """A repository as GitHub gives it, large enough for several ranks to be unpacking it at once."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as its:
        its.writestr("net-main/", "")
        its.writestr("net-main/hubconf.py", HUBCONF)
        for number in range(100):
            its.writestr(f"net-main/part_{number}.py", "seen = 1\n" * 1000)
    return packed.getvalue()


def weights():
    saved = io.BytesIO()
    torch.save({"weight": torch.ones(1, 2, dtype=torch.float64), "bias": torch.ones(1, dtype=torch.float64)}, saved)
    return saved.getvalue()


@contextlib.contextmanager
def served():
    """A server of both on loopback: its address, and what it was asked for."""
    has, asked = {"/net.zip": archive(), "/weights.pt": weights()}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            time.sleep(0.2)
            if self.path not in has:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(has[self.path])))
            self.end_headers()
            self.wfile.write(has[self.path])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def first_run(address):
    torch.hub.set_dir("hub")
    torch.hub._git_archive_link = lambda *_, **__: f"{address}/net.zip"
    known = {"trust_repo": True, "skip_validation": True}
    seen = []
    for is_new in (False, True):
        model = torch.hub.load(
            "someone/net:main", "small", url=f"{address}/weights.pt", force_reload=is_new, verbose=False, **known
        )
        seen.append(model(torch.ones(4, 2, dtype=torch.float64)).sum().item())
        torch.hub.load("someone/net:main", "small", verbose=False, **known)
    try:
        torch.hub.load_state_dict_from_url(f"{address}/none.pt", progress=False)
    except OSError as error:
        seen.append([type(error).__name__, str(error)])
    torch.hub.download_url_to_file(f"{address}/weights.pt", "own.pt", progress=False)
    with tempfile.TemporaryDirectory() as folder:
        torch.hub.download_url_to_file(f"file:{os.path.abspath('own.pt')}", f"{folder}/w.pt", progress=False)
        seen.append(torch.load(f"{folder}/w.pt")["bias"].item())
    sys.stdin = io.StringIO("y\n")
    torch.hub.load("someone/net:main", "small", verbose=False, **{**known, "trust_repo": False})
    sys.stdin = io.StringIO()
    torch.hub.download_url_to_file(f"{address}/weights.pt", "own.pt", hash_prefix="", progress=False)
    seen.append(torch.load("own.pt")["bias"].item())
    try:
        torch.hub.load("someone/other:main", "small", trust_repo="check", skip_validation=True)
    except EOFError as error:  # nobody answers
        seen.append(str(error))
    return seen


@pytest.mark.slow
def test_a_first_run_downloads_what_one_process_does(ranks):
    with served() as (address, asked):
        alone = ranks.call(first_run, 1, address).ok()
        by_one = [*asked]
        asked.clear()
        several = ranks.call(first_run, 3, address).ok()
        assert asked == by_one == [*["/net.zip", "/weights.pt"], "/net.zip", "/none.pt", "/weights.pt", "/weights.pt"]
    assert several.results == alone.results * 3
    assert several.stdout == [alone.stdout[0], "", ""]
    assert several.files() == alone.files()
