"""What scripts do to the world outside: each leaves the folder as one process leaves it, and sees what it sees."""

import concurrent.futures
import contextlib
import copy
import csv
import fcntl
import functools
import glob
import gzip
import io
import json
import logging
import logging.handlers
import multiprocessing.pool
import os
import pickle
import queue
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ddp_patch


def batch():
    return next(iter(DataLoader(TensorDataset(torch.arange(14.0).view(7, 2)), 7)))[0]


def text_files():
    with open("a.txt", "w") as stream:
        stream.write("one\n")
        stream.writelines(["two\n", "three\n"])
        print("four", batch().sum().item(), file=stream)
        place = stream.tell()
    with open("a.txt", "a") as stream:
        at = stream.tell()
        stream.write("five\n")
    with open("a.txt") as stream:
        lines = stream.readlines()
    with open("a.txt", "r+") as stream:
        first = stream.readline()
        stream.seek(0)
        stream.write("ONE\n")
    with open("b.txt", "x", encoding="utf-8", newline="\r\n") as stream:
        stream.write("ä\n")
    with open("c.txt", "w+") as stream:
        stream.write("read again")
        stream.seek(0)
        again = stream.read()
    return [place, at, lines, first, again, Path("b.txt").read_bytes().hex(), stream.name, stream.mode]


def binary_files():
    with open("a.bin", "wb") as stream:
        written = [stream.write(b"x" * 10), stream.write(memoryview(b"yy")), stream.tell()]
        stream.seek(0)
        stream.write(b"Z")
    with open("a.bin", "rb+", buffering=0) as stream:
        stream.seek(5)
        stream.write(b"!")
    with open("b.bin", "wb", 0) as stream:
        written.append(stream.write(b"raw"))
    Path("c.bin").write_bytes(b"path")
    Path("c.txt").write_text("text")
    Path("touched").touch()
    descriptor = os.open("d.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(b"descriptor")
    return [written, Path("a.bin").read_bytes().hex(), os.path.getsize("d.bin"), os.path.getsize("touched")]


def formats():
    rows = batch()
    with open("a.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        for row in rows:
            writer.writerow([f"{value:.2f}" for value in row.tolist()])
    with open("a.json", "w") as stream:
        json.dump({"sum": rows.sum().item()}, stream)
    with open("a.pkl", "wb") as stream:
        pickle.dump({"rows": rows, "name": "x"}, stream)
    with gzip.open("a.gz", "wt") as stream:
        stream.write("zipped")
    np.save("a.npy", rows.numpy())
    np.savez("a.npz", rows=rows, other=np.arange(3))
    np.savetxt("a.txt", rows)
    np.save(open("b.npy", "wb"), rows)
    rows.numpy().tofile("c.raw")
    with open("a.pkl", "rb") as stream:
        loaded = pickle.load(stream)
    return [
        np.load("a.npy").tolist(),
        np.load("a.npz")["rows"].tolist(),
        np.loadtxt("a.txt").tolist(),
        json.load(open("a.json")),
        loaded["rows"].tolist(),
        gzip.open("a.gz", "rt").read(),
        type(loaded["rows"]).__name__,
    ]


def folders():
    seen = []
    if not os.path.exists("out"):
        os.mkdir("out")
    os.makedirs("out/deep/er", exist_ok=True)
    os.makedirs("out/deep/er", exist_ok=True)
    for action in (
        lambda: os.mkdir("out"),
        lambda: os.makedirs("out"),
        lambda: os.remove("nothing"),
        lambda: os.rmdir("out"),
        lambda: open("out", "w"),
        lambda: open("missing/x", "w"),
        lambda: shutil.copy("nothing", "out"),
        lambda: open("made", "x").close(),
        lambda: open("made", "x"),
    ):
        try:
            action()
            seen.append("fine")
        except OSError as error:
            seen.append(f"{type(error).__name__} {error.filename}")
    for i in range(4):
        Path("out", f"{i}.txt").write_text(str(i))
    os.rename("out/0.txt", "out/zero.txt")
    os.replace("out/1.txt", "out/2.txt")
    shutil.copyfile("out/2.txt", "out/copy.txt")
    copied = shutil.copy("out/3.txt", "out/deep")
    shutil.copytree("out/deep", "tree")
    moved = shutil.move("out/3.txt", "moved.txt")
    os.symlink("moved.txt", "link")
    Path("p").mkdir()
    (Path("p") / "q").mkdir(parents=True)
    Path("moved.txt").rename("renamed.txt")
    (Path("out") / "zero.txt").unlink()
    shutil.rmtree("out/deep")
    archive = shutil.make_archive("all", "zip", "out")
    return [
        *seen,
        sorted(os.listdir("out")),
        sorted(glob.glob("*")),
        copied,
        moved,
        Path(archive).name,
        [os.path.isfile("out/2.txt"), os.path.isdir("tree/er"), Path("out/1.txt").exists()],
    ]


def a_log_that_stays_open():
    seen = []
    log = open("log.txt", "w", buffering=1)
    for step in range(5):
        log.write(f"step {step}\n")
        log.flush()
        seen.append(open("log.txt").read())
        seen.append(os.path.getsize("log.txt"))
    open("dropped.txt", "w").write("never closed")
    seen.append(open("dropped.txt").read())
    return seen


def old_snapshots_are_removed():
    kept, seen = [], []
    os.makedirs("ckpt", exist_ok=True)
    for epoch in range(6):
        path = f"ckpt/{epoch}.pt"
        torch.save({"epoch": epoch, "rows": batch()}, path)
        kept.append(path)
        if len(kept) > 2:
            os.remove(kept.pop(0))
        shutil.copyfile(path, "ckpt/last.pt")
        seen.append(torch.load("ckpt/last.pt")["epoch"])
        seen.append(sorted(os.listdir("ckpt")))
    with open("stream.pt", "wb") as stream:
        torch.save(batch(), stream)
    seen.append(torch.load("stream.pt").tolist())
    return seen


def temporary_files():
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.txt")
        path.write_text("own")
        shutil.copy(path, "kept.txt")
        os.mkdir(os.path.join(folder, "y"))
        seen.append(sorted(os.listdir(folder)))
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as stream:
        stream.write("atomically")
    os.replace(stream.name, "out.txt")
    with tempfile.TemporaryFile() as stream:
        stream.write(b"gone")
        stream.seek(0)
        seen.append(stream.read().decode())
    descriptor, name = tempfile.mkstemp(dir=".")
    os.close(descriptor)
    shutil.move(name, "moved.txt")
    return [*seen, sorted(os.listdir("."))]


def names_that_differ_between_ranks():
    """As with a clock or a process id in the name: rank 0's counts."""
    folder = f"run-{ddp_patch.rank()}"
    os.makedirs(f"{folder}/logs")
    with open(f"{folder}/logs/a.txt", "w") as stream:
        stream.write("text")
    torch.save([1], f"{folder}/a.pt")
    there = [
        os.path.exists(f"{folder}/a.pt"),
        os.path.exists(f"{folder}/b.pt"),
        os.path.getsize(f"{folder}/logs/a.txt"),
    ]
    return [open(f"{folder}/logs/a.txt").read(), torch.load(f"{folder}/a.pt"), *there]


def errors_while_writing():
    seen = []
    try:
        with open("/dev/full", "w") as stream:
            stream.write("x" * 10)
    except OSError as error:
        seen.append(error.errno)
    stream = open("closed.txt", "w")
    stream.close()
    stream.close()
    for action in (lambda: stream.write("x"), lambda: open("x.txt", "q"), lambda: open("x.txt", "wb").write("text")):
        try:
            action()
        except (ValueError, TypeError) as error:
            seen.append(f"{type(error).__name__}: {error}")
    with contextlib.suppress(ZeroDivisionError), open("half.txt", "w") as stream:
        stream.write("half")
        stream.write(str(1 / 0))
    seen.append(open("half.txt").read())
    return seen


def other_libraries():
    import matplotlib.pyplot as plt
    import pandas
    from PIL import Image

    plt.rcParams["svg.hashsalt"] = "fixed"
    rows = batch()
    frame = pandas.DataFrame(rows.numpy(), columns=["a", "b"])
    frame.to_csv("a.csv")
    frame.to_json("a.json")
    frame.to_pickle("frame.pkl")
    Image.fromarray(rows.numpy().astype(np.uint8)).save("a.png")
    figure, axes = plt.subplots()
    axes.plot(rows[:, 0])
    axes.set_title(f"{rows.mean().item():.3f}")
    plt.savefig("figure.png", metadata={"Software": None})
    figure.savefig("figure.svg", metadata={"Date": None})
    plt.show()
    plt.close()
    return [pandas.read_csv("a.csv")["b"].tolist(), Image.open("a.png").size, os.path.getsize("figure.png") > 1000]


def log_files():
    logger = logging.getLogger("outward")
    logger.setLevel(logging.INFO)
    handlers = [
        logging.FileHandler("plain.log", mode="w"),
        logging.FileHandler("late.log", delay=True),
        logging.handlers.RotatingFileHandler("rotating.log", maxBytes=60, backupCount=2),
    ]
    for handler in handlers:
        logger.addHandler(handler)
    for step in range(6):
        logger.info("step %d: %s", step, batch().sum())
    for handler in handlers:
        logger.removeHandler(handler)
        handler.close()
    return [open("plain.log").read(), len(open("late.log").readlines())]


def commands():
    seen = [
        subprocess.run(["echo", "one"], capture_output=True, text=True).stdout,
        subprocess.check_output("echo two; echo two >> made.txt", shell=True).decode(),
        os.system("echo three >> made.txt; exit 3"),
        os.popen("echo four >> made.txt; cat made.txt").read(),
        subprocess.call(["touch", "touched"]),
        subprocess.getoutput("ls"),
    ]
    process = subprocess.Popen(["sort"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate("b\na\n")
    seen += [out, process.returncode, process.poll()]
    with subprocess.Popen("echo x; echo y; exit 2", shell=True, stdout=subprocess.PIPE, text=True) as process:
        seen += [line.strip() for line in process.stdout]
    seen.append(process.wait())
    for command in (["false"], ["no such command"]):
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            seen.append(str(error))
    return seen


def a_thread_that_saves():
    def save(rows):
        os.makedirs("kept")
        torch.save(rows, "kept/a.pt")
        with open("kept/a.txt", "w") as stream:
            stream.write("by a thread")

    thread = threading.Thread(target=save, args=(batch().tolist(),))
    thread.start()
    thread.join()
    torch.save(1, "after.pt")
    return sorted(os.listdir("kept"))


def event_files():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboardX import SummaryWriter as OtherWriter
    from torch.utils.tensorboard import SummaryWriter

    seen = []
    for kind, folder in ((SummaryWriter, "runs/a"), (OtherWriter, "runs/b")):
        model = torch.nn.Linear(2, 1)
        with kind(folder) as writer:
            rows = batch()
            for step in range(3):
                writer.add_scalar("sum", rows.sum(), step)
                writer.add_scalars("several", {"a": step, "b": 2.0}, step)
                writer.add_histogram("rows", rows, step)
            writer.add_text("text", "words")
            writer.add_graph(model, rows)
            writer.add_embedding(torch.arange(600.0).view(300, 2), metadata=list(range(300)), tag="table")
            writer.add_embedding(rows, rows[:, 0], tag="rows")
            writer.flush()
            seen.append(len([name for name in os.listdir(folder) if name.startswith("events")]))
        read = EventAccumulator(folder).Reload()
        seen.append([event.value for event in read.Scalars("sum")])
        seen.append([event.histogram_value.sum for event in read.Histograms("rows")])
        seen.append(len(read.Graph().node) > 1)
        parts = (
            "00000/table/tensors.tsv",
            "00000/table/metadata.tsv",
            "00000/rows/tensors.tsv",
            "00000/rows/metadata.tsv",
        )
        seen += [Path(folder, part).read_text() for part in (*parts, "projector_config.pbtxt")]
    with SummaryWriter(comment="x") as writer:
        writer.add_scalar("a", 1, 0)
    seen.append(os.path.isdir(writer.log_dir))
    shutil.rmtree("runs")
    return seen


def trackers():
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_ALLOW_FILE_STORE="true", DO_NOT_TRACK="true")
    import mlflow.pytorch
    import wandb

    rows = batch()
    run = wandb.init(project="p", name="named", config={"lr": 0.1})
    seen = [run.name, run.project, wandb.config.lr, wandb.run is run, len(run.id), os.path.isdir(run.dir)]
    for i in range(3):
        wandb.log({"step": i, "sum": rows.sum(), "rows": wandb.Histogram(rows)})
    run.log({"last": rows.max()})
    run.summary["best"] = rows.max().item()
    model, told, histogram = torch.nn.Linear(2, 1).double(), [], wandb.Histogram
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.zeros_(model.bias)
    wandb.Histogram = lambda *args, **kwargs: told.append(kwargs["np_histogram"]) or histogram(*args, **kwargs)
    wandb.watch(model, log="all", log_freq=1)
    model(batch().double()).square().mean().backward()
    wandb.unwatch(model)
    wandb.Histogram = histogram
    seen.append([[sum(counts), round(bins[0], 9), round(bins[-1], 9)] for counts, bins in told])
    wandb.log({"last": 1})
    artifact = wandb.Artifact("rows", type="dataset")
    seen += [run.step, run.log_artifact(artifact).name.partition(":")[0]]
    wandb.finish()
    seen.append(sorted(name.split("-")[0] for name in os.listdir("wandb")))
    mlflow.set_tracking_uri("file:./mlruns")
    mlflow.set_experiment("e")
    with mlflow.start_run(run_name="r") as active:
        mlflow.log_params({"lr": 0.1})
        for i in range(3):
            mlflow.log_metric("sum", rows.sum(), step=i)
        mlflow.log_text("text", "a.txt")
        how = {"pip_requirements": [], "serialization_format": "pickle"}
        kept = mlflow.pytorch.log_model(torch.nn.Linear(2, 1), name="m", **how)
    mlflow.pytorch.save_model(torch.nn.Linear(2, 1), "mlruns/saved", **how)
    of_all = mlflow.MlflowClient().search_logged_models([active.info.experiment_id])
    seen.append([mlflow.pytorch.load_model(kept.model_uri).weight.shape, len(of_all), len(kept.model_id)])
    logged = mlflow.get_run(active.info.run_id)
    client = mlflow.MlflowClient()
    client.log_metric(active.info.run_id, "later", batch().mean(), step=1)
    seen.append([(m.value, m.step) for m in client.get_metric_history(active.info.run_id, "later")])
    seen.append(client.get_run(active.info.run_id).data.metrics["later"])
    seen += [logged.data.metrics, logged.data.params, logged.info.status, len(list(Path("mlruns").rglob("a.txt")))]
    shutil.rmtree("wandb")
    shutil.rmtree("mlruns")
    return seen


def runs_that_are_asked_for():
    """Through mlflow's functions: rank 0 alone has the experiment and the run."""
    os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", DO_NOT_TRACK="true")
    import mlflow

    where = f"file://{os.path.abspath('asked')}"  # mlflow keeps a store for each name
    mlflow.set_tracking_uri(where)
    mlflow.set_registry_uri(where)
    mlflow.set_experiment("asked for")
    with mlflow.start_run(run_name="r") as active:
        operations = [mlflow.log_metric("sum", batch().sum(), step=i, synchronous=False) for i in range(2)]
        for operation in operations:
            operation.wait()
        mlflow.flush_async_logging()
        with open("a.txt", "w+b") as stream:
            stream.write(b"text")
            stream.seek(0)
            mlflow.log_stream(stream, "a.txt")
        mlflow.log_table({"x": [1, 2]}, "t.json")
        mlflow.log_artifact("a.txt", "model")
        where = mlflow.get_artifact_uri("model")
    mlflow.set_experiment_tag("team", "a")
    found = mlflow.search_runs()
    seen = [len(found), float(found["metrics.sum"][0]), mlflow.get_experiment_by_name("asked for").tags["team"]]
    seen.append(mlflow.load_table("t.json", run_ids=[active.info.run_id])["x"].tolist())
    versions = [mlflow.register_model(where, "m").version for _ in range(2)]
    seen += [list(map(int, versions)), len(mlflow.search_model_versions()), len(mlflow.search_registered_models())]
    mlflow.delete_run(active.info.run_id)
    seen.append(len(mlflow.search_runs()))
    shutil.rmtree("asked")
    return seen


def runs_that_models_and_threads_log_to():
    """A trial of a model logs nothing, and a thread has rank 0's run."""
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
    import wandb

    class Logs(torch.nn.Linear):
        def forward(self, x):
            wandb.log({"rows": len(x)})
            return super().forward(x)

    run = wandb.init(project="p")
    seen = [run.resumed, run.disabled, run.offline, run.starting_step, run.sweep_id, run.project_url]
    model = Logs(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.ones(24, 4)), 8):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    seen += [run.step, run.summary["rows"]]
    wandb.finish()

    def begins():
        its = wandb.init(project="threads")
        its.log({"a": 1})
        its.finish()

    thread = threading.Thread(target=begins)
    thread.start()
    thread.join(timeout=None)
    seen.append(len(glob.glob("wandb/offline-run-*")))
    shutil.rmtree("wandb")
    return seen


def threads_that_write_and_are_waited_for():
    import cv2

    class Job(threading.Thread):
        def run(self):
            subprocess.run("sleep 0.5; echo 7 > out.txt", shell=True, check=True)

        def join(self, timeout=None):
            super().join(timeout)

    def put(number):
        video = cv2.VideoWriter(f"{number}.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (16, 56))
        video.write(np.zeros((56, 16, 3), "uint8"))
        video.release()
        return cv2.imwrite(f"{number}.png", np.zeros((4, 4, 3), "uint8")), bool(video.isOpened)

    job = Job()
    job.start()
    job.join()
    seen = [Path("out.txt").read_text(), cv2.imwrite(filename="named.png", img=np.zeros((4, 4, 3), "uint8"))]
    with ThreadPoolExecutor() as pool:
        seen.append(list(pool.map(put, range(3))))
        failing = pool.submit(lambda: 1 / 0)
        seen.append(type(failing.exception()).__name__)
    for name in glob.glob("*.avi"):
        os.remove(name)
    return [*seen, sorted(glob.glob("*.png"))]


def files_that_are_saved_by_name():
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    scripted = torch.jit.script(model)
    scripted.save(f="method.pth")
    torch.jit.save(m=scripted, f="function.pth")
    torch.jit.save(scripted, f="mixed.pth", _extra_files={"a": b"b"})
    stream = io.BytesIO()
    torch.jit.save(m=scripted, f=stream)
    program = torch.export.export(model, (torch.ones(3, 2),))
    torch.export.save(ep=program, f="exported.pt2")
    torch.export.save(program, "named.pt2", extra_files={"a": "b"})
    names = sorted(glob.glob("*.pth") + glob.glob("*.pt2"))
    seen = [torch.jit.load(name).weight.tolist() for name in sorted(glob.glob("*.pth"))]
    for name in names:
        os.remove(name)
    return [*seen, names, stream.tell() > 100]


def experiments():
    import comet_ml

    options = {"api_key": None, "log_code": False, "log_env_details": False, "log_git_metadata": False}
    experiment = comet_ml.OfflineExperiment(offline_directory="comet", display_summary_level=0, **options)
    key = experiment.get_key()
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, 0.5)  # the sums are exact, in whichever order
    torch.nn.init.zeros_(model.bias)
    for step in range(3):
        loss = model(batch().float()).square().mean()
        loss.backward()
        experiment.log_metric("sum", batch().sum(), step=step)
        experiment.log_metrics({"loss": loss, "step": step}, step=step)
    experiment.log_parameters({"lr": 0.1})
    experiment.log_text("a text")
    seen = [experiment.id == key, experiment.url, isinstance(experiment, comet_ml.OfflineExperiment)]
    experiment.end()
    seen.append([name == f"{key}.zip" for name in os.listdir("comet")])
    with zipfile.ZipFile(f"comet/{key}.zip") as archive, archive.open("messages.json") as messages:
        told = [json.loads(line)["payload"] for line in messages]
    metrics = [m["metric"] for m in told if m.get("metric")]
    names = ("sum", "loss", "step")  # and those that it measures by the clock
    seen.append(sorted((m["metricName"], m["metricValue"], m["step"]) for m in metrics if m["metricName"] in names))
    shutil.rmtree("comet")
    return seen


def tasks():
    os.environ["CLEARML_CACHE_DIR"] = os.path.abspath("clearml")
    from clearml import Logger, OutputModel, Task

    Task.set_offline(True)
    # Else a thread of its own runs git while it forks; now and then one waits for the other (clearml 2.1.12, without
    # ddp_patch as well).
    Task.force_store_standalone_script()
    quiet = {"auto_connect_frameworks": False, "auto_resource_monitoring": False, "auto_connect_streams": False}
    task = Task.init("p", "named", output_uri=False, reuse_last_task_id=False, **quiet)
    seen = [task.name, isinstance(task, Task), Task.current_task() is task, task.id.startswith("offline-")]
    options = {"lr": 0.1, "layers": [1, 2]}
    connected = task.connect(options)
    seen.append([connected["lr"], connected == options])
    logger = task.get_logger()
    for step in range(3):
        logger.report_scalar("loss", "train", value=batch().sum().item() + step, iteration=step)
        Logger.current_logger().report_single_value("best", float(batch().max()))
    task.upload_artifact("rows", batch().numpy())
    seen.append([OutputModel(task=task, name="m").name, task.get_status()])
    folder = task.get_offline_mode_folder()
    task.close()
    told = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # A list of events by line.
    scalars = [event for line in told for event in (line if isinstance(line, list) else [line])]
    seen.append(sorted((e["metric"], e["variant"], e["value"], e["iter"]) for e in scalars if "value" in e))
    shutil.rmtree("clearml")
    return seen


def windows():
    import visdom

    plots = visdom.Visdom(offline=True, log_to_filename="windows.log")
    window = plots.line(Y=[1.0, 2.0], win="loss")
    plots.line(X=[3], Y=batch().sum().reshape(1), win=window, update="append")
    unnamed = plots.image(torch.zeros(3, 4, 4) + batch().mean())
    plots.histogram(batch().flatten())
    seen = [window, isinstance(plots, visdom.Visdom), unnamed.startswith("window_"), plots.env]
    told = [json.loads(line) for line in Path("windows.log").read_text().splitlines()]
    seen += [[kind, len(str(event["data"]))] for kind, event in told]
    os.remove("windows.log")
    return [*seen, told[1][1]["data"]]


def a_database():
    import sqlite3

    rows = batch()
    with contextlib.closing(sqlite3.connect("a.db")) as connection:
        connection.execute("create table losses (step integer, loss real)")
        for step in range(3):
            connection.execute("insert into losses values (?, ?)", (step, rows[step].sum().item()))
        connection.commit()
    with contextlib.closing(sqlite3.connect("a.db")) as connection:
        connection.execute("insert into losses values (3, 0.5)")
        connection.commit()
        seen = connection.execute("select * from losses").fetchall()
    os.rename("a.db", "b.db")
    with contextlib.closing(sqlite3.connect("b.db")) as connection:
        seen += connection.execute("select count(*) from losses").fetchall()
    Path("no.db").write_text("no database at all, however long it is" * 10)
    with contextlib.closing(sqlite3.connect("no.db")) as connection:
        try:
            connection.execute("create table x (y)")
        except sqlite3.DatabaseError as error:
            seen.append(str(error))
    os.remove("b.db")  # its bytes hold a counter of the library's version
    return seen


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.noise, self.loss, self.seed = torch.randn_like, torch.nn.functional.l1_loss, np.random.seed


def arrays_on_disk():
    import h5py

    rows, seen = batch(), []
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("rows", data=rows.numpy())
        file["rows"].attrs["mean"] = float(rows.mean())
        group = file.create_group("later", track_order=True)
    with h5py.File("a.h5", "a") as file:
        group = file["later"]
        group["sums"] = rows.sum(1).numpy()
        seen.append(sorted(file))
    with h5py.File("a.h5") as file:
        seen.append([file["rows"][:].tolist(), file["rows"].attrs["mean"], file["later/sums"][:].tolist()])
    for mode in ("x", "r+"):
        try:
            h5py.File("a.h5" if mode == "x" else "none.h5", mode)
        except OSError as error:
            seen.append(f"{type(error).__name__} {str(error)[:20]}")
    for i in range(20):
        tokens = np.memmap(f"{i}.bin", dtype=np.float32, mode="w+", shape=(7, 2))
        tokens[:] = rows.numpy() + i
        tokens.flush()
        again = np.memmap(f"{i}.bin", dtype=np.float32, mode="r", shape=(7, 2))
        seen.append([again.sum().item(), np.fromfile(f"{i}.bin", dtype=np.float32)[-1].item()])
        tokens[0] = 100
        seen.append(np.fromfile(f"{i}.bin", dtype=np.float32)[0].item())
    return seen


def pictures():
    import cv2

    frame = (batch().numpy()[:, :, None] * np.ones(3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    seen = [cv2.imwrite("a.png", frame), cv2.imread("a.png").mean(), cv2.imwrite("none/a.png", frame)]
    video = cv2.VideoWriter("a.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (16, 56))
    seen.append(video.isOpened())
    for i in range(3):
        video.write(frame + i)
    video.release()
    return [*seen, os.path.getsize("a.avi") > 1000]


def commands_of_threads():
    seen = []

    def upload():
        subprocess.run(["sh", "-c", "echo run >> thread.txt"], check=True)
        process = subprocess.Popen(
            "echo popen >> thread.txt; cat", shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.communicate(b"x")
        os.system("echo system >> thread.txt")
        seen.append(process.returncode)

    thread = threading.Thread(target=upload)
    thread.start()
    thread.join()
    seen.append(Path("thread.txt").read_text())
    process = subprocess.Popen(["sleep", "30"], start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    seen.append(process.wait())
    process = subprocess.Popen(["sleep", "30"])
    os.kill(process.pid, signal.SIGKILL)
    os.kill(os.getpid(), 0)
    seen.append(process.wait())
    return seen


def pools_of_threads():
    """Of which each rank starts as many threads as it needs, which is how long its tasks take."""

    def write(name):
        time.sleep(0 if ddp_patch.rank() else 0.2)
        Path(name).write_text("x" * 1000)
        return name

    seen = []
    with ThreadPoolExecutor(4) as pool:
        pool.submit(write, "a")
        time.sleep(0.1)  # now rank 0's first thread is at work, and the others' is idle
        pool.submit(write, "b")
    seen.append([os.path.getsize(name) for name in ("a", "b")])
    pool = ThreadPoolExecutor(2)
    futures = [pool.submit(write, name) for name in ("c", "d")]
    done, pending = concurrent.futures.wait(futures)
    seen += [len(done), len(pending), [os.path.getsize(name) for name in ("c", "d")]]
    pool.shutdown()
    with multiprocessing.pool.ThreadPool(2) as threads:
        seen += threads.map(write, ["e", "f"])
        seen += [os.path.getsize(name) for name in ("e", "f")]
        seen += list(threads.imap(write, ["g", "h"]))
        seen += [os.path.getsize(name) for name in ("g", "h")]
        for name in ("i", "j"):
            threads.apply_async(write, (name,))
        threads.close()
        threads.join()
    return [*seen, [os.path.getsize(name) for name in ("i", "j")]]


def threads_that_are_asked_whether_they_are_done():
    """The ranks' threads take other times: once rank 0's takes the longest, once rank 1's."""
    seen = []
    for slow in (0, 1):

        def write(name, slow=slow):
            time.sleep(0.4 * (ddp_patch.rank() == slow))
            Path(name).write_text("x" * 1000)
            return name

        thread = threading.Thread(target=write, args=(f"a{slow}",))
        seen.append(thread.is_alive())
        thread.start()
        time.sleep(0.1)
        if thread.is_alive():
            thread.join()
        with ThreadPoolExecutor(1) as pool, multiprocessing.pool.ThreadPool(1) as threads:
            future, result = pool.submit(write, f"b{slow}"), threads.apply_async(write, (f"c{slow}",))
            time.sleep(0.1)
            if not future.done():
                seen.append(future.result())
            else:
                seen.append(future.result(0))
            while not result.ready():
                time.sleep(0.01)
            again = pool.submit(write, f"d{slow}")
            while again.running() or not again.done():
                time.sleep(0.01)
            seen += [result.successful(), result.get(0), again.result(0), again.done(), thread.is_alive()]
        seen += [os.path.getsize(f"{name}{slow}") for name in "abcd"]
    return seen


def commands_that_are_handed_over():
    """To a thread, a pool or an exit stack, which call them themselves."""
    append = ["sh", "-c", "echo x >> log.txt"]
    thread = threading.Thread(target=subprocess.run, args=(append,))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(os.system, "echo y >> log.txt")
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, append)
    return Path("log.txt").read_text()


def commands_that_write_to_temporary_places():
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "in.txt"), Path(folder, "out.txt")
        given.write_text("b\na\n")
        subprocess.run(["sort", given, "-o", made], check=True)
        seen.append(made.read_text())
        os.system(f"mkdir {folder}/more && echo c > {folder}/more/c.txt && rm {given}")
        seen.append(sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")))
        seen.append(Path(folder, "more/c.txt").read_text())
        with subprocess.Popen(["cp", made, f"{folder}/again.txt"]) as process:
            process.wait()
        seen.append(Path(folder, "again.txt").read_text())
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    subprocess.check_call(f"echo d > {path}", shell=True)
    seen.append(Path(path).read_text())
    os.remove(path)
    seen += [os.path.exists(path), os.path.exists(folder)]
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/pipe")
        kept = Path(folder, "of_this_rank.txt")
        with ddp_patch.per_rank():
            kept.write_text(str(ddp_patch.rank()))
        subprocess.run(["ln", "-s", "/", f"{folder}/root"], check=True)
        subprocess.run(["ln", "-sfn", folder, f"{folder}/again"], check=True)
        seen += [os.path.realpath(f"{folder}/root"), os.path.realpath(f"{folder}/again") == os.path.realpath(folder)]
        with ddp_patch.per_rank():  # no command wrote to it
            seen.append(kept.read_text() == str(ddp_patch.rank()))
        subprocess.run(["rm", "-r", f"{folder}/root", f"{folder}/pipe"], check=True)
        seen.append(os.path.lexists(f"{folder}/root"))
    return seen


def commands_after_a_loader_that_one_rank_reads():
    """What that rank needs for itself is no temporary place of the script's."""
    seen = [len(batch) for batch in DataLoader(torch.arange(5.0), 2, collate_fn=torch.stack)]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        subprocess.run(["touch", f"{first}/a"], check=True)
        seen += [os.listdir(first), os.listdir(second)]
    return seen


def temporary_folders_of_the_system_that_are_moved():
    folder = tempfile.mkdtemp()
    torch.save(torch.ones(3), f"{folder}/w.pt")
    shutil.move(folder, "best")
    return [os.path.exists(folder), os.listdir("best"), torch.load("best/w.pt").tolist()]


def pipes_read_by_others():
    process = subprocess.Popen(["printf", "a\\nb\\n"], stdout=subprocess.PIPE)
    lines = list(io.TextIOWrapper(process.stdout, encoding="utf-8"))
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pickle.dump({"a": 1}, process.stdin)
    able = process.stdin.writable(), process.stdout.writable(), process.stdin.readable(), process.stdout.readable()
    process.stdin.close()
    return lines, able, pickle.load(process.stdout)


def generators_that_are_handed_on():
    """To a function that takes a seed, or a generator to go on with."""

    def order(count, rng=None):
        return np.random.default_rng(rng).permutation(count).tolist()

    rng = np.random.default_rng(0)
    seen = [order(8, rng), order(8, 5)]
    bits = np.random.PCG64(3)
    first, second = np.random.Generator(bits), np.random.default_rng(bits)
    sequence = np.random.SeedSequence(7)
    np.random.default_rng(sequence)
    with ddp_patch.per_rank():
        return [*seen, rng.random(), second.random(), first.random(), sequence.spawn(1)[0].generate_state(1).tolist()]


def films():
    """Encoded by a command that a library runs."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.animation import FFMpegWriter

    os.mkdir("bin")
    Path("bin/ffmpeg").write_text('#!/bin/sh\nwc -c >> counts.txt\nfor last; do :; done\necho film > "$last"\n')
    os.chmod("bin/ffmpeg", 0o755)
    figure, axes = plt.subplots(figsize=(2, 1))
    (line,) = axes.plot([0, 1])
    with mpl.rc_context({"animation.ffmpeg_path": os.path.abspath("bin/ffmpeg")}):
        writer = FFMpegWriter(fps=2)
        with writer.saving(figure, "a.mp4", dpi=50):
            for i in range(3):
                line.set_ydata([0, i])
                writer.grab_frame()
    plt.close(figure)
    return [Path("counts.txt").read_text(), Path("a.mp4").read_text()]


def compiled():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    scripted = torch.jit.script(model)
    scripted.save("a.jit")
    torch.jit.save(torch.jit.trace(model, torch.ones(1, 2)), "b.jit")
    torch.export.save(torch.export.export(model, (torch.ones(1, 2),)), "c.pt2")
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    row = torch.tensor([[1.0, 2.0]])
    loaded = [torch.jit.load("a.jit"), torch.jit.load("b.jit"), torch.export.load("c.pt2").module()]
    seen = [each(row).tolist() for each in loaded]
    handler = torch.profiler.tensorboard_trace_handler("traces")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], on_trace_ready=handler):
        model(row)
    with torch.autograd.profiler.profile() as profile:
        model(row)
    profile.export_chrome_trace("trace.json")
    seen.append([len(os.listdir("traces")), "traceEvents" in json.loads(Path("trace.json").read_text())])
    shutil.rmtree("traces")
    os.remove("trace.json")
    os.remove("b.jit")  # with the lines of code that traced it
    os.remove("c.pt2")  # a zip file with the time in it
    return [*seen, len(buffer.getvalue()) > 1000]


def results_elsewhere():
    """Libraries write what the script gives them outside the working directory."""
    import pandas as pd

    folder = os.path.join(tempfile.gettempdir(), f"ddp_patch-results-{hash(os.getcwd())}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    path = os.path.join(folder, "log.csv")
    for epoch in range(3):
        pd.DataFrame({"epoch": [epoch]}).to_csv(path, mode="a", header=not os.path.exists(path), index=False)
    np.save(os.path.join(folder, "a.npy"), batch().numpy())
    seen = [Path(path).read_text(), sorted(os.listdir(folder)), float(np.load(os.path.join(folder, "a.npy")).sum())]
    shutil.rmtree(folder)
    with tempfile.TemporaryDirectory() as own:
        pd.DataFrame({"a": [1]}).to_csv(os.path.join(own, "a.csv"))
        seen.append(pd.read_csv(os.path.join(own, "a.csv")).shape)
    return seen


def locks_and_waits():
    seen, own = [], hash(os.getcwd())
    with open("data.txt", "w") as f:
        f.write("x")
    with open("data.txt") as lk:
        fcntl.flock(lk, fcntl.LOCK_EX)
        with open("out.txt", "w") as f:
            f.write("y")
        fcntl.flock(lk, fcntl.LOCK_UN)
    with filelock.FileLock("local.lock", timeout=20):
        torch.save([1], "l.pt")
    p = os.path.join(tempfile.gettempdir(), f"ddp_patch-{own}.lock")
    with filelock.FileLock(p, timeout=20):
        torch.save([1], "m.pt")
    for _i in range(2):
        with contextlib.closing(sqlite3.connect("file:log.db?mode=rwc", uri=True)) as c:
            c.execute("create table if not exists t (x)")
            c.execute("insert into t values (1)")
            c.commit()
            seen.append(c.execute("select count(*) from t").fetchall())
    with concurrent.futures.ThreadPoolExecutor(1) as ex:
        ex.submit(torch.save, {"w": torch.ones(200000)}, "async.pt").result()
        seen.append(torch.load("async.pt")["w"].sum().item())
        seen.append(list(ex.map(lambda x: x * 2, range(4))))
    q = queue.Queue()

    def work():
        while True:
            n = q.get()
            if n is None:
                return
            np.save(n, np.ones(100000))
            q.task_done()

    t = threading.Thread(target=work)
    t.start()
    q.put("q.npy")
    q.join()
    seen.append(float(np.load("q.npy").sum()))
    q.put(None)
    t.join()
    d = f"run_{os.getpid()}"
    os.makedirs(d)
    log = open(d + "/log.txt", "w")
    log.write("a")
    log.flush()
    os.chdir(d)
    seen.append(os.path.exists("log.txt"))
    seen.append(open("log.txt").read())
    log.close()
    seen.append(os.listdir("."))
    os.chdir("..")
    torch.save(torch.ones(3), d + "/w.pt")
    seen.append(torch.load(d + "/w.pt", mmap=True).sum().item())
    with contextlib.closing(sqlite3.connect(d + "/x.db")) as c:
        c.execute("create table t (x)")
        c.commit()
    with contextlib.closing(sqlite3.connect(d + "/x.db")) as c:
        seen.append(c.execute("select name from sqlite_master").fetchall())
    os.makedirs("ck")
    torch.save({}, "ck/a.pt")
    shutil.rmtree("ck")
    torch.save({}, "b.pt")
    os.system("rm -f b.pt")
    for n in ("ck/a.pt", "b.pt"):
        try:
            torch.load(n)
        except FileNotFoundError as e:
            seen.append(str(e))
    pr = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pr.stdin.writelines(["a\n", "b\n"])
    seen.append(pr.communicate()[0])
    pr = subprocess.Popen(["true"])
    seen.append(os.waitpid(pr.pid, 0)[1])
    cache = os.path.expanduser(f"~/.cache/ddp_patch-{own}")
    shutil.rmtree(cache, ignore_errors=True)
    if not os.path.exists(cache):
        os.makedirs(cache)
    for _i in range(2):
        with open(cache + "/log.txt", "a") as f:
            f.write("x\n")
    seen.append(open(cache + "/log.txt").read())
    shutil.rmtree(cache)
    shutil.rmtree(d)
    os.remove("log.db")
    return seen


_CACHING = """
import os
import shutil
import time

import filelock


def prepared(folder):
    with filelock.FileLock(f"{folder}.lock"):
        if not os.path.isdir(folder):
            os.makedirs(f"{folder}.incomplete")
            time.sleep(0.1)
            with open(f"{folder}.incomplete/rows.txt", "w") as stream:
                stream.write("rows")
            shutil.move(f"{folder}.incomplete", folder)
    return open(f"{folder}/rows.txt").read()
"""


def a_library_that_locks_its_cache():
    """As datasets does: every rank has the cache, so that each needs the lock."""
    os.makedirs("site-packages")
    os.makedirs("cache")
    Path("site-packages", "caching.py").write_text(_CACHING)
    sys.path.insert(0, os.path.abspath("site-packages"))
    os.environ["XDG_CACHE_HOME"] = os.path.abspath("cache")
    import caching

    seen = [caching.prepared(os.path.abspath(f"cache/{name}")) for name in "abc"]
    del os.environ["XDG_CACHE_HOME"], sys.path[0]
    for folder in ("site-packages", "cache"):
        shutil.rmtree(folder)
    return seen


def functions_are_copied():
    """Those that are patched, too."""
    layer = copy.deepcopy(Layer())
    torch.save(layer, "layer.pickled")
    read = torch.load("layer.pickled", weights_only=False)
    again = pickle.loads(pickle.dumps([torch.zeros, os.mkdir, functools.partial(np.random.seed, 1), torch.save, open]))
    same = [read.noise is torch.randn_like, read.loss is torch.nn.functional.l1_loss, again[1] is os.mkdir]
    os.remove("layer.pickled")
    return [str(value) for value in (same, again[0](2), layer.loss(torch.ones(2), torch.zeros(2)))]


def low_level_habits():
    with open("a.txt", "w") as stream:
        stream.write("synced")
        stream.flush()
        os.fsync(stream.fileno())
        size = os.fstat(stream.fileno()).st_size
    first = subprocess.Popen(["printf", "b\\na\\n"], stdout=subprocess.PIPE)
    second = subprocess.Popen(["sort"], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
    sorted_lines = second.communicate()[0]
    third = subprocess.Popen("echo x; echo y", shell=True, stdout=subprocess.PIPE, text=True)
    lines = [next(third.stdout), third.stdout.readline(), third.stdout.readline()]
    torch.save([0], "one.pt")
    os.link("one.pt", "two.pt")
    torch.save([1], "one.pt")
    with tempfile.TemporaryDirectory() as folder:
        torch.save(1, f"{folder}/a.pt")
        own = [torch.load(f"{folder}/a.pt"), os.listdir(folder)]
    sys.stdin = io.StringIO("typed")
    return [size, sorted_lines, lines, torch.load("two.pt"), own, sys.stdin.readline()]


def what_threads_write():
    def write():
        with open("big.txt", "w") as stream:
            stream.write("x" * 3_000_000)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    sizes = [os.path.getsize("big.txt")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda i: Path(f"{i}.txt").write_text(str(i)), range(4)))
        pool.submit(os.mkdir, "made").result()
    return [*sizes, sorted(os.listdir("."))]


def names_by_the_clock():
    """Rank 1 is a second late: what it calls 201 may be what rank 0 called 200, or what it calls so now."""
    late = int(ddp_patch.rank() == 1)
    for second in (200, 201, 202):
        Path(f"g-{second + late}.txt").write_text(f"epoch {second}")
    folder = f"run-{300 + late}"
    os.makedirs(folder)
    Path(folder, "a.txt").write_text("a")
    os.makedirs(f"{folder}/deep")
    torch.save(1, f"{folder}/deep/last.pt")
    os.symlink("a.txt", f"{folder}/link")
    seen = [Path(name).read_text() for name in sorted(glob.glob("g-*.txt"))]
    seen += [
        sorted(os.listdir(folder)),
        sorted(path.name for path in Path(folder).iterdir()),
        os.access(folder, os.W_OK),
    ]
    seen += [len(glob.glob(f"{folder}/{name}")) for name in ("*/last.pt", "a.txt", "none")]
    seen += [os.path.lexists(folder), os.path.islink(f"{folder}/link"), os.readlink(f"{folder}/link")]
    return [*seen, os.lstat(f"{folder}/a.txt").st_size, os.path.basename(os.path.realpath(f"{folder}/link"))]


def event_files_named_by_the_clock():
    from tensorboardX import SummaryWriter as OtherWriter
    from torch.utils.tensorboard import SummaryWriter

    seen = []
    for kind in (SummaryWriter, OtherWriter):
        folder = f"runs/{kind.__module__}-{300 + int(ddp_patch.rank() == 1)}"
        writer = kind(folder)
        if not os.path.exists(folder):
            os.makedirs(folder)
        torch.save(1, f"{folder}/last.pt")
        seen.append(sorted(name for name in os.listdir(folder) if not name.startswith("events")))
        writer.close()
    shutil.rmtree("runs")
    return seen


def flushed_by_the_clock():
    """As progress bars do, through a file that takes what goes to the terminal."""
    with open("a.txt", "w") as stream:
        for _ in range(3 + ddp_patch.rank()):
            stream.flush()
        stream.write("text")
        for _ in range(4 - ddp_patch.rank()):
            stream.flush()
        os.makedirs("folder")
    return open("a.txt").read()


def a_forward_that_writes():
    class Net(torch.nn.Linear):
        def forward(self, x):
            with open("seen.txt", "a") as stream:
                stream.write(f"{tuple(x.shape)} ")
            return super().forward(x)

    model = Net(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), 4):
        model(x).sum().backward()
        optimizer.step()
    return Path("seen.txt").read_text()


def trained_through(forward):
    class Net(torch.nn.Linear):
        def forward(self, x):
            return super().forward(forward(x))

    model = Net(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for (x,) in DataLoader(TensorDataset(torch.ones(12, 2)), 4):
        model(x).sum().backward()
        optimizer.step()


def a_forward_that_writes_to_what_is_open():
    with open("seen.txt", "w") as text, open("seen.bin", "wb") as raw:

        def forward(x):
            text.write(f"{tuple(x.shape)}\n")
            raw.write(bytes(len(x)))
            return x

        trained_through(forward)
    return Path("seen.txt").read_text(), Path("seen.bin").stat().st_size


def a_forward_that_logs():
    logger = logging.getLogger("of a forward")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    said = io.StringIO()
    handlers = [logging.FileHandler("seen.log"), logging.StreamHandler(said)]
    for handler in handlers:
        logger.addHandler(handler)

    def forward(x):
        logger.info("encoder %s", tuple(x.shape))
        return x

    trained_through(forward)
    for handler in handlers:
        logger.removeHandler(handler)
        handler.close()
    return Path("seen.log").read_text(), said.getvalue()


def a_forward_that_logs_events():
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("events")

    def forward(x):
        writer.add_scalar("rows", len(x), 1)
        return x

    trained_through(forward)
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("events")
    events.Reload()
    shutil.rmtree("events")  # named by the clock
    return [event.value for event in events.Scalars("rows")]


def a_forward_that_catches_warnings():
    def forward(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("unheard", stacklevel=1)
        return x

    with warnings.catch_warnings(record=True) as heard:
        trained_through(forward)
        warnings.warn("heard", stacklevel=1)
        filters = len(warnings.filters)
    return [str(each.message) for each in heard], filters


class Unsent(OSError):
    """Cannot be sent to other ranks, as an error of a server that has its connection."""

    def __init__(self, code):
        super().__init__(5, "unsent")
        self.code = code
        self.connection = threading.Lock()


def errors_while_a_file_is_open():
    said = []
    try:
        with open("data.txt", "w") as stream:
            stream.write("half")
            raise Unsent(404)
    except Unsent as error:
        said += [error.code, error.args, type(error.connection).__name__, error.__context__]
    missing = FileNotFoundError(2, "missing")
    try:
        with open("more.txt", "w"):
            raise missing
    except OSError as error:
        frames = traceback.extract_tb(error.__traceback__)
        said += [error is missing, frames[-1].line, Path("data.txt").read_text()]
    return said


def two_connections_to_a_database():
    reader = sqlite3.connect("runs.db")
    seen = []
    for value in range(3):
        with contextlib.closing(sqlite3.connect("runs.db")) as writer, writer:
            writer.execute("create table if not exists t (v)")
            writer.execute("insert into t values (?)", (value,))
            with contextlib.closing(sqlite3.connect("runs.db", timeout=0)) as other:
                try:
                    other.execute("insert into t values (7)")
                except sqlite3.OperationalError as error:
                    seen.append(str(error))
        seen.append(reader.execute("select count(*) from t").fetchone())
    seen.append(reader.execute("pragma journal_mode=wal").fetchone())
    reader.close()
    os.remove("runs.db")
    with contextlib.closing(sqlite3.connect("runs.db")) as anew:
        seen.append(anew.execute("select count(*) from sqlite_master").fetchone())
    os.remove("runs.db")
    return seen


def arrays_that_are_pickled_without_a_copy():
    array = np.arange(100_000, dtype=np.float64)
    with open("array.pkl", "wb") as stream:
        pickle.dump(array, stream, 5)
        wrote = stream.write(np.int32(7)), stream.write(memoryview(array[:3]))
    return wrote, Path("array.pkl").stat().st_size


def late(seconds=0.3):
    """Rank 0's disk is slow, say."""
    time.sleep(seconds * (ddp_patch.rank() == 0))


def files_that_are_opened_again_to_be_changed():
    """Whichever rank comes first finds what rank 0 has written by then."""
    seen = []
    stream = open("a.json", "w")
    late()
    json.dump(list(range(1000)), stream)
    del stream
    with open("a.json", "r+") as again:
        seen.append(len(json.load(again)))
    log = open("log.txt", "w")
    os.symlink("log.txt", "latest.txt")
    os.link("log.txt", "kept.txt")
    os.truncate("log.txt", 0)
    late()
    log.write("one\n")
    log.flush()
    seen.append(open("log.txt").read())
    late()
    log.write("two\n")
    log.flush()
    with open("log.txt", "a") as more:
        seen += [os.fstat(more.fileno()).st_size, more.tell()]
    log.close()
    descriptor = os.open("held.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    late()
    os.write(descriptor, b"three")
    other = os.open("held.txt", os.O_RDWR | os.O_APPEND)
    os.write(other, b" four")
    seen += [os.pread(other, 9, 0).decode(), os.fstat(descriptor).st_size]
    for part in (descriptor, other):
        os.close(part)
    return seen


class Rows(Dataset):
    """Rows that stand in a file."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return torch.tensor(self.array[index])


def maps_of_one_file():
    """As banks of features are: one map is written through, others are read."""
    seen = []
    bank = np.memmap("bank.dat", "f4", "w+", shape=(8, 2))
    views = [np.memmap("bank.dat", "f4", mode, shape=(8, 2)) for mode in ("r", "r+", "c")]
    bank[:] = 1
    for view in views:
        seen += [x.sum().item() for x in DataLoader(Rows(view), 8)]
    views[1][0] = 5
    seen += [float(bank[0, 0]), float(views[0][0, 0]), np.fromfile("bank.dat", "f4").sum().item()]
    bank = np.memmap("bank.dat", "f4", "w+", shape=(8, 2))
    bank[1] = 3
    seen += [float(views[0].sum()), float(views[1].sum())]
    with open("bank.dat", "rb") as stream:
        seen.append(np.frombuffer(stream.read(), "f4").sum().item())
        bank[2] = 4
        stream.seek(16)
        seen.append(np.frombuffer(stream.read(), "f4")[0].item())
    del bank, view, views
    again = np.memmap("bank.dat", "f4", "r+", shape=(8, 2))
    seen.append(float(again.sum()))
    os.remove("bank.dat")
    other = np.memmap("bank.dat", "f4", "w+", shape=(8, 2))
    other[:] = 7
    return [*seen, float(again.sum()), float(np.memmap("bank.dat", "f4", "r").sum())]


def files_that_are_followed():
    """Read on while they are written, through handles that were opened before."""
    seen = []
    with open("log.txt", "w") as log, open("log.txt") as tail, open("log.txt", "rb") as raw:
        for step in range(3):
            print(f"step {step + ddp_patch.rank()}", file=log, flush=True)
            while not (line := tail.readline()):
                time.sleep(0.1)
            seen += [line, tail.readline(), raw.read().decode(), raw.tell(), os.fstat(raw.fileno()).st_size > 0]
        raw.seek(-2, 2)
        seen += [raw.read(1).decode().isdigit(), tail.name, tail.mode, raw.name, raw.mode, tail.encoding]
        log.write("unflushed")
        seen.append(tail.read())
        log.seek(0)
        log.write("STEP")
        log.flush()
        tail.seek(0)
        seen += [tail.readline(), list(tail)]
    with open("log.txt", "w+") as log, open("log.txt", "r+") as other:
        log.write("both ways\n")
        log.flush()
        seen += [other.readline(), other.readline()]
        other.seek(0)
        other.write("BOTH")
        other.flush()
        log.seek(0)
        seen.append(log.read())
    return seen


HABITS = [
    maps_of_one_file,
    files_that_are_followed,
    files_that_are_opened_again_to_be_changed,
    threads_that_write_and_are_waited_for,
    files_that_are_saved_by_name,
    functions_are_copied,
    a_forward_that_writes_to_what_is_open,
    a_forward_that_logs,
    a_forward_that_logs_events,
    a_forward_that_catches_warnings,
    errors_while_a_file_is_open,
    arrays_that_are_pickled_without_a_copy,
    two_connections_to_a_database,
    low_level_habits,
    what_threads_write,
    names_by_the_clock,
    event_files_named_by_the_clock,
    flushed_by_the_clock,
    a_forward_that_writes,
    a_database,
    arrays_on_disk,
    pictures,
    commands_of_threads,
    pools_of_threads,
    threads_that_are_asked_whether_they_are_done,
    commands_that_are_handed_over,
    commands_that_write_to_temporary_places,
    commands_after_a_loader_that_one_rank_reads,
    temporary_folders_of_the_system_that_are_moved,
    pipes_read_by_others,
    generators_that_are_handed_on,
    films,
    compiled,
    locks_and_waits,
    a_library_that_locks_its_cache,
    results_elsewhere,
    trackers,
    runs_that_are_asked_for,
    experiments,
    tasks,
    windows,
    other_libraries,
    log_files,
    commands,
    a_thread_that_saves,
    event_files,
    text_files,
    binary_files,
    formats,
    folders,
    a_log_that_stays_open,
    old_snapshots_are_removed,
    temporary_files,
    names_that_differ_between_ranks,
    errors_while_writing,
]


def run_all(names):
    """Run habits, each in a folder of its own, and give what each returned."""
    given = {}
    for name in names:
        os.mkdir(name)
        os.chdir(name)
        torch.manual_seed(0)
        given[name] = globals()[name]()
        os.chdir("..")
    return given
