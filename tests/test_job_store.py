"""The board of a job: what its ranks ask of the store does not grow with their number."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from ddp_patch.errors import LaunchError
from ddp_patch.job import hosts, views
from ddp_patch.job.job_store import JobStore
from ddp_patch.job.launcher import LaunchInfo
from ddp_patch.job.rank_status import RankStatus
from ddp_patch.job.store_waits import Waiting


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store):
        self.store, self.count = store, 0

    def __getattr__(self, name):
        method = getattr(self.store, name)

        def call(*args):
            self.count += 1
            return method(*args)

        return call


@pytest.fixture
def server(monkeypatch):
    """The store, and where it is."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    return store


def a_board(rank, size):
    return JobStore(rank, size, timedelta(seconds=60), lambda: False)


def a_status(rank, size):
    return RankStatus(rank, size, 60.0)


def on_ranks(size, function, make=a_board):
    """Call a function with the board of each rank, in a thread each, and give what they returned and asked for."""
    boards = [make(rank, size) for rank in range(size)]
    counts, results, errors = [Counting(board._store) for board in boards], [None] * size, []

    def run(rank):
        try:
            boards[rank]._store = counts[rank]
            results[rank] = function(boards[rank], rank)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for board in boards:
        board.close()
    assert not errors
    return results, [count.count for count in counts]


def told(rank, length):
    return bytes([rank]) * length


@pytest.mark.parametrize("length", [0, 5, 2**14, 2**14 + 1, 9 * 2**20])
def test_every_rank_has_what_all_posted(server, length):
    def post(board, rank):
        board.post("first", told(rank, length + rank))
        assert board.wait("first/all", 60) is not None
        return [part == told(of, length + of) for of, part in enumerate(board._read_once("first"))]

    before = server.num_keys()
    results, _ = on_ranks(3, post)
    assert results == [[True] * 3] * 3
    assert server.num_keys() == before  # nothing is left behind


@pytest.mark.parametrize("size", [2, 8, 32, 64])
def test_what_a_rank_asks_for_does_not_grow_with_their_number(server, size):
    def post(board, rank):
        board.post("first", told(rank, 200))
        board.wait("first/all", 60)
        return len(board._read_once("first"))

    results, asked = on_ranks(size, post)
    assert results == [size] * size
    # Put, come, read and say so; the last one lets the others know, and has forgotten what nobody asks for any more.
    assert max(asked) <= 9
    assert sum(asked) == 4 * size + 5


def test_what_a_failure_and_an_end_ask_for_does_not_grow_either(server):
    def fail(board, rank):
        board.check_all_failed(ValueError("the same"), "call 1")
        board.wait_for_the_end()

    few, many = [max(on_ranks(size, fail, a_status)[1]) for size in (2, 32)]
    assert many <= few <= 12


def test_the_rank_that_holds_the_store_waits_for_others_without_asking_again_and_again(server):
    def leave(board, rank):
        if rank:
            time.sleep(1.0)
            board.refresh([])
        else:
            board.leave("this rank cannot go on")
            board.wait_until_heard()
            assert board.read(["heard/all"]) == [b"1"]
        return board.out_of_step

    results, asked = on_ranks(3, leave, lambda rank, size: RankStatus(rank, size, 60.0, holder=0))
    assert results == ["this rank cannot go on"] * 3
    assert asked[0] <= 7


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("size", [2, 16])
def test_what_ranks_see_of_their_hosts_is_told_with_as_few_requests(server, size, missing):
    view, left = hosts.look(None), server.num_keys()
    stores = [Counting(TCPStore("127.0.0.1", server.port, is_master=False)) for _ in range(size - missing)]

    def tell(rank):
        try:
            return [its == view for its in views.told_by_all(view, stores[rank], LaunchInfo(rank, size, 0, 1), 2.0)]
        except LaunchError as error:
            return str(error)

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(tell, range(size - missing)))
    if missing:
        assert all(f"for rank {size - 1}, of {size}, which did not come" in message for message in found)
    else:
        assert found == [[True] * size] * size
        assert server.num_keys() == left  # nothing is left behind
    assert max(store.count for store in stores) <= 14  # the first rank, which waits for the others and clears up
    assert sum(store.count for store in stores) <= 9 * size + 8  # two each where connections take long


class SlowToConnect(Counting):
    """A store that takes longer to connect to than ranks wait, as where names of hosts are not found at once."""

    def clone(self):
        time.sleep(1.0)
        return self.store.clone()


@pytest.mark.parametrize("has_come", [True, False])
def test_what_has_come_is_found_however_long_a_connection_takes(server, has_come):
    waiting = Waiting(SlowToConnect(server))

    def come():
        time.sleep(0.1)
        server.set("first", "told")

    coming = threading.Thread(target=come if has_come else None)
    coming.start()
    assert waiting.get("first", 0.3) == (b"told" if has_come else None)
    coming.join()
    waiting.close()
