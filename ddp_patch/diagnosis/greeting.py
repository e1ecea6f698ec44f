"""What rank 0 says on standard error while a job begins: how many ranks there are, and what became the model."""

from __future__ import annotations

import sys

from ..ledger import FEWER_ROWS, Ledger


class Greeting:
    """Says each thing once."""

    def __init__(self, ledger: Ledger, is_spoken: bool) -> None:
        """Say nothing yet.

        Args:
            ledger: of the session.
            is_spoken: this is rank 0, and the person did not ask for silence.
        """
        self._ledger = ledger
        self._is_spoken = is_spoken
        self.said = -1  # models that were named

    def started(self, size: int, device: str, launcher: str) -> None:
        """The ranks have met.

        Args:
            size: of the job.
            device: of this rank, in words.
            launcher: that started them.
        """
        self._say(f"{size} ranks on {device}, started by {launcher}.")

    def stepped(self) -> None:
        """An optimizer has stepped, or the script by hand: what is trained has been called."""
        models = list(self._ledger.replicas)
        if self.said == len(models):
            return
        for name in models[max(self.said, 0) :]:
            self._say(f"{name} is the model; {self._how(name)}.")
        if not models:
            self._say(self._without_model())
        self.said = len(models)

    def _without_model(self) -> str:
        """Say why nothing is split, and what is all the same."""
        if self._ledger.batches and self._ledger.small_batches == self._ledger.batches:
            return f"every batch so far has {FEWER_ROWS}, so every rank computes all of it: right, but not faster."
        split = "every rank computes everything: right, but not faster"
        if self._ledger.loaders:
            split = "only what functions compute of each row of a loader's batches is split"
        return f"no batch has reached a model yet, so {split}."

    def _how(self, name: str) -> str:
        if name in self._ledger.on_whole:
            return "every rank computes its whole batch, as the report says (DDP_PATCH_REPORT=1)"
        if name in self._ledger.on_batches:
            return "it runs function by function, as the report says (DDP_PATCH_REPORT=1)"
        return "each rank computes its rows"

    def _say(self, text: str) -> None:
        if not self._is_spoken:
            return
        tqdm = sys.modules.get("tqdm")
        if tqdm is None:
            sys.stderr.write(f"ddp_patch: {text}\n")
        else:  # its bar is on that line
            tqdm.tqdm.write(f"ddp_patch: {text}", file=sys.stderr)
