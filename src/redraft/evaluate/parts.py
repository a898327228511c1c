"""Generations on their way to one file: finished samples are saved in parts, so that a killed run resumes."""

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.errors import UserError
from redraft.files import atomic, read_parquet

COLUMNS = ("step", "benchmark", "problem", "sample", "prompt", "answer", "tokens", "text", "finish", "seconds")
"""Columns of generations; `seconds` is a sample's share of the wall seconds that it was made in."""
KEY = ["step", "benchmark", "problem", "sample"]


class Parts:
    """Samples that were finished by earlier runs or this one.

    Args:
        file: where all of them will be.
        identity: fingerprint of what is sampled; parts of anything else are left alone.
        every: seconds between two parts.
    """

    def __init__(self, file: Path, identity: str, every: float = 60.0) -> None:
        self.file, self.every = file, every
        self._all = file.with_name(f"{file.name}.parts")
        self.folder = self._all / identity
        self._saved = [part for path in sorted(self.folder.glob("*.parquet")) for part in _read(path)]
        self._rows: list[dict[str, Any]] = []
        self._began = time.perf_counter()

    @property
    def done(self) -> set[tuple[int, str, int, int]]:
        """Keys of the samples that are saved."""
        return {key for part in self._saved for key in part[KEY].itertuples(index=False, name=None)}

    def begin(self) -> None:
        """What is added from here on was sampled from here on."""
        self._began = time.perf_counter()

    def add(self, row: dict[str, Any]) -> None:
        """A finished sample, all columns but the seconds."""
        self._rows.append(row)
        if time.perf_counter() - self._began >= self.every:
            self.save()

    def save(self) -> None:
        """Write what was added since the last part."""
        if not self._rows:
            return
        now = time.perf_counter()
        frame = pd.DataFrame(self._rows).assign(seconds=(now - self._began) / len(self._rows))
        with atomic(self.folder / f"{len(self._saved):06d}.parquet") as temporary:
            frame.to_parquet(temporary, index=False)
        self._saved.append(frame)
        self._rows, self._began = [], now

    def finish(self, order: dict[str, int]) -> None:
        """Write all samples to the one file, by step, benchmark in this order, problem and sample; drop the parts."""
        self.save()
        frame = pd.concat(self._saved, ignore_index=True)
        rank = frame["benchmark"].map(order)
        frame = frame.assign(rank=rank).sort_values(["step", "rank", "problem", "sample"]).drop(columns="rank")
        with atomic(self.file) as temporary:
            frame[list(COLUMNS)].to_parquet(temporary, index=False)
        shutil.rmtree(self._all)


def _read(path: Path) -> list[pd.DataFrame]:
    """A part, or none if it is damaged: its samples are made again."""
    try:
        return [read_parquet(path, COLUMNS)]
    except UserError as error:
        print(f"these samples are made again: {error}", file=sys.stderr)
        return []
