"""What a session does once for all ranks: files, folders, commands, checkpoints, and whatever meets at rank 0."""

from __future__ import annotations

from ..batch.world import World
from ..job.job import Job
from .atomic_saving import AtomicSaves
from .commands import Commands
from .console import Console
from .device_map import DeviceMap
from .disks import Disks
from .file_objects import flush_all
from .file_queries import FileQueries
from .files import Files
from .folders import Folders
from .ownership import Ownership
from .per_host import PerHost
from .rank_zero import RankZero
from .shared import ANY, Library, SharedObjects
from .temporary import TemporaryPlaces


class Once:
    """The effects of a session, each by its name."""

    job: Job

    def __init__(self, world: World, job: Job) -> None:
        """Put its parts together; nothing changes yet.

        Args:
            world: of the session.
            job: that this process is a rank of.
        """
        self.device_map = DeviceMap(job.device)
        self.rank_zero = RankZero(job.rank_status, world)
        self.owners = Ownership()
        self.disks = Disks(self.rank_zero, world, job.sees_one_disk)
        self.files = Files(self.rank_zero, self.owners, self.disks)
        self.looks = FileQueries(self.rank_zero, self.owners, self.files, self.disks)
        self.folders = Folders(self.rank_zero, self.owners, self.files)
        self.per_host = PerHost(self.rank_zero, world, job.placement.local_rank, job.sees_one_disk)
        self.places = TemporaryPlaces(self.rank_zero)
        self.commands = Commands(self.rank_zero, self.owners, self.files, self.places)
        self.checkpoints = AtomicSaves(world, self.rank_zero, self.owners, self.files)
        self.console = Console(world, self.rank_zero, job.crash, job.signals.alone)
        self._shared: dict[Library, SharedObjects] = {}

    def shared(self, library: Library = ANY) -> SharedObjects:
        """Give what rank 0 has of a library's objects."""
        if library not in self._shared:
            self._shared[library] = SharedObjects(self.rank_zero, self.owners, library)
        return self._shared[library]

    def _finish_effects(self) -> None:
        """Write what is left to write; from now on, everything is done as it comes."""
        self.console.blame.stop()
        flush_all()
        error = self.rank_zero.pending
        if error is not None and not self.job.crash.failed:
            self.job.crash(type(error), error, None)
        with self.rank_zero.alone():
            self.files.close()
        self.rank_zero.stop()
