"""Runs verify over a folder of scripts: ``python tests/verify/collection.py sound [name ...]``."""

import io
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))


def scripts(kind):
    """The scripts of a collection; ``x.py`` is verified against ``x_old.py`` where there is one."""
    return sorted(path for path in (HERE / kind).glob("*.py") if not path.name.endswith("_old.py"))


def options(path):
    """What the script's first line asks verify for: ``# verify: --nproc 3``."""
    first = path.read_text().splitlines()[0]
    return first.removeprefix("# verify:").split() if first.startswith("# verify:") else []


def fault_lines(path):
    """Lines that are marked as the fault: the one to change, or beside which one is missing."""
    return {f"{path.name}:{n}" for n, text in enumerate(path.read_text().splitlines(), 1) if "# FAULT" in text}


def verify(path, start, folder):
    """Verify one script in an empty folder; gives the exit code, the result, and what was said."""
    from ddp_patch.verify.command import command

    old = path.with_name(f"{path.stem}_old.py")
    against = ["--against", str(old)] if old.exists() else []
    out, err = io.StringIO(), io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = command(["--json", "result.json", *options(path), *against, str(path)], start)
    finally:
        os.chdir(before)
    result = Path(folder, "result.json")
    return code, json.loads(result.read_text()) if result.exists() else None, out.getvalue() + err.getvalue()


def named_lines(result):
    """Lines that verify names, in order: those to look at, or where the first difference is."""
    (found,) = result["results"]
    return [cause["line"] for cause in found["causes"]] or [entry["line"] for entry in found["differences"][:1]]


def main(kind, *names):
    from verify.warm import Warm

    start = Warm()
    good = total = named = first = 0
    for path in scripts(kind):
        if names and path.stem not in names:
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            code, result, said = verify(path, start, folder)
        word = result["results"][0]["verdict"] if result else "?"
        wanted = 0 if kind == "sound" else 1
        total += 1
        good += code == wanted
        lines = named_lines(result) if result else []
        right = bool(set(lines) & fault_lines(path))
        named += right
        first += bool(set(lines[:1]) & fault_lines(path))
        mark = "" if code == wanted else "  <-- WRONG"
        line = "" if kind == "sound" else f" {'line' if right else 'NO LINE'} {lines}"
        print(f"{path.stem:28} {code} {word:20} {time.monotonic() - begin:5.1f}s{line}{mark}", flush=True)
        if mark or names or (kind != "sound" and lines[:1] and lines[0] not in fault_lines(path)):
            print("    " + said.replace("\n", "\n    "), flush=True)
    print(
        f"{good} of {total} as wanted"
        + ("" if kind == "sound" else f", the right line first for {first}, among three for {named}")
    )
    start.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
