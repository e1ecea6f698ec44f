"""What one measured run is to do, from the command to the ranks that it starts."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROFILED = 4  # steps on ranks in which Python's own profiler runs, after those that are clocked


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The same for all ranks of a run."""

    record: str
    """Folder that the ranks write their records to."""

    folder: str
    """Working folder of the run."""

    enable: bool
    """Run under ddp_patch, which the script does not enable itself."""

    warmup: int
    """Steps that are not measured: ddp_patch decides what splits, and caches get warm."""

    steps: int
    """Steps whose seconds are written down."""

    traced: int = 0
    """Steps after these in which torch's profiler runs."""

    goes_on: bool = False
    """Let the script go on to its end after the last of them."""

    linked: dict[str, str] = dataclasses.field(default_factory=dict)
    """Large files of the folder that are links to the user's, which are copied before anybody writes to them."""

    def write(self, path: Path) -> None:
        """Leave it in a file."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> Wanted:
        """Read what ``write`` left."""
        values: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**values)
