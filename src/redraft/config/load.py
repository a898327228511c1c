"""Reading of all experiment files, and resolution of cells to runs."""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from redraft.config import gym, own
from redraft.config import hyperparameters as trainers
from redraft.config.algorithm import DAPO, PPO
from redraft.config.base import LARGEST_SEED, PAPER, id_of, near
from redraft.config.cell import Cell, CellFile, coordinate
from redraft.config.claims import ClaimFile
from redraft.config.data import Benchmark, BenchmarkFile, Data, Role, Sampling, problem_file
from redraft.config.experiment import Run
from redraft.config.figures import FigureFile, PublishedSweep
from redraft.config.grids import Expanded, expand
from redraft.config.hyperparameters import HyperparameterFile
from redraft.config.model import TinyModel, model_file
from redraft.config.paper_files import PaperFiles
from redraft.config.precision import with_taken
from redraft.config.preset import Preset
from redraft.config.read import check_known, merge, parse, read_yaml, shown
from redraft.config.reported import Reported
from redraft.config.tables import DecodedModel, DecompositionTable, TableFile, TargetTable
from redraft.config.trainer import TrainerConfig
from redraft.errors import UserError
from redraft.layout import Layout

M = TypeVar("M", bound=BaseModel)
LISTS_CELLS = "`redraft list` prints all cells"


class Experiments(PaperFiles):
    """Experiment files under one root, read on demand. `PaperFiles` has their locations."""

    # Presets and benchmarks

    @cache  # noqa: B019
    def preset(self, name: str, protocol: str = "") -> Preset:
        """Preset with the benchmarks of its protocol, or of another one (`Preset.protocol_of`)."""
        self.check_preset(name)
        file = self._preset(name)
        preset = with_taken(parse(Preset, self._with_base(read_yaml(file), file), file), Layout(name).precision)
        # Jobs and paths of results have the name, and find the preset by it.
        if preset.name != name:
            raise UserError(
                "the name of a preset must be that of its file", file=file, key="name", value=preset.name, allowed=name
            )
        check_known(preset.protocols, self.papers, "a protocol of an unknown paper", file, "protocols")
        if named := [each for each in (*preset.protocols.values(), preset.probe) if each]:
            check_known(named, self.benchmark_file().protocols, "no such protocol", file, "protocol")
        # A preset with its own benchmarks is its own protocol (`Preset.protocol_of`).
        if not preset.protocol and protocol in ("", name):
            return preset
        # Without validation, which rejects benchmarks next to a protocol.
        return preset.model_copy(update={"benchmarks": self.protocol(protocol or preset.protocol, file)})

    def check_preset(self, name: str) -> None:
        """Raise a UserError, with similar names or those of all presets, if there is no such preset."""
        check_known([name], self._presets, "no such preset", self._preset("*").parent, "preset")

    def _with_base(self, content: Any, file: Path) -> Any:
        """Content of a preset, with that of its base below it; a UserError for a base that is unknown or has a base."""
        if not isinstance(content, dict) or content.get("base") is None:
            return content
        # One level only: bases of bases could form a cycle.
        others = [name for name in self._presets if name != file.stem]
        check_known([str(content["base"])], others, "no such preset", file, "base")
        below = read_yaml(base := self._preset(str(content["base"])))
        if not isinstance(below, dict):
            raise UserError("must be a mapping", file=base, key="(the whole file)", value=shown(below))
        if "base" in below:
            key, allowed = "base", "a preset without a base"
            raise UserError("a base has a base itself", file=file, key=key, value=content["base"], allowed=allowed)
        return merge(below, content)

    def preset_of(self, name: str, paper: str) -> Preset:
        """Preset with the benchmarks for the policies of a paper, or of a cell by its id."""
        return self.preset(name, self.protocol_of(name, paper))

    def protocol_of(self, preset: str, paper: str) -> str:
        """Name of the evaluation protocol of a paper, or of a cell by its id, at a preset.

        It is the protocol of the cell's home. If all grids of a paper have a base, it is that of the first base's
        paper.

        Raises:
            UserError: if the preset has another one for such a paper.
        """
        of, found = paper.partition("/")[0], self.preset(preset)
        if of in found.protocols and (home := self._home(of)) != of:
            raise UserError(
                "all cells of this paper are variants of another paper's, whose protocol they have",
                file=self._preset(preset),
                key=f"protocols.{of}",
                value=found.protocols[of],
                allowed=f"protocols.{home}",
            )
        return found.protocol_of(self.cell(paper).home if "/" in paper else self._home(paper))

    def _home(self, paper: str) -> str:
        """Paper of the first base if all grids of a paper have a base, else the paper itself."""
        bases = [grid.base for grid in self.cell_file(paper).grids]
        return str(bases[0]).partition("/")[0] if bases and None not in bases else paper

    def protocol(self, name: str, source: Path | None = None) -> dict[str, Benchmark]:
        """Benchmarks of a protocol with its sampling; `source` is the file that names the protocol, for messages.

        Raises:
            UserError: for an unknown protocol, benchmark or key.
        """
        content, file = self.benchmark_file(), self._benchmarks
        check_known([name], content.protocols, "no such protocol", source, "protocol")
        protocol = content.protocols[name]
        common = protocol.sampling.model_dump(exclude_unset=True)
        benchmarks = {}
        for benchmark, changes in protocol.benchmarks.items():
            check_known([benchmark], content.sets, "no such benchmark", file, f"protocols.{name}.benchmarks")
            sampling = parse(Sampling, common | changes, f"{file}, protocol {name}, benchmark {benchmark}")
            benchmarks[benchmark] = Benchmark(
                **dict(content.sets[benchmark]), **sampling.model_dump(exclude_unset=True)
            )
        return benchmarks

    @cache  # noqa: B019
    def benchmark_file(self) -> BenchmarkFile:
        """Parsed `benchmarks.yaml`."""
        return parse(BenchmarkFile, read_yaml(self._benchmarks), self._benchmarks)

    @cache  # noqa: B019
    def benchmark_names(self) -> list[str]:
        """Names that may follow `accuracy:`: benchmarks of `benchmarks.yaml` and of all valid presets, roles, `all`."""
        names = [*self.benchmark_file().sets, *get_args(Role), "all"]
        for preset in sorted(self._presets):
            with suppress(UserError):  # a mistake in another preset is reported where that preset is used
                names += self.preset(preset).benchmarks
        return list(dict.fromkeys(names))

    def default_grids(self, preset: Preset, paper: str) -> list[str] | None:
        """Grids of a paper that `snakemake` runs at a preset; None if the preset does not have the paper.

        Raises:
            UserError: if the preset names an unknown grid.
        """
        grids, known = preset.default.get(paper), self.grids_of(paper)
        check_known(grids or (), known, "no such grid", self._preset(preset.name), f"default.{paper}")
        return grids

    def grids_of(self, paper: str) -> list[str]:
        """Names of all grids of a paper."""
        return list(dict.fromkeys(grid.name for grid in self.cell_file(paper).grids))

    @property
    def _benchmarks(self) -> Path:
        return self.folder / "benchmarks.yaml"

    def _preset(self, name: str) -> Path:
        return self.folder / "presets" / f"{name}.yaml"

    @property
    def _presets(self) -> list[str]:
        return [preset.stem for preset in self._preset("*").parent.glob("*.yaml")]

    # Files of a paper

    @cache  # noqa: B019 - there is one instance per process
    def cell_file(self, paper: str) -> CellFile:
        """Parsed `cells.yaml` of a paper."""
        file = self.cells_of(paper)
        if not file.exists():
            check_known([paper], self.papers, "no such paper", self.folder, "paper")
        if not re.fullmatch(PAPER, paper):
            raise UserError(
                "the name of the paper's folder is invalid in paths and rules",
                file=file.parent,
                key="paper",
                value=paper,
                allowed="a-z, 0-9 and _",
            )
        return parse(CellFile, read_yaml(file), file)

    @cache  # noqa: B019
    def hyperparameters(self, paper: str) -> HyperparameterFile:
        """Parsed `hyperparameters.yaml` of a paper.

        Raises:
            UserError: if the file is missing, lacks a field of `TrainerConfig`, or names an unknown preset.
        """
        file = self._hyperparameters(paper)
        if not file.exists():
            needed = [name for name, field in TrainerConfig.model_fields.items() if field.is_required()]
            raise UserError(
                "no such file; it must have the paper's hyperparameters", file=file, key="trainer", allowed=needed
            )
        content = parse(HyperparameterFile, read_yaml(file), file)
        check_known(content.at, self._presets, "no such preset", file, "at")
        return content

    def _hyperparameters(self, paper: str) -> Path:
        return self.folder_of(paper) / "hyperparameters.yaml"

    def tables(self, paper: str) -> TableFile:
        """Parsed `tables.yaml` of a paper.

        Raises:
            UserError: also for targets of an unknown preset.
        """
        content = self._about_cells(TableFile, paper, "tables")
        if not self.declaration(paper, "tables"):
            return own.default_tables(self.cells(paper))
        file = self._part(paper, "tables")
        others = [each for each in self.papers if each not in (paper, *self.own_papers)]
        for i, headline in enumerate(content.headlines):
            explained_by = [headline.see.paper] if headline.see else []
            check_known(explained_by, others, "no such experiments", file, f"headlines.{i}.see.paper")
        for i, table in enumerate(content.tables):
            if isinstance(table, TargetTable):
                check_known(table.at, self._presets, "no such preset", file, f"tables.{i}.at")
        return content

    def figures(self, paper: str) -> FigureFile:
        """Parsed `figures.yaml` of a paper.

        Raises:
            UserError: also for a roofline of a model that is in no table of the paper, and for a surface over an axis
                that a cell has no number for.
        """
        content = self._about_cells(FigureFile, paper, "figures")
        for i, figure in enumerate(content.figures):
            for j, panel in enumerate(figure.panels):
                if panel.roofline:
                    self.measured_model(paper, panel.roofline)
                for k, axis in enumerate(panel.axes):
                    self._check_axis(paper, panel.cells, axis, f"figures.{i}.panels.{j}.axes.{k}")
        return content

    def _check_axis(self, paper: str, cells: Iterable[str], axis: str, key: str) -> None:
        """Raise a UserError if a cell has no number at the dotted key `axis`."""
        for name in cells:
            cell = self.cell(id_of(paper, name))
            try:
                coordinate(cell, axis)
            except ValueError:
                raise UserError(
                    f"{cell.id} has no number there",
                    file=self._part(paper, "figures"),
                    key=key,
                    value=axis,
                    allowed="keys of a cell with a number, such as trainer.group_size or reuse.lenience",
                ) from None

    def measured_model(self, paper: str, sweep: PublishedSweep) -> tuple[DecompositionTable, DecodedModel]:
        """Table, and model in it, that a published sweep was measured with.

        Raises:
            UserError: if there is no such table or model.
        """
        models = {
            f"{model.label} in table {table.number}": (table, model)
            for table in self.tables(paper).tables
            if isinstance(table, DecompositionTable)
            for model in table.models
        }
        named = f"{sweep.model} in table {sweep.table}"
        if named not in models:
            raise UserError(
                "no decomposition has this model",
                file=self._part(paper, "figures"),
                key="roofline",
                value=named,
                allowed=models,
            )
        return models[named]

    def claims(self, paper: str) -> ClaimFile:
        """Parsed `claims.yaml` of a paper."""
        return self._about_cells(ClaimFile, paper, "claims")

    @cache  # noqa: B019
    def reported(self, paper: str) -> Reported | None:
        """Parsed `reported.yaml` of a paper; None if no table of it is transcribed."""
        file = self.folder_of(paper) / "reported.yaml"
        # Tables without `reported.yaml` are a mistake, which `read_yaml` then names.
        transcribed = file.with_suffix("").is_dir()
        return parse(Reported, read_yaml(file), file) if file.exists() or transcribed else None

    def _about_cells(self, model: type[M], paper: str, part: str) -> M:
        """Parsed tables, figures or claims; empty if the paper has none. Their cells must be cells or bases of the
        paper."""
        cells, _, _ = self._expanded(paper)
        file = self._part(paper, part)
        content = read_yaml(file) if self.declaration(paper, part) else {}
        if file == self.cells_of(paper):
            # The file has the cells too, which are not part of this model.
            content = {part: content[part]}
        reported = self.reported(paper)
        context = {
            "cells": [*cells, *self.cell_file(paper).bases],
            "benchmarks": self.benchmark_names(),
            "reported": reported.quantities if reported else (),
        }
        return parse(model, content, file, context)

    def declaration(self, paper: str, part: str) -> str:
        """Name of the file with a paper's `tables`, `figures` or `claims`; empty if it has none.

        Raises:
            UserError: if they are in two files.
        """
        apart = (self.folder_of(paper) / f"{part}.yaml").exists()
        within = bool(getattr(self.cell_file(paper), part, None))
        if apart and within:
            raise UserError(
                f"{part} are in two files",
                file=self.cells_of(paper),
                key=part,
                allowed=f"in {part}.yaml or here",
            )
        return f"{part}.yaml" if apart else own.CELLS if within else ""

    def _part(self, paper: str, part: str) -> Path:
        return self.path(paper, self.declaration(paper, part) or f"{part}.yaml")

    # Cells

    def cells(self, paper: str, grids: list[str] | None = None) -> list[Cell]:
        """Cells of some or all grids of a paper, in the order of the file."""
        cells, _, by_grid = self._expanded(paper)
        if grids is None:
            return list(cells.values())
        check_known(grids, by_grid, "no such grid", self.cells_of(paper))
        return [cells[name] for name in dict.fromkeys(name for grid in grids for name in by_grid[grid])]

    def grids(self, paper: str, beyond_paper: bool) -> list[str]:
        """Names of the grids in the paper, or of those beyond it."""
        grids = self.cell_file(paper).grids
        return list(dict.fromkeys(grid.name for grid in grids if grid.beyond_paper == beyond_paper))

    def cell(self, cell_id: str) -> Cell:
        """Cell with the id `paper/name`.

        Raises:
            UserError: with similar names if there is no such cell, or with the reason if it is excluded.
        """
        paper, _, name = cell_id.partition("/")
        file = self.cells_of(paper)
        cells, excluded, _ = self._expanded(paper)
        if name in cells:
            return cells[name]
        # After the cells, since another grid may define what one grid excludes.
        if name in excluded:
            raise UserError(f"this cell is excluded: {excluded[name].reason}", file=file, key="cell", value=cell_id)
        # `near` returns all names if none is similar: hundreds, for which the hint is shorter.
        similar = near(name, cells)
        known = {"allowed": [f"{paper}/{c}" for c in similar]} if len(similar) < len(cells) else {"hint": LISTS_CELLS}
        raise UserError("no such cell", file=file, key="cell", value=shown(cell_id), **known)

    def find(self, name: str) -> str:
        """Id of a cell by its name or id. An id is returned without a check.

        Raises:
            UserError: if no paper or several papers have a cell with this name.
        """
        # Commands that resolve the id report an unknown one; looking here would read all papers.
        if "/" in name:
            return name
        ids = self.named_so(name)
        if len(ids) > 1:
            raise UserError("several papers have a cell of this name", key="cell", value=name, allowed=ids)
        if not ids:
            every = {cell.name: cell.id for cell in self.readable(self.papers)[0]}
            similar = near(name, every)
            known = {"allowed": [every[n] for n in similar]} if len(similar) < len(every) else {"hint": LISTS_CELLS}
            raise UserError("no paper has a cell of this name", key="cell", value=shown(name), **known)
        return ids[0]

    def named_so(self, name: str) -> list[str]:
        """Ids of the cells with this name in all papers; of excluded cells if there are no others.

        Raises:
            UserError: if there is neither and the file of a paper has a mistake.
        """
        found, excluded, mistakes = [], [], []
        for paper in self.papers:
            try:
                cells, without, _ = self._expanded(paper)
            except UserError as error:
                mistakes.append(error)
                continue
            found += [f"{paper}/{name}"] if name in cells else []
            excluded += [f"{paper}/{name}"] if name in without else []
        # A mistake in another paper's file does not hide a cell that exists.
        if mistakes and not found + excluded:
            raise mistakes[0]
        return found or excluded

    def readable(self, papers: Iterable[str]) -> tuple[list[Cell], list[UserError]]:
        """Cells of all papers whose file is valid, and the errors of the other papers."""
        cells, mistakes = [], []
        for paper in papers:
            try:
                cells += self.cells(paper)
            except UserError as error:
                mistakes.append(error)
        return cells, mistakes

    def observed_cell(self, paper: str) -> Cell | None:
        """Cell of a paper that the bias laboratory observes; None if the paper has no laboratory.

        Raises:
            UserError: if there is no such cell, or if it reuses rollouts. The laboratory applies all rules to the same
                drafts, so the policy must have sampled them without reuse.
        """
        name = self.cell_file(paper).laboratory
        if not name:
            return None
        file, cells = self.cells_of(paper), {cell.name: cell for cell in self.cells(paper)}
        fresh = [each for each, cell in cells.items() if cell.reuse.kind == "vanilla"]
        if name not in fresh:
            message = "this cell reuses rollouts" if name in cells else "no such cell"
            raise UserError(message, file=file, key="laboratory", value=name, allowed=fresh)
        return cells[name]

    @cache  # noqa: B019
    def _expanded(self, paper: str) -> Expanded:
        file = self.cells_of(paper)
        return expand(paper, self.cell_file(paper), file, lambda base, key: self._base(base, file, key))

    def _base(self, base: str, file: Path, key: str) -> Cell:
        """Cell that a grid of a file starts from, by the key of its name in the file.

        Raises:
            UserError: if there is no such cell, or if its file has bases itself; bases of bases could form a cycle.
        """
        paper = base.partition("/")[0]
        if paper in self.papers and self.cell_file(paper).bases:
            raise UserError(
                "a base must be a cell of a paper whose cells have no base",
                file=file,
                key=key,
                value=base,
                allowed=[name for name in self.papers if name not in self.own_papers],
            )
        try:
            return self.cell(base)
        except UserError as error:
            if error.key not in ("cell", "paper"):
                raise  # a mistake in the base's file, which the error names
            raise error.replace(message=f"base: {error.message}", file=file, key=key, value=base) from None

    # Runs

    @cache  # noqa: B019
    def run(self, cell_id: str, seed: int, preset_name: str) -> Run:
        """Resolve a cell, a preset and a seed to a complete run.

        Raises:
            UserError: for an unknown cell or preset, a negative seed, a model or data that the preset lacks, or a
                trainer with values that are out of range or incompatible with each other, the method or the data.
        """
        return self.run_of(self.cell(cell_id), seed, preset_name)

    def run_of(self, cell: Cell, seed: int, preset_name: str) -> Run:
        """Resolve a cell that may be in no file yet; otherwise as `run`."""
        preset = self.preset(preset_name)
        if not 0 <= seed <= LARGEST_SEED:
            raise UserError("a seed must be >= 0", key="seed", value=shown(seed), allowed=f"0 to {LARGEST_SEED}")
        lacking, file = f"the preset has nothing for {cell.id}", self._preset(preset_name)
        check_known([cell.model], preset.models, lacking, file, "models")
        check_known([cell.data], preset.data, lacking, file, "data")
        # Generated models and data are those of the seed's block, whose number is in their folders' names.
        seeded = preset.of_seed(seed)
        run = Run(
            preset=preset.name,
            paper=cell.paper,
            cell=cell.name,
            seed=seed,
            model_role=preset.role(cell.model, seed),
            data_role=preset.role(cell.data, seed),
            model=seeded.models[cell.model],
            data=seeded.data[cell.data],
            algorithm=cell.algorithm,
            reuse=cell.reuse,
            schedule=cell.schedule or cell.algorithm.usual_schedule,
            decoding=cell.decoding,
            engine=preset.engine_of(cell.model),
            trainer=trainers.trainer_of(self.trainer_settings(cell, preset)),
        )
        try:
            run.schedule.check(run.trainer, run.data.size)
            run.reuse.check(run.schedule, run.trainer)
            if isinstance(run.algorithm, PPO) and getattr(run.reuse, "replay", "") == "stopped":
                raise UserError(
                    "PPO's advantages have no group baseline, so a response whose gradient is stopped has no effect",
                    key="reuse.replay",
                    value="stopped",
                    allowed="none, recomputed or stored",
                )
            if isinstance(run.algorithm, DAPO) and run.algorithm.overlong:
                run.algorithm.overlong.check(run.trainer.max_response_tokens)
            # Vocabularies of other models are known only once their files are imported.
            if isinstance(run.model, TinyModel):
                run.reuse.check_vocabulary(run.model.vocabulary)
        except UserError as error:
            message = f"{cell.id} at preset {run.preset}: {error.message}"
            raise error.replace(message=message, file=self.cells_of(cell.paper)) from None
        return run

    def check_sources(self, cell_id: str, preset_name: str) -> None:
        """Check that the files of a cell's model, training problems and benchmarks exist on this machine, and that
        reasoning-gym has the tasks and options of those.

        Raises:
            UserError: for the first missing one, with its key in the preset or in `benchmarks.yaml`.
        """
        cell, preset = self.cell(cell_id), self.preset_of(preset_name, cell_id)
        file, benchmarks = self._preset(preset_name), self._benchmarks if preset.protocol else self._preset(preset_name)
        prefix = "sets" if preset.protocol else "benchmarks"
        if not Layout(preset_name).model(cell.model).exists():  # it was imported once
            _check_exists(model_file(preset.models[cell.model]), file, f"models.{cell.model}.path")
        _check_data(preset.data[cell.data], file, f"data.{cell.data}")
        for name, benchmark in preset.benchmarks.items():
            _check_data(benchmark.data, benchmarks, f"{prefix}.{name}.data")

    def trainer_settings(self, cell: Cell, preset: Preset) -> trainers.Settings:
        """Settings of a cell's trainer at a preset, each with its origin (order: see `HyperparameterFile`).

        Raises:
            UserError: if the value of a field with a factor is not a number.
        """
        paper, papers = self.hyperparameters(cell.home), self._hyperparameters(cell.home)
        scale, cells, named = self._preset(preset.name), self.cells_of(cell.paper), f"preset {preset.name}"
        settings = trainers.defaults() | trainers.stated(paper.trainer, "paper", papers, "trainer")
        settings |= trainers.given(preset.trainer, named, scale, "trainer")
        # Factors multiply what is there so far: the paper's value, or the preset's if it sets one.
        settings |= trainers.scaled(settings, preset.trainer_factors, named, scale, "trainer_factors")
        # A preset with a base has its scale, unless the paper names the preset itself.
        at = preset.base if preset.base and preset.name not in paper.at else preset.name
        settings |= trainers.stated(paper.at.get(at, {}), f"paper at {named}", papers, f"at.{at}")
        settings |= trainers.given(cell.trainer, "cell", cells, f"{cell.name}.trainer")
        settings |= trainers.scaled(settings, cell.trainer_factors, "cell", cells, f"{cell.name}.trainer_factors")
        return settings

    def seeds(self, cell: Cell, preset: Preset) -> list[int]:
        """Seeds of a cell at a preset: the preset's, then further ones of the cell's grids (`Preset.more_seeds`).

        Raises:
            UserError: if the preset names an unknown grid.
        """
        if not (grids := preset.more_seeds.get(cell.paper)):
            return preset.seeds  # the paper of a new variant may have no file yet
        _, _, known = self._expanded(cell.paper)
        check_known(grids, known, "no such grid", self._preset(preset.name), f"more_seeds.{cell.paper}")
        more = {seed for grid, seeds in grids.items() if cell.name in known[grid] for seed in seeds}
        return [*preset.seeds, *sorted(more.difference(preset.seeds))]

    def has_run(self, cell: Cell, preset: Preset) -> bool:
        """Whether a cell has a run at a preset: neither `Preset.lacks` nor `misfit` has a reason why not."""
        return not preset.lacks(cell) and not self.misfit(cell.id, preset.name)

    def misfit(self, cell_id: str, preset_name: str) -> str:
        """Reason why a cell with a model and data of the preset has no run there; empty if it has one.

        There are two reasons. A variant may be for another preset, since all presets share one file of variants. And a
        factor of the cell may make a fraction of an integer of the preset. A fraction above 1 in a user's file may be a
        mistake in the factor: it is an error, as is any other mistake in a cell. `Preset.lacks` has a third reason;
        in a cell of the preset's default grids it is a mistake.
        """
        # All mistakes of a variant count as misfit: it was checked at its own preset when it was made.
        if cell_id.partition("/")[0] == own.OWN:
            try:
                self.run(cell_id, 0, preset_name)
            except UserError as error:
                return error.message
            return ""
        cell, preset = self.cell(cell_id), self.preset(preset_name)
        settings = self.trainer_settings(cell, preset) if cell.trainer_factors else {}
        for name in cell.trainer_factors:
            value = settings[name].value
            # Rounded it would be another experiment: half a prompt per step is not one.
            is_fraction = 0 < value < 1 if cell.paper in self.own_papers else value > 0 and value % 1
            if TrainerConfig.model_fields[name].annotation is int and is_fraction:
                return f"{name} would be {value:g} at preset {preset.name}"
        return ""


def _check_data(data: Data, file: Path, key: str) -> None:
    _check_exists(problem_file(data), file, f"{key}.path")
    try:
        gym.check(data)
    except UserError as error:
        raise error.replace(file=file, key=f"{key}{str(error.key).removeprefix('data')}") from None


def _check_exists(path: str | None, file: Path, key: str) -> None:
    if path is not None and not Path(path).exists():
        raise UserError("no such file or folder", file=file, key=key, value=path)
