"""Reading experiment files and resolving cells to runs. Errors name file, key, value and what is allowed."""

import itertools
import re
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from redraft.config.base import PAPER, near
from redraft.config.claims import ClaimFile
from redraft.config.data import Benchmark, BenchmarkFile, Sampling
from redraft.config.experiment import Cell, CellFile, Exclusion, Grid, Preset, Run
from redraft.config.figures import FigureFile
from redraft.config.reported import Reported
from redraft.config.tables import TableFile
from redraft.config.trainer import Trainer
from redraft.errors import UserError
from redraft.layout import code_root

M = TypeVar("M", bound=BaseModel)


class _UniqueKeys(yaml.CSafeLoader):
    """YAML in which a key that stands twice is an error instead of silently the last one."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", node.start_mark)
    return {key: loader.construct_object(value, deep=True) for key, (_, value) in zip(keys, node.value, strict=True)}


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse(model: type[M], content: Any, file: Path | str, context: dict[str, Any] | None = None) -> M:
    """Validate `content` as `model`; what else its validators must know is `context`.

    Raises:
        UserError: with the first offending key, its value and what is allowed.
    """
    try:
        return model.model_validate(content, context=context)
    except ValidationError as error:
        first = error.errors()[0]
        tag = ("kind",) if first["type"].startswith("union_tag") else ()
        key = ".".join(str(part) for part in (*first["loc"], *tag)) or "(the whole file)"
        allowed = first.get("ctx", {}).get("expected_tags") or first.get("ctx", {}).get("expected")
        if first["type"] == "extra_forbidden":
            allowed = _fields_at(model, first["loc"])
        value = first["input"] if not isinstance(first["input"], dict) else first["input"].get("kind", "(a mapping)")
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(message, file=file, key=key, value=value, allowed=allowed) from None


def _fields_at(model: type[BaseModel], location: tuple) -> str | None:
    """The fields of the model that holds the unknown key, found by walking the schema along the error's location."""
    schema = model.model_json_schema()
    node: dict = schema
    for part in location[:-1]:
        node = _resolve(schema, node)
        if isinstance(part, int):
            node = node.get("items", {})
        elif part in node.get("properties", {}):
            node = node["properties"][part]
        elif part in node.get("discriminator", {}).get("mapping", {}):
            node = {"$ref": node["discriminator"]["mapping"][part]}
        else:
            node = mapping_values(node)
    fields = _resolve(schema, node).get("properties", {}) if isinstance(node, dict) else {}
    return ", ".join(sorted(fields)) or None


def mapping_values(schema: dict) -> dict:
    """The JSON schema of a mapping's values, whether or not its keys have a pattern."""
    values: Any = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
    return values if isinstance(values, dict) else {}


def _resolve(schema: dict, node: dict) -> dict:
    return schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node


def read_yaml(file: Path) -> Any:
    """Parse a YAML file.

    Raises:
        UserError: if it is missing, not UTF-8 or not YAML.
    """
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except FileNotFoundError:
        siblings = (path.stem for path in file.parent.glob("*.yaml"))
        raise UserError("no such file", file=file, allowed=siblings) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("not UTF-8", file=file, key=f"line {line}", value=error.object[error.start]) from None
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from None


def merge(base: dict, change: dict) -> dict:
    """`base` with `change` laid over it, mapping by mapping. Neither is changed."""
    merged = dict(base)
    for key, value in change.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


class Experiments:
    """The experiment files under one root, read on demand.

    Args:
        root: the repository's root, or any folder with an `experiments` folder of the same layout; where this code
            runs from if none is given.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = code_root() if root is None else Path(root)
        self.folder = self.root / "experiments"

    @property
    def papers(self) -> list[str]:
        """Names of all papers."""
        return sorted(file.parent.name for file in self.folder.glob("*/cells.yaml"))

    @cache  # noqa: B019 - one instance lives as long as the process
    def cell_file(self, paper: str) -> CellFile:
        """The parsed `cells.yaml` of a paper."""
        file = self.folder / paper / "cells.yaml"
        if not file.exists():
            raise UserError("no such paper", file=self.folder, key="paper", value=paper, allowed=self.papers)
        if not re.fullmatch(PAPER, paper):
            raise UserError("a paper's folder has a name that paths and rules cannot take", file=file.parent,
                            key="paper", value=paper, allowed="a-z, 0-9 and _")  # fmt: skip
        return parse(CellFile, read_yaml(file), file)

    @cache  # noqa: B019
    def preset(self, name: str) -> Preset:
        """The preset of that name."""
        file = self.folder / "presets" / f"{name}.yaml"
        preset = parse(Preset, read_yaml(file), file)
        if preset.name != name:
            raise UserError("a preset is named as its file", file=file, key="name", value=preset.name, allowed=name)
        if preset.protocol:
            return preset.model_copy(update={"benchmarks": self.protocol(preset.protocol, file)})
        return preset

    @cache  # noqa: B019
    def benchmark_file(self) -> BenchmarkFile:
        """The parsed `benchmarks.yaml`."""
        return parse(BenchmarkFile, read_yaml(self._benchmarks), self._benchmarks)

    @property
    def _benchmarks(self) -> Path:
        return self.folder / "benchmarks.yaml"

    def protocol(self, name: str, asking: Path | None = None) -> dict[str, Benchmark]:
        """The benchmarks of a protocol, as they are sampled there, for a preset's file or nobody.

        Raises:
            UserError: for an unknown protocol, benchmark or key.
        """
        content, file = self.benchmark_file(), self._benchmarks
        if name not in content.protocols:
            raise UserError("no such protocol", file=asking, key="protocol", value=name, allowed=content.protocols)
        protocol = content.protocols[name]
        common = protocol.sampling.model_dump(exclude_unset=True)
        benchmarks = {}
        for benchmark, changes in protocol.benchmarks.items():
            if benchmark not in content.sets:
                raise UserError("no such benchmark", file=file, key=f"protocols.{name}.benchmarks", value=benchmark,
                                allowed=content.sets)  # fmt: skip
            sampling = parse(Sampling, common | changes, f"{file}, protocol {name}, benchmark {benchmark}")
            benchmarks[benchmark] = Benchmark(
                **dict(content.sets[benchmark]), **sampling.model_dump(exclude_unset=True)
            )
        return benchmarks

    def tables(self, paper: str) -> TableFile:
        """The parsed `tables.yaml` of a paper."""
        return self._about_cells(TableFile, paper, "tables.yaml")

    def figures(self, paper: str) -> FigureFile:
        """The parsed `figures.yaml` of a paper."""
        return self._about_cells(FigureFile, paper, "figures.yaml")

    def claims(self, paper: str) -> ClaimFile:
        """The parsed `claims.yaml` of a paper."""
        return self._about_cells(ClaimFile, paper, "claims.yaml")

    def _about_cells(self, model: type[M], paper: str, name: str) -> M:
        """A parsed file that names cells, all of which the paper must have; empty if the paper has no such file."""
        cells, _, _ = self._expanded(paper)
        file = self.folder / paper / name
        return parse(model, read_yaml(file) if file.exists() else {}, file, {"cells": cells})

    @cache  # noqa: B019
    def reported(self, paper: str) -> Reported | None:
        """The parsed `reported.yaml` of a paper; None if nothing of it is transcribed."""
        file = self.folder / paper / "reported.yaml"
        return parse(Reported, read_yaml(file), file) if file.exists() else None

    @cache  # noqa: B019
    def _expanded(self, paper: str) -> tuple[dict[str, Cell], dict[str, Exclusion], dict[str, list[str]]]:
        """Cells by name, exclusions by the name the cell would have, and names by grid."""
        file = self.folder / paper / "cells.yaml"
        cells: dict[str, Cell] = {}
        excluded: dict[str, Exclusion] = {}
        grids: dict[str, list[str]] = {}
        for grid in self.cell_file(paper).grids:
            _check_exclusions(grid, file)
            for labels in itertools.product(*grid.axes.values()):
                name = "-".join(label for label in labels if label)
                exclusion = _exclusion(grid, dict(zip(grid.axes, labels, strict=True)))
                if exclusion:
                    excluded[name] = exclusion
                    continue
                cell = _cell(paper, name, grid, labels, file)
                if cells.setdefault(name, cell) != cell:
                    raise UserError("two grids define this cell differently", file=file, key="grids", value=name)
                grids.setdefault(grid.name, []).append(name)
        return cells, excluded, grids

    def cells(self, paper: str, grids: list[str] | None = None) -> list[Cell]:
        """Cells of a paper in the order of the file, those of some grids or all."""
        cells, _, by_grid = self._expanded(paper)
        if grids is None:
            return list(cells.values())
        for grid in grids:
            if grid not in by_grid:
                raise UserError("no such grid", file=self.folder / paper / "cells.yaml", value=grid, allowed=by_grid)
        return [cells[name] for name in dict.fromkeys(name for grid in grids for name in by_grid[grid])]

    def grids(self, paper: str, beyond_paper: bool) -> list[str]:
        """Names of the paper's grids of experiments that it reports, or of those that go beyond it."""
        grids = self.cell_file(paper).grids
        return list(dict.fromkeys(grid.name for grid in grids if grid.beyond_paper == beyond_paper))

    def cell(self, cell_id: str) -> Cell:
        """The cell called `paper/name`.

        Raises:
            UserError: if there is none, with near names; or if it is excluded, with the reason.
        """
        paper, _, name = cell_id.partition("/")
        file = self.folder / paper / "cells.yaml"
        cells, excluded, _ = self._expanded(paper)
        if name in cells:
            return cells[name]
        if name in excluded:
            raise UserError(f"this cell is excluded: {excluded[name].reason}", file=file, key="cell", value=cell_id)
        allowed = [f"{paper}/{c}" for c in near(name, cells)]
        raise UserError("no such cell", file=file, key="cell", value=cell_id, allowed=allowed)

    def run(self, cell_id: str, seed: int, preset_name: str) -> Run:
        """Resolve a cell with a preset and a seed to a complete run."""
        cell, preset = self.cell(cell_id), self.preset(preset_name)
        file = self.folder / "presets" / f"{preset_name}.yaml"
        if seed < 0:
            raise UserError("a seed must be >= 0", key="seed", value=seed)
        roles: dict[str, tuple[dict[str, Any], str]] = {
            "models": (preset.models, cell.model),
            "data": (preset.data, cell.data),
        }
        for key, (known, role) in roles.items():
            if role not in known:
                raise UserError(f"the preset has nothing for {cell.id}", file=file, key=key, value=role, allowed=known)
        trainer = _scaled(merge(preset.trainer.model_dump(), cell.trainer), cell, self.folder)
        return Run(
            preset=preset.name, paper=cell.paper, cell=cell.name, seed=seed, model_role=cell.model,
            data_role=cell.data, model=preset.models[cell.model], data=preset.data[cell.data],
            algorithm=cell.algorithm, reuse=cell.reuse, schedule=cell.schedule or cell.algorithm.usual_schedule,
            decoding=cell.decoding, engine=preset.engine,
            trainer=parse(Trainer, trainer, self.folder / cell.paper / "cells.yaml"),
        )  # fmt: skip


def _scaled(trainer: dict[str, Any], cell: Cell, folder: Path) -> dict[str, Any]:
    """The trainer's fields times the cell's factors; what comes out whole is an integer."""
    scaled = dict(trainer)
    for field, factor in cell.trainer_factors.items():
        if isinstance(value := trainer.get(field), bool) or not isinstance(value, int | float):
            raise UserError("no such number of a trainer", file=folder / cell.paper / "cells.yaml",
                            key=f"{cell.name}.trainer_factors", value=field, allowed=Trainer.model_fields)  # fmt: skip
        exact = Fraction(str(value)) * factor
        scaled[field] = exact.numerator if exact.denominator == 1 else float(exact)
    return scaled


def _cell(paper: str, name: str, grid: Grid, labels: tuple[str, ...], file: Path) -> Cell:
    content: dict = {"paper": paper, "name": name, **grid.cell}
    for fragments, label in zip(grid.axes.values(), labels, strict=True):
        content = merge(content, fragments[label])
    try:
        return parse(Cell, content, file)
    except UserError as error:
        error.message = f"cell {name}: {error.message}"
        raise UserError(error.message, file=file, key=error.key, value=error.value, allowed=error.allowed) from None


def _exclusion(grid: Grid, labels: dict[str, str]) -> Exclusion | None:
    matching = (e for e in grid.exclude if all(labels[axis] in values for axis, values in e.when.items()))
    return next(matching, None)


def _check_exclusions(grid: Grid, file: Path) -> None:
    for exclusion in grid.exclude:
        for axis, labels in exclusion.when.items():
            if axis not in grid.axes:
                raise UserError("no such axis", file=file, key="exclude.when", value=axis, allowed=grid.axes)
            for label in labels:
                if label not in grid.axes[axis]:
                    raise UserError(
                        "no such label", file=file, key=f"exclude.when.{axis}", value=label, allowed=grid.axes[axis]
                    )
