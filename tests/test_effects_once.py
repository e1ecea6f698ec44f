"""Outward effects that take side ways: what rank 0 does is done once, and what it gets every rank gets."""

import os
import sys

import numpy as np


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
    import ddp_patch

    ddp_patch.disable()
    assert sys.modules["numpy.lib._datasource"]._file_openers._file_openers[None] is open
    ddp_patch.enable()
    return texts_of_numpy()


def test_numpy_writes_and_reads_texts_of_rank_0(ranks):
    for function in (texts_of_numpy, texts_of_numpy_later):
        results = ranks.call(function, 3).ok().results
        expected = [results[0][0]] * 8 + [[1.0, 2.0]]
        assert [seen for _, seen in results] == [expected] * 3
