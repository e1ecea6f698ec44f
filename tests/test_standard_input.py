"""Standard input is rank 0's, whichever way it is read."""

import fcntl
import fileinput
import gc
import io
import json
import os
import pickle
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import tty

import pytest

import ddp_patch

KEPT = []


def given(descriptor):
    """Lead this rank's standard input to something, before a session."""
    ddp_patch.disable()
    KEPT.append(sys.stdin)  # or it would close the descriptor
    if descriptor:  # not what was closed by the one before
        os.dup2(descriptor, 0)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)
    ddp_patch.enable()


def piped(data):
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    given(reading)


def readers():
    """One way of reading after the other, each with a pipe of its own that ends."""

    def opened():
        with open(0) as stream:
            return [stream.readline(), stream.read(), stream.encoding, stream.name, stream.mode]

    def opened_bytes():
        with open("/dev/stdin", "rb") as stream:
            return [stream.read(3).hex(), [line.hex() for line in stream]]

    def wrapped():
        return list(io.TextIOWrapper(sys.stdin.buffer, encoding="latin-1"))

    def into():
        room = bytearray(6)
        return [sys.stdin.buffer.readinto(room), room.decode("latin-1"), sys.stdin.buffer.read1(2).hex()]

    return {
        "bytes": lambda: sys.stdin.buffer.read().hex(),
        "lines of bytes": lambda: [line.hex() for line in sys.stdin.buffer],
        "text, then bytes": lambda: [sys.stdin.readline(), sys.stdin.buffer.read().hex(), sys.stdin.read()],
        "peek": lambda: [sys.stdin.buffer.peek(2)[:2].hex(), sys.stdin.buffer.readline().hex()],
        "opened": opened,
        "opened bytes": opened_bytes,
        "descriptor": lambda: [os.read(0, 4).decode(), os.read(0, 100).hex(), os.read(0, 100).hex()],
        "wrapped": wrapped,
        "into": into,
        "fileinput": lambda: list(fileinput.input(files=("-",))),
        "kinds": lambda: [sys.stdin.buffer.readable(), sys.stdin.buffer.seekable(), sys.stdin.buffer.mode],
    }


def read_in_every_way():
    found = {}
    for name, read in readers().items():
        piped("one\ntwo\nä\n".encode())
        found[name] = read()
    piped(pickle.dumps({"a": 1}) + json.dumps({"b": 2}).encode())
    found["formats"] = [pickle.load(sys.stdin.buffer), json.load(sys.stdin.buffer)]
    with open("in.txt", "w") as stream:
        stream.write("one\ntwo\n")
    given(os.open("in.txt", os.O_RDONLY))
    found["file"] = [sys.stdin.buffer.seekable(), sys.stdin.buffer.read().hex(), sys.stdin.buffer.seek(4)]
    found["file"] += [sys.stdin.buffer.tell(), sys.stdin.buffer.read().hex()]
    return found


@pytest.mark.slow
def test_standard_input_is_read_in_every_way_as_on_one_process(ranks):
    alone = ranks.call(read_in_every_way, 1).ok().results
    assert alone[0]["bytes"] == "one\ntwo\nä\n".encode().hex()
    assert ranks.call(read_in_every_way, 3).ok().results == alone * 3


def asked_whether_there_is_any():
    """Enter stops the training."""
    reading, writing = os.pipe()
    given(reading)
    steps = []
    for step in range(6):
        if step == 3:
            os.write(writing, b"stop\n")
        if select.select([sys.stdin], [], [], 0)[0]:
            steps.append([step, sys.stdin.readline()])
            break
    other, end = os.pipe()
    os.write(end, b"x")
    steps.append(select.select([other], [end], [], 0) == ([other], [end], []))
    steps.append(select.select([0, other], [end], [], 0.01) == ([other], [end], []))
    return steps


def test_whether_there_is_input_is_asked_of_rank_0(ranks):
    alone = ranks.call(asked_whether_there_is_any, 1).ok().results
    assert alone == [[[3, "stop\n"], True, True]]
    assert ranks.call(asked_whether_there_is_any, 2).ok().results == alone * 2


def single_keys():
    """A key without Enter, as in a menu."""
    ours, theirs = pty.openpty()
    given(theirs)
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin.fileno())
        os.write(ours, b"y")
        key = sys.stdin.read(1)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    return [key, sys.stdin.isatty(), before == termios.tcgetattr(0)]


def test_a_key_is_read_without_enter(ranks):
    alone = ranks.call(single_keys, 1, timeout=60).ok().results
    assert alone == [["y", True, True]]
    assert ranks.call(single_keys, 2, timeout=60).ok().results == alone * 2


def a_terminal_of_some_size():
    """In which the job was started: descriptors 0 and 1 lead to it."""
    _, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 132, 0, 0))
    ddp_patch.disable()
    before = os.dup(1)
    os.dup2(theirs, 1)
    given(theirs)
    os.environ.pop("COLUMNS", None)
    seen = [os.get_terminal_size().columns, os.get_terminal_size(0).lines, shutil.get_terminal_size().columns]
    seen += [os.isatty(descriptor) for descriptor in (0, 1, 2)]
    try:
        os.get_terminal_size(2)
    except OSError as error:
        seen.append(error.errno)
    with open("a.txt", "w") as stream:
        seen.append(os.isatty(stream.fileno()))
    ddp_patch.disable()
    os.dup2(before, 1)
    ddp_patch.enable()
    return seen


def test_the_terminal_of_rank_0_is_that_of_all(ranks):
    alone = ranks.call(a_terminal_of_some_size, 1, timeout=60).ok().results
    assert alone == [[132, 50, 132, True, True, False, 25, False]]
    assert ranks.call(a_terminal_of_some_size, 2, timeout=60).ok().results == alone * 2


WAITS = "import os; os.read(0, 1); os.write(1, b'first\\n'); os.read(0, 1); os.write(1, b'second\\n')"


def pipes_that_are_waited_for():
    """By what tells whether there is anything, and by their descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told, said = process.stdin, process.stdout

    def is_ready(*timeout):
        ready = select.select([said], [], [], *timeout)[0]
        return [ready == [said], select.select([said.fileno()], [], [], 0)[0] == [said.fileno()]]

    seen = [*is_ready(0.05), said.fileno() == said.fileno(), select.select([], [told], [], 0)[1] == [told]]
    told.write(b"\n")
    told.flush()
    seen += [*is_ready(), os.read(said.fileno(), 100).decode(), *is_ready(0)]
    told.write(b"\n")
    told.close()
    seen += [*is_ready(60), said.read().decode(), process.wait(), *is_ready(60), os.read(said.fileno(), 5).decode()]
    said.close()
    try:
        said.fileno()
    except ValueError as error:
        seen.append(str(error))
    with open("a.txt", "w+") as stream:  # which may have their numbers now
        stream.write("own")
        stream.flush()
        seen.append(os.pread(stream.fileno(), 3, 0).decode())
    process = subprocess.Popen(["echo", "a"], stdout=subprocess.PIPE)
    process.stdout.fileno()
    seen += [process.communicate()[0].decode(), process.stdout.closed]
    process = subprocess.Popen(["echo", "a"], stdout=subprocess.PIPE)
    seen.append(os.read(process.stdout.fileno(), 5).decode())
    seen.append(process.wait())
    process = told = said = None
    gc.collect()
    return [*seen, len(os.listdir("/proc/self/fd")) - before]


def test_whether_a_command_has_said_anything_rank_0_tells(ranks):
    alone = ranks.call(pipes_that_are_waited_for, 1, timeout=60).ok().results
    assert alone[0][:4] == [False, False, True, True]
    assert alone[0][4:9] == [True, True, "first\n", False, False]
    assert alone[0][-1] == 0
    assert ranks.call(pipes_that_are_waited_for, 3, timeout=60).ok().results == alone * 3
