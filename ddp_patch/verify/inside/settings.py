"""What one recorded run is to do, from the process that compares to the ones that are compared."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20240917  # of scripts that seed nothing themselves


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of one run, the same for all of its ranks."""

    record: str
    """Folder that the ranks write their records to."""

    folder: str
    """Working folder of the run; what is written elsewhere is told."""

    enable: bool = False
    """Run under ddp_patch, which the script does not enable itself."""

    alone: bool = True
    """One process: an ``enable(nproc=...)`` of the script starts no others."""

    steps: int | None = None
    """Optimizer steps after which the script is ended."""

    still: bool = False
    """Hold draws for rows still: dropout, noise in a forward, augmentation."""

    float64: bool = False
    """Compute in float64 where the script says float32, or nothing."""

    local: bool = False
    """The ranks see their own rows: note what each of them loads, writes and holds."""

    batches: str = ""
    """File of batches that shuffled loaders give, so that two scripts see their rows in one order."""

    linked: dict[str, str] = dataclasses.field(default_factory=dict)
    """Large files of the folder that are links to the user's, which are copied before anybody writes to them."""

    kept: list[str] = dataclasses.field(default_factory=list)
    """Large folders of the user's that links of the folder lead to: nobody may write to them."""

    def write(self, path: Path) -> None:
        """Leave them in a file."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> Settings:
        """Read what ``write`` left."""
        values: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**values)
