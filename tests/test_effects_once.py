"""Outward effects that take side ways: what rank 0 does is done once, and what it gets every rank gets."""

import contextlib
import gc
import glob
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ddp_patch


def texts_of_numpy():
    """Values that differ between ranks, as a clock does: whose is in the files, and what is read."""
    own = [float(os.getpid())]
    seen = []
    for name in ("a.txt", "a.txt.gz", "a.txt.bz2", "a.txt.xz"):
        np.savetxt(name, own)
        seen += [float(np.loadtxt(name)), float(np.genfromtxt(name))]
    log = open("open.txt", "w")
    log.write("1 2\n")
    log.flush()
    seen.append(np.loadtxt("open.txt").tolist())
    log.close()
    return [own[0], seen]


def texts_of_numpy_later():
    """The same where numpy keeps its openers from before, or from an earlier session."""
    ddp_patch.disable()
    assert sys.modules["numpy.lib._datasource"]._file_openers._file_openers[None] is open
    ddp_patch.enable()
    return texts_of_numpy()


@pytest.mark.slow
def test_numpy_writes_and_reads_texts_of_rank_0(ranks):
    for function in (texts_of_numpy, texts_of_numpy_later):
        results = ranks.call(function, 3).ok().results
        expected = [results[0][0]] * 8 + [[1.0, 2.0]]
        assert [seen for _, seen in results] == [expected] * 3


def folders_moved_away():
    """Checkpoints that are written aside and then moved to their place."""
    os.mkdir("ckpt")
    seen = []
    for epoch in range(2):
        aside = tempfile.mkdtemp(dir="ckpt")
        os.mkdir(f"{aside}/parts")
        torch.save(torch.ones(3), f"{aside}/w.pt")
        Path(aside, "parts", "a.txt").write_text(f"{epoch}")
        seen.append(sorted(os.listdir(aside)))
        (os.rename, shutil.move)[epoch](aside, f"ckpt/{epoch}")
        seen.append([os.path.exists(aside), sorted(os.listdir(f"ckpt/{epoch}"))])
    descriptor, name = tempfile.mkstemp(dir="ckpt")
    os.close(descriptor)
    os.replace(name, "ckpt/file")
    with tempfile.TemporaryDirectory(dir="ckpt") as folder:
        Path(folder, "in.txt").write_text("a")
        os.rename(Path(folder, "in.txt"), Path(folder, "out.txt"))
        seen.append(os.listdir(folder))
    return [seen, sorted(os.listdir("ckpt"))]


def test_temporary_folders_that_are_moved_away_are_gone(ranks, tmp_path):
    own = tmp_path / "own"  # of the ranks other than 0
    own.mkdir()
    alone = ranks.call(folders_moved_away, 1, env={"TMPDIR": str(own)}).ok()
    several = ranks.call(folders_moved_away, 3, env={"TMPDIR": str(own)}).ok()
    assert several.results == alone.results * 3
    assert several.files() == alone.files() == ["ckpt/0/parts/a.txt", "ckpt/0/w.pt", *alone.files()[2:]]
    assert list(own.rglob("*")) == []


def temporary_files_that_are_listed():
    """Whichever rank comes first finds what one process would."""
    os.mkdir("ckpt")
    seen = []
    for late in (0, 1):
        descriptor, name = tempfile.mkstemp(suffix=".aside", dir="ckpt")
        os.close(descriptor)
        seen.append([Path(found).suffix for found in os.listdir("ckpt")])
        time.sleep(0.5 * (ddp_patch.rank() == late))
        os.unlink(name)
        seen.append([[entry.name for entry in os.scandir("ckpt")], glob.glob("ckpt/*")])
        time.sleep(0.5 * (ddp_patch.rank() == late))
        with tempfile.NamedTemporaryFile("w", suffix=".named", dir="ckpt") as file:
            seen.append([Path(found).suffix for _, _, files in os.walk("ckpt") for found in files])
            file.write("a")
            time.sleep(0.5 * (ddp_patch.rank() == late))
        seen.append(os.listdir("ckpt"))
    return seen


@pytest.mark.slow
def test_temporary_files_are_listed_as_one_process_finds_them(ranks):
    alone, several = (ranks.call(temporary_files_that_are_listed, nproc).ok() for nproc in (1, 3))
    assert several.results == alone.results * 3


def folders_by_their_listed_names():
    """As scripts clear what an earlier run has left."""
    os.mkdir("ckpt")
    aside = tempfile.mkdtemp(dir="ckpt")
    Path(aside, "a.txt").write_text("a")
    seen = [os.listdir(aside)]
    with tempfile.TemporaryDirectory(dir="ckpt") as folder:
        Path(folder, "b.txt").write_text("b")
        for name in os.listdir("ckpt"):
            with open(f"ckpt/{name}/c.txt", "w") as file:
                file.write("c")
        seen.append([sorted(os.listdir(folder)), sorted(os.listdir(aside)), Path(aside, "c.txt").read_text()])
    for name in os.listdir("ckpt"):
        seen.append(sorted(os.listdir(f"ckpt/{name}")))
        shutil.rmtree(f"ckpt/{name}")
    return [*seen, os.listdir("ckpt"), os.path.exists(aside)]


def test_a_temporary_folder_in_one_of_the_scripts_has_one_name(ranks):
    alone, several = (ranks.call(folders_by_their_listed_names, nproc).ok() for nproc in (1, 3))
    assert several.results == alone.results * 3
    assert several.files() == alone.files()


def paths():
    """What pathlib does, which on Python 3.10 holds functions of os of its own."""
    own, seen = str(os.getpid()), []
    Path("p").mkdir()
    Path("p/a.txt").write_text(own)
    Path("p/a.txt").rename("p/b.txt")
    Path("p/b.txt").replace("p/c.txt")
    Path("p/c.txt").chmod(0o600)
    Path("p/touched").touch()
    Path("p/link").symlink_to("c.txt")
    seen.append(sorted(path.name for path in Path("p").iterdir()))
    seen.append(sorted(map(str, Path("p").glob("*.txt"))))
    with Path("p/log").open("w") as log:
        log.write(f"{own} and more")
        log.flush()
        seen += [Path("p/log").stat().st_size, Path("p/log").read_text()]
    seen += [Path("p/link").resolve().name, Path("p/c.txt").read_text()]
    Path("p/c.txt").unlink()
    try:
        Path("p").rmdir()
    except OSError as error:
        seen.append(error.errno)
    return [own, seen]


def test_paths_are_made_moved_and_removed_once(ranks):
    results = ranks.call(paths, 3).ok().results
    own, seen = results[0]
    assert seen[:2] == [["c.txt", "link", "touched"], ["p/c.txt"]]
    assert seen[2:6] == [len(f"{own} and more"), f"{own} and more", "c.txt", own]
    assert [other for _, other in results] == [seen] * 3


LARGE = "import sys; sys.stdout.write('0123456789' * 2_000_000 + str(len(sys.stdin.read())))"


@ddp_patch.rank_zero
def downloaded():
    return np.arange(3_000_000)


@ddp_patch.rank_zero
def refused():
    raise ValueError("b" * 10_000_000)


def large_answers():
    """More than the job's store takes as one value (torch 2.13: 8 MiB)."""
    from ddp_patch.job.job import Job

    rank_status = Job.current.rank_status
    command = [sys.executable, "-c", LARGE]
    lengths = [len(subprocess.check_output(command, stdin=subprocess.DEVNULL))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate("a" * 9_000_000)
    lengths += [len(out), int(out[-7:]), int(downloaded().sum())]
    try:
        refused()
    except ValueError as error:
        lengths.append(len(str(error)))
    own, seen = f"{os.getpid()}, ".encode() * 1_300_000, []

    def exchange():
        rank_status.post("what is large", own)
        seen.extend(hashlib.sha256(told).hexdigest() for told in rank_status.wait_until_all_posted("what is large"))

    thread = threading.Thread(target=exchange)
    thread.start()
    thread.join()
    for name in ("a", "b"):
        os.mkdir(name)  # all come, and what was told before is dropped
    keys = rank_status._store.num_keys()
    return [lengths, seen, keys]


@pytest.mark.slow
def test_answers_of_any_size_reach_every_rank(ranks):
    results = ranks.call(large_answers, 3).ok().results
    assert results[0][0] == [20_000_001, 20_000_007, 9_000_000, 4499998500000, 10_000_000]
    assert len(set(results[0][1])) == 3
    assert results[1][:2] == results[2][:2] == results[0][:2]
    assert max(keys for *_, keys in results) < 60


def fails_at_length():
    raise ValueError("b" * 9_000_000 + " end")


def test_an_error_of_many_words_ends_the_job_as_any_other(ranks):
    outcome = ranks.call(fails_at_length, 2)
    assert outcome.codes == [1, 1]
    assert not outcome.late
    assert "bbb end" in "".join(outcome.stderr)
    assert "Lockstep" not in "".join(outcome.stderr)


def rotated_by_size():
    """Each rank's lines have another length, as those with the time have."""
    log, turns, places = open("log.txt", "a"), 0, []
    for step in range(60):
        log.write(f"{step} {'9' * (ddp_patch.rank() + step % 3)}\n")
        places.append(log.tell())
        if log.tell() > 100:
            log.close()
            os.replace("log.txt", f"log.{turns}")
            log, turns = open("log.txt", "a"), turns + 1
    log.close()
    with open("log.bin", "wb") as binary:
        binary.write(b"1" * (1 + ddp_patch.rank()))
        places.append(binary.tell())
        binary.seek(4)
        places.append(binary.tell())
    with zipfile.ZipFile("all.zip", "w") as packed:
        for name in sorted(glob.glob("log.*")):
            packed.write(name)
    return [turns, places, zipfile.ZipFile("all.zip").testzip(), sorted(os.listdir())]


def test_a_file_is_as_long_as_rank_0s_whatever_the_others_wrote(ranks):
    (alone,) = ranks.call(rotated_by_size, 1).ok().results
    assert ranks.call(rotated_by_size, 3).ok().results == [alone] * 3


def threads_that_a_library_holds():
    """Rank 0's take the longest: what they wrote is there, and as long, when the library comes back."""
    import joblib
    from rich.progress import track
    from tqdm import tqdm
    from tqdm.contrib.concurrent import thread_map

    def write(name):
        time.sleep(0.2 * (ddp_patch.rank() == 0))
        Path(name).write_text("x" * 1000)
        return name

    def sizes(names):
        return [os.path.getsize(name) if os.path.exists(name) else None for name in names]

    names, seen = [f"{way}{i}" for way in "abcdefg" for i in range(3)], []
    a, b, c, d, e, f, g = (names[i : i + 3] for i in range(0, len(names), 3))
    seen.append([thread_map(write, a, max_workers=2, disable=True), sizes(a)])
    joblib.Parallel(n_jobs=2, prefer="threads")(joblib.delayed(write)(name) for name in b)
    seen.append(sizes(b))
    with joblib.parallel_config(backend="threading", n_jobs=2):
        joblib.Parallel()(joblib.delayed(write)(name) for name in c)
    seen.append(sizes(c))
    lazy = joblib.Parallel(n_jobs=2, prefer="threads", return_as="generator")
    seen.append([list(tqdm(lazy(joblib.delayed(write)(name) for name in d), disable=True)), sizes(d)])
    with ThreadPoolExecutor(2) as pool:
        seen += [sizes([name]) for name in tqdm(pool.map(write, e), total=3, disable=True)]
        seen += [sizes([name]) for name in track(pool.map(write, f), total=3, disable=True)]
    with ThreadPool(2) as pool:
        seen.append([list(tqdm(pool.imap(write, g), disable=True)), sizes(g)])
    try:
        joblib.Parallel(n_jobs=2, prefer="threads")([joblib.delayed(divmod)(1, 0)])
    except ZeroDivisionError as error:
        seen.append(str(error))
    return seen


@pytest.mark.slow
def test_threads_that_a_library_holds_for_the_script_are_waited_for(ranks):
    (alone,) = ranks.call(threads_that_a_library_holds, 1).ok().results
    assert ranks.call(threads_that_a_library_holds, 3).ok().results == [alone] * 3


def a_forest():
    """Scikit-learn's own threads meet nobody."""
    from sklearn.ensemble import RandomForestClassifier

    count = ddp_patch.state.State.session.rank_zero
    forest = RandomForestClassifier(4, n_jobs=2, random_state=np.random.RandomState(0))
    before = count._count
    forest.fit(np.arange(8.0).reshape(8, 1), np.arange(8) % 2)
    return count._count - before


@pytest.mark.slow
def test_threads_of_a_librarys_own_meet_nobody(ranks):
    assert ranks.call(a_forest, 2).ok().results == [0, 0]


RUNNERS = {
    "ffmpeg": "import subprocess\n\n\ndef run(command):\n"
    "    process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)\n"
    "    out, _ = process.communicate()\n    return out.decode(), process.poll()\n",
    "plumbum": "import subprocess\n\nmade = subprocess.getoutput('echo imported | tee -a imports.txt')\n\n\n"
    "class Local:\n    def __call__(self, command):\n"
    "        return subprocess.run(command, shell=True, capture_output=True, text=True).stdout\n\n\n"
    "def piped():\n    first = subprocess.Popen('echo a', shell=True, stdout=subprocess.PIPE)\n"
    "    last = subprocess.Popen('cat', stdin=first.stdout, stdout=subprocess.PIPE)\n    wait = last.wait\n"
    "    last.wait = lambda *args, **named: wait(*args, **named) + first.wait()\n"
    "    out, _ = last.communicate()\n    return out.decode(), first.returncode, last.returncode\n",
    "another": "import ffmpeg\n\n\ndef ask(command):\n    return ffmpeg.run(command)\n",
}


def commands_that_libraries_run():
    """Those of a script: what a library does when it is imported, or asks another library for, is each rank's."""
    import git

    os.mkdir("site-packages")
    for name, text in RUNNERS.items():
        Path("site-packages", f"{name}.py").write_text(text)
    sys.path.insert(0, os.path.abspath("site-packages"))
    import another
    import ffmpeg
    import plumbum

    del sys.path[0]
    seen = [ffmpeg.run("echo a >> log.txt; cat log.txt"), plumbum.Local()("echo b >> log.txt; cat log.txt")]
    seen.append(plumbum.piped())
    thread = threading.Thread(target=ffmpeg.run, args=("echo c >> log.txt",))
    thread.start()
    thread.join()
    another.ask("echo d >> asked.txt")
    os.environ.update(GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b")
    repository = git.Repo.init("repository")
    Path("repository", "a.txt").write_text("a")
    seen.append(repository.untracked_files)
    repository.git.add("a.txt")
    seen += [repository.git.commit("-m", "first").splitlines()[-1], repository.is_dirty()]
    Path("repository", "a.txt").write_text("b")
    seen += [repository.is_dirty(), repository.git.diff("--stat"), len(repository.head.commit.hexsha)]
    seen += [repository.head.commit.message, [item.a_path for item in repository.index.diff(None)]]
    try:
        repository.git.checkout("none")
    except git.GitCommandError as error:
        seen.append(error.status)
    repository.index.add(["a.txt"])
    seen += [repository.index.commit("second").parents[0].message, repository.git.status()]
    copy = git.Repo.clone_from("repository", "copy")
    repository.index.commit("third")
    seen += [[found.flags for found in copy.remote().pull()], [each.message for each in copy.iter_commits()]]
    copy.close()
    repository.close()
    for name in ("repository", "copy"):
        shutil.rmtree(name)
    return [seen, Path("log.txt").read_text(), Path("asked.txt").read_text(), Path("imports.txt").read_text()]


@pytest.mark.slow
def test_commands_that_a_library_runs_for_the_script_run_once(ranks):
    ((seen, log, asked, imports),) = ranks.call(commands_that_libraries_run, 1).ok().results
    assert (log, asked, imports) == ("a\nb\nc\n", "d\n", "imported\n")
    outcome = ranks.call(commands_that_libraries_run, 3).ok()
    assert outcome.results == [[seen, log, asked * 3, imports * 3]] * 3


def asked_after_the_session():
    process = subprocess.Popen("echo a > a.txt", shell=True)
    ddp_patch.disable()
    found = process.wait(), process.poll()
    ddp_patch.enable()
    return [found, Path("a.txt").read_text()]


def test_a_command_that_is_asked_after_the_session_has_ended_well(ranks):
    assert ranks.call(asked_after_the_session, 2).ok().results == [[[0, 0], "a\n"]] * 2


def commands_of_asyncio():
    import asyncio

    async def ask(how, *command):
        process = await how(*command, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode()

    said = []
    for how in (asyncio.create_subprocess_exec, asyncio.create_subprocess_shell):
        try:
            asyncio.run(ask(how, "echo"))
        except ddp_patch.errors.LockstepError as error:
            said.append(str(error))
    with ddp_patch.per_rank():
        said.append(asyncio.run(ask(asyncio.create_subprocess_exec, "echo", str(ddp_patch.rank()))))
    once = ddp_patch.rank_zero(lambda: asyncio.run(ask(asyncio.create_subprocess_shell, "echo a >> a.txt; cat a.txt")))
    return [*said, once()]


def test_commands_that_asyncio_runs_are_refused(ranks):
    for rank, (program, shell, own, once) in enumerate(ranks.call(commands_of_asyncio, 2).ok().results):
        assert "asyncio.create_subprocess_exec would run the command once on every rank" in program
        assert "subprocess.run" in shell
        assert "asyncio.create_subprocess_shell" in shell
        assert (own, once) == (f"{rank}\n", "a\n")
    assert ranks.call(commands_of_asyncio, 1).ok().results == [["0\n", "a\n"]]


class Recorder:
    """Writes what is left when it goes, as a film does that nobody released."""

    alive = 0

    def __init__(self, name):
        self.name, self.lines = name, []
        Recorder.alive += 1

    def add(self, line):
        self.lines.append(line)
        return self

    def __del__(self):
        Recorder.alive -= 1
        with open(self.name, "w") as stream:
            stream.writelines(self.lines)


def objects_that_nobody_holds_any_more():
    made = ddp_patch.rank_zero(Recorder)
    kept = made("kept.txt")
    seen = []
    for step in range(5):
        recorder = made(f"{step}.txt")
        recorder.add(f"step {step}")
        seen += [recorder.add("") is recorder, kept.add("k") is kept]
    of_another_end = made("cycle.txt")
    own = [of_another_end]
    own.append(own)
    del of_another_end, own
    if ddp_patch.rank() == 0:
        gc.collect()
    later = made("later.txt")
    del recorder
    os.mkdir("folder")  # where all ranks come
    seen += [sorted(os.listdir(".")), Path("0.txt").read_text(), later.add("").name, kept.lines, Recorder.alive]
    os.rmdir("folder")
    return seen


def test_objects_of_rank_0_end_when_no_script_holds_them(ranks):
    first, *others = ranks.call(objects_that_nobody_holds_any_more, 3).ok().results
    assert first[-1] == 2
    assert others == [[*first[:-1], 0]] * 2
    names = ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt", "cycle.txt", "folder"]
    assert first[:-1] == [*[True] * 10, names, "step 0", "later.txt", ["k"] * 5]


class Noted(list):
    pass


def losses_of_half_precision():
    noted = ddp_patch.rank_zero(Noted)()
    model = torch.nn.Linear(4, 1).bfloat16()
    for x in DataLoader(torch.ones(8, 4).bfloat16(), 8):
        loss = model(x).square().mean()
        noted.append(loss)
        noted.append(x)
    return [str(value.dtype) + str(tuple(value.shape)) + type(value).__name__ for value in noted]


def test_what_is_logged_may_be_of_half_precision(ranks):
    wanted = ["torch.bfloat16()Tensor", "torch.bfloat16(8, 4)Tensor"]
    assert ranks.call(losses_of_half_precision, 2).ok().results == [wanted] * 2


def samples_of_databases():
    seen = []
    for name in ("a.db", ":memory:", "a.db"):
        with contextlib.closing(sqlite3.connect(name)) as connection:
            connection.execute("create table if not exists t (x)")
            connection.executemany("insert into t values (?)", [(i,) for i in range(100)])
            connection.commit()
            seen.append(connection.execute("select x from t order by random() limit 9").fetchall())
            seen.append(connection.execute("select random(), hex(randomblob(4)), length(randomblob(null))").fetchall())
    return seen


def test_databases_draw_alike_on_every_rank(ranks):
    first, second = ranks.call(samples_of_databases, 2).ok().results
    assert first == second
    assert len({str(drawn) for drawn in first}) == 6


def commands_beside_large_folders():
    """Of temporary files, as an unpacked data set is: each command is given one in another way, or none."""
    from ddp_patch.effects import temporary

    large, few = tempfile.mkdtemp(), tempfile.mkdtemp()
    for i in range(1200):
        Path(large, f"{i}.txt").touch()
    looked, entries = [], temporary._entries

    def counted(place, path=""):
        for found in entries(place, path):
            looked.append(found)
            yield found

    temporary._entries = counted
    seen, counts = [], []

    def run(*command, **options):
        before = len(looked)
        subprocess.run(command, check=True, **options)
        counts.append(len(looked) - before)
        seen.append([sorted(set(os.listdir(large)) - {f"{i}.txt" for i in range(1200)}), os.listdir(few)])

    for _ in range(3):
        run("true")
    Path("out.sh").write_text(f"touch {few}/by_few")
    run("sh", "out.sh")
    run("touch", f"{large}/a")
    run("touch", f"{os.path.basename(large)}/b", cwd=os.path.dirname(large))
    run("touch", "c", cwd=large)
    run("sh", "-c", 'touch "$PLACE/d"', env={**os.environ, "PLACE": large})
    run("sh", input=f"touch {large}/e", text=True)
    with open(f"{large}/f", "w") as stream:
        run("echo", "f", stdout=stream)
    process = subprocess.Popen(["rm", f"{large}/a", f"{large}/0.txt"])
    process.wait()
    seen += [os.path.exists(f"{large}/0.txt"), Path(large, "f").read_text()]
    run("true")
    shutil.rmtree(large)
    shutil.rmtree(few)
    temporary._entries = entries
    return [seen, counts]


@pytest.mark.slow
def test_a_large_temporary_folder_is_looked_into_for_commands_that_name_it(ranks):
    ((alone, _),) = ranks.call(commands_beside_large_folders, 1).ok().results
    results = ranks.call(commands_beside_large_folders, 2).ok().results
    assert [seen for seen, _ in results] == [alone] * 2
    counts = results[0][1]
    assert 1000 <= counts[0] <= 2010  # finds that it is large; what lies in it is given twice
    assert max(*counts[1:4], counts[-1]) <= 20
