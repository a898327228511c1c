"""Storage of generations during sampling: finished samples are saved in parts, so that a killed evaluation resumes."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from redraft.data_dictionary import described
from redraft.errors import UserError
from redraft.files import atomic, errors_of_reading, read_json, read_parquet, remove, unfinished, write_json
from redraft.messages import echo
from redraft.provenance import machine

SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "benchmark": pa.string(),
        "problem": pa.int64(),
        "sample": pa.int64(),
        "prompt": pa.string(),
        "answer": pa.string(),
        "tokens": pa.list_(pa.int32()),
        "text": pa.string(),
        "finish": pa.string(),
        "seconds": pa.float64(),
    }
)
"""Columns of generations. `seconds` is the wall time of samples that were saved together, divided by their number."""
WHOLE = "whole.parquet"
"""Name of the part with all samples, once they are complete."""
MACHINES = "machines.json"
"""Name of the file, beside the parts, with the machines that sampled them."""
KEY = ["step", "benchmark", "problem", "sample"]
SAVE_SECONDS = 60.0
"""Wall time between two parts."""


class GenerationParts:
    """Finished samples, from this run or from earlier ones that were interrupted.

    Args:
        file: the file that will hold all samples.
        identity: fingerprint of the generations; parts with another fingerprint are not read.
        check: raises if another process has taken the folder; called before every write.
        describe: machine of this process; called once it has sampled.

    Attributes:
        done: keys (step, benchmark, problem, sample) of the saved samples.
    """

    def __init__(
        self,
        file: Path,
        identity: str,
        check: Callable[[], None] = lambda: None,
        describe: Callable[[], dict[str, Any]] = machine,
    ) -> None:
        self.file, self.check, self._describe = file, check, describe
        self.folder = file.with_name(f"{file.name}.parts") / identity
        self.done: set[tuple[Any, ...]] = set()
        # Left by killed processes: the caller has the lease of the folder.
        remove([*unfinished(self.folder.parent), *file.parent.glob(f".{file.name}.*.tmp")])
        for path in self._paths():
            try:
                # All columns, though only keys are used: a column is checked for damage when it is read.
                self.done.update(read_parquet(path, tuple(SCHEMA.names))[KEY].itertuples(index=False, name=None))
            except UserError as error:
                echo(f"a part of the generations is damaged, so its samples are sampled again: {error}", err=True)
                path.unlink()
        self._rows: list[dict[str, Any]] = []
        self._own: dict[str, Any] | None = None
        self._began = time.perf_counter()

    def _paths(self) -> list[Path]:
        whole = self.folder / WHOLE
        # Parts next to the whole are left by a kill within `finish`, and are in it.
        # Numbered names only: a kill just before the whole was renamed leaves its hidden name, with the same samples.
        return [whole] if whole.exists() else sorted(self.folder.glob("[0-9]*.parquet"))

    def begin(self) -> None:
        """Start the clock for the wall time of the samples that are added next."""
        self._began = time.perf_counter()

    def add(self, *rows: dict[str, Any]) -> None:
        """Add samples that finished together: values of the columns of `SCHEMA`; `seconds` is optional."""
        self._rows += rows
        if time.perf_counter() - self._began >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the samples added since the last part."""
        if not self._rows:
            return
        self.check()
        now = time.perf_counter()
        share = {"seconds": (now - self._began) / len(self._rows)}
        # A row may have seconds already, as those of lm-eval do.
        rows = [share | row for row in self._rows]
        self._add_machine()
        number = max((int(path.stem) for path in self.folder.glob("[0-9]*.parquet")), default=-1) + 1
        with atomic(self.folder / f"{number:06d}.parquet") as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary, write_page_checksum=True)
        self.done |= {tuple(row[name] for name in KEY) for row in rows}
        self._rows, self._began = [], now

    @property
    def machines(self) -> list[dict[str, Any]]:
        """Machines on which the saved samples were sampled, each once, in order."""
        file = self.folder / MACHINES
        return list(read_json(file)) if file.exists() else []

    def _add_machine(self) -> None:
        """Record this machine, before its first part, so that no sample is of an unknown one."""
        if self._own is None:
            self._own = self._describe()
            if self._own not in (known := self.machines):
                write_json(self.folder / MACHINES, [*known, self._own])

    def finish(self, benchmarks: list[str]) -> None:
        """Write all samples to the one file, ordered by step, benchmark (as listed), problem and sample.

        At most one policy's samples of one benchmark are in memory. A hard link to the file replaces the parts: when
        Snakemake starts again after it was killed, it removes the output, since it cannot know that the file is
        complete. The link keeps the samples.
        """
        self.save()
        self.check()
        parts = ds.dataset([str(path) for path in self._paths()], schema=SCHEMA)
        order = [(step, name) for step in sorted({key[0] for key in self.done}) for name in benchmarks]
        schema = described(SCHEMA, "generations")
        with atomic(self.file) as temporary, pq.ParquetWriter(temporary, schema, write_page_checksum=True) as writer:
            for step, name in order:
                chosen = parts.to_table(filter=(ds.field("step") == step) & (ds.field("benchmark") == name))
                writer.write_table(chosen.sort_by([("problem", "ascending"), ("sample", "ascending")]))
        whole = self.folder / WHOLE
        with suppress(OSError):  # without hard links the parts stay
            # Renamed into place: an earlier link may be the only copy, which a killed process must leave.
            link = whole.with_name(f".{WHOLE}")
            link.unlink(missing_ok=True)
            link.hardlink_to(self.file)
            link.replace(whole)
            for part in self.folder.glob("[0-9]*.parquet"):
                part.unlink()
        for other in self.folder.parent.glob(f"*/{WHOLE}"):  # complete generations of other fingerprints
            if other.parent != self.folder:
                shutil.rmtree(other.parent)


def read_without_tokens(file: Path) -> pd.DataFrame:
    """Read generations with the number of tokens (`length`) instead of the tokens, which would fill the memory.

    Raises:
        UserError: if the file is missing, damaged or lacks a column.
    """
    names = [name for name in SCHEMA.names if name != "tokens"]
    with errors_of_reading(file, OSError, pa.ArrowInvalid):
        source = pq.ParquetFile(file, page_checksum_verification=True)
        if lacking := [name for name in SCHEMA.names if name not in source.schema_arrow.names]:
            raise UserError("this file lacks a column", file=file, key=lacking[0], allowed=", ".join(SCHEMA.names))
        frame = source.read(columns=names).to_pandas()
        lengths = [
            pa.compute.list_value_length(batch.column("tokens"))
            for batch in source.iter_batches(batch_size=1024, columns=["tokens"])
        ]
    return frame.assign(length=pa.chunked_array(lengths, pa.int32()).to_pandas() if lengths else pd.Series(dtype=int))
