"""A process that is no rank of a job: it finds the ports of a tree of processes, and sends what it pleases."""

import contextlib
import os
import pickle
import random
import socket
import struct
import sys
import time
from datetime import timedelta
from pathlib import Path

_LISTENS = "0A"  # proc(5), net/tcp
_OWN = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # by which an address of all interfaces is reached


class Opens:
    """What leaves a folder where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def tree(pid):
    """A process and those that it started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def listening(processes):
    """Addresses and ports that these processes listen on."""
    own = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    own.add(os.readlink(descriptor))
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in own:
                address, port = fields[1].split(":")
                words = bytes.fromhex(address)  # of 32 bits, in the order of this host
                raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.add((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def messages(mark, draws):
    """What is sent to each port."""
    evil = pickle.dumps(Opens(mark))
    yield b""
    yield draws.randbytes(3)
    yield draws.randbytes(5000)
    yield evil
    yield struct.pack("<Q", len(evil)) + evil
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    # The store's own words (torch 2.13, TCPStoreBackend.hpp): it is greeted, asked, and left in the middle of a request.
    greeting = b"\x00" + struct.pack("<I", 0x3C85F7CE)
    yield greeting
    yield greeting + b"\x01" + struct.pack("<Q", 1 << 60)
    yield greeting + b"\x01" + struct.pack("<Q", 4) + b"ab"
    yield greeting + bytes(range(256))


def disturb(pid, mark, until, spared=()):
    """Send to every port of a tree of processes, over and over, until a file is there or the tree is gone."""
    draws, held, count = random.Random(0), [], 0
    while not until.exists() and Path(f"/proc/{pid}").exists():
        for address, port in listening(set(tree(pid)) - set(spared)):
            for message in messages(mark, draws):
                with contextlib.suppress(OSError):
                    connection = socket.create_connection((_OWN.get(address, address), port), timeout=1.0)
                    connection.sendall(message)
                    held.append(connection)
                    count += 1
        while len(held) > 40:  # some stay open for a while
            held.pop(0).close()
        time.sleep(0.02)
    print(count)


def forms(mark):
    """A pickle as a rank may read one: bare, with the head of an answer, behind a code that is none, among plain data."""
    evil = Opens(mark)
    yield pickle.dumps(evil)
    yield pickle.dumps(("open", [], 1, True, evil))
    yield bytes(32) + pickle.dumps(evil)
    yield struct.pack("<Q", 2) + b"[]" + pickle.dumps(evil)


def forge(pid, mark, until, which):
    """Write pickles to the store of a job: under names that are about to be read, or over all that is there."""
    import torch.distributed as dist

    stores, written, told = {}, 0, list(forms(mark))
    with contextlib.suppress(RuntimeError):  # the job is over
        while not until.exists() and Path(f"/proc/{pid}").exists():
            for address, port in listening([pid]) - stores.keys():  # of the agent alone: a store, or two
                address_of_it = _OWN.get(address, address)
                stores[address, port] = store = dist.TCPStore(address_of_it, port, None, False, timedelta(seconds=5))
                if which == "ahead":
                    for count in range(1, 400):
                        store.set(f"ddp_patch/effect {count} of session 1/answer/0", told[count % len(told)])
                        written += 1
            for store in stores.values():
                for key in store.list_keys():
                    if which in key:
                        store.set(key, told[written % len(told)])
                        written += 1
            time.sleep(0.01)
    print(written)


if __name__ == "__main__":
    number, folder, over, *what = sys.argv[1:]
    if what == ["noise"]:
        disturb(int(number), folder, Path(over))
    elif what == ["noise to ranks"]:
        disturb(int(number), folder, Path(over), spared=[int(number)])
    else:
        forge(int(number), folder, Path(over), *what)
