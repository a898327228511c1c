"""A paper's results as the pages need them: each is read on first use and cached."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from redraft.analysis.claims.reported_claims import NOT_SUPPORTED
from redraft.analysis.claims.verdicts import CONTRADICTED, NOT_RUN, REASONS, REPRODUCED
from redraft.analysis.data import evaluation
from redraft.analysis.data.collect import Runs
from redraft.analysis.data.measured import RECORD
from redraft.analysis.data.timing import TimingSpread, first_epoch_spread
from redraft.analysis.data.words import THEMES
from redraft.analysis.figures.figure_parts import unsampled_benchmarks
from redraft.analysis.pages import headline
from redraft.analysis.pages.cell_labels import cell_labels, usual_settings
from redraft.analysis.pages.claims_page import counts, read_claims
from redraft.analysis.pages.figure_page import figure_fragment
from redraft.analysis.pages.fragments import checked_fragment
from redraft.analysis.pages.run_pages import RunView, link, views
from redraft.analysis.tables.cell_verdicts import MISSING
from redraft.analysis.tables.files import read_table
from redraft.config import Experiments, Preset, StepTable, TableWithoutRuns
from redraft.layout import REOPENED, Layout
from redraft.result_files import OBJECT, check_derived, check_own_hash, read_derived, read_left_out, read_with_hash


@dataclass(frozen=True)
class MissingRuns:
    """How much of a paper's own grids is not finished.

    Attributes:
        cells: number of cells.
        untrained: number of those without a finished run.
        incomplete: number of those of which only some of the preset's seeds are finished.
        seeds: numbers of finished seeds that the other cells have.
        runs: number of missing runs.
        minutes: estimated time of these runs by the median time of finished ones; NaN if none is finished.
    """

    cells: int
    untrained: int
    incomplete: int
    seeds: frozenset[int]
    runs: int
    minutes: float


@dataclass(frozen=True)
class Paper:
    """Results and declarations of a paper for the templates."""

    layout: Layout
    name: str
    experiments: Experiments

    @cached_property
    def preset(self) -> Preset:
        """The preset with the benchmarks of this paper."""
        return self.experiments.preset_of(self.layout.preset, self.name)

    @cached_property
    def runs(self) -> Runs:
        """All finished runs."""
        return Runs.load(self.layout.collected(self.name))

    @cached_property
    def run_views(self) -> list[RunView]:
        """The same, as pages show them."""
        return views(self.layout, self.name, self.runs)

    @property
    def title(self) -> str:
        """Title of the paper."""
        return self.experiments.cell_file(self.name).title

    @property
    def method(self) -> str:
        """Name of the paper's method, which pages use as a heading."""
        return self.experiments.cell_file(self.name).method or self.name

    @property
    def source(self) -> str:
        """Publication of the paper."""
        return self.experiments.cell_file(self.name).source

    @property
    def own_page(self) -> bool:
        """True if the paper has one page with all of its tables, figures and claims."""
        return self.experiments.cell_file(self.name).own_page

    @property
    def timing(self) -> TimingSpread:
        """Spread of times between runs that did equal work."""
        return first_epoch_spread(self.runs)

    @cached_property
    def claims(self) -> list[dict[str, Any]]:
        """Judged claims, decided ones first; evidence as HTML."""
        declared = self.experiments.claims(self.name).claims
        return read_claims(self.layout.claims(self.name), self.labels, self.preset.blocks) if declared else []

    @cached_property
    def labels(self) -> dict[str, str]:
        """Cell name to its label in words."""
        return cell_labels(self.experiments.cells(self.name))

    @property
    def usual(self) -> str:
        """Model and data that labels of cells leave out."""
        return " on ".join(usual_settings(self.experiments.cells(self.name)).values())

    @property
    def contradicted(self) -> list[dict[str, Any]]:
        """Claims that the runs contradict."""
        return [claim for claim in self.claims if claim["verdict"] == CONTRADICTED]

    @property
    def themes(self) -> list[dict[str, Any]]:
        """Claims with and without runs by theme; themes without claims are left out."""
        found = []
        for theme in THEMES:
            own = [claim for claim in self.claims if claim["theme"] == theme]
            run = [claim for claim in own if claim["verdict"] != NOT_RUN]
            if own:
                found.append({"name": theme, "run": run, "not_run": [claim for claim in own if claim not in run]})
        return found

    @property
    def counts(self) -> dict[str, int]:
        """Number of claims with each verdict."""
        return counts(self.claims)

    @property
    def open_counts(self) -> dict[str, int]:
        """Number of inconclusive claims by the reason in words, most frequent first."""
        found = Counter(claim["why"] for claim in self.claims if claim["why"])
        return {REASONS[why]: count for why, count in found.most_common()}

    @property
    def reported_counts(self) -> dict[str, int]:
        """Number of claims with each verdict of the paper's own tables."""
        return counts(self.claims, "reported_verdict")

    @property
    def unsupported(self) -> list[dict[str, Any]]:
        """Claims that the paper's own tables do not support."""
        return [claim for claim in self.claims if claim.get("reported_verdict") == NOT_SUPPORTED]

    @property
    def weak(self) -> int:
        """Number of reproduced claims whose test is weak (`weak` in claims.yaml)."""
        return sum(bool(c["weak"]) for c in self.claims if c["verdict"] == REPRODUCED)

    @cached_property
    def points(self) -> list[headline.HeadlineNumber]:
        """Headline numbers."""
        declared = self.experiments.tables(self.name)
        made = [each for each in declared.headlines if self._is_made(self.layout.table(self.name, each.table))]
        return headline.points(self.layout, self.name, made, declared.tables, self.runs)

    def _is_made(self, stem: Path) -> bool:
        """False for a table or figure that published results lack, since it was declared later."""
        return stem.with_suffix(".csv").exists() or not (self.layout.folder / REOPENED).exists()

    @property
    def main(self) -> dict[str, Any] | None:
        """HTML fragment and counts of the main result (`tables.files`); None if there is nothing to compare."""
        if not self.experiments.tables(self.name).tables:
            return None
        stem = self.layout.main_result(self.name)
        found: dict[str, Any] = read_with_hash(stem.with_suffix(".json"), OBJECT, "of")
        return found | {"html": self._fragment(stem.with_suffix(".html"))} if found["of"] else None

    @cached_property
    def tables(self) -> list[dict[str, Any]]:
        """All rendered tables, with the missing share of each."""
        shown, declarations = [], self.experiments.tables(self.name).tables
        if declarations:
            read_derived(self.layout.tables(self.name), self.layout.collected(self.name) / RECORD)
        for declared in declarations:
            stem = self.layout.table(self.name, declared.number)
            if not self._is_made(stem):
                continue
            honest = stem.with_name(f"{stem.name}_reported.html")
            # Speedups from the paper's own seconds are shown below the table that they are computed from.
            files = [stem.with_suffix(".html"), *([honest] if honest.exists() else [])]
            shown.append(
                {
                    "number": declared.number,
                    "name": declared.heading,
                    "title": declared.title,
                    "stand_in": "" if isinstance(declared, TableWithoutRuns) else self.preset.stand_in,
                    "open": not declared.beyond_paper and not isinstance(declared, StepTable),
                    "missing": float((read_table(stem)["verdict"] == MISSING).mean()),
                    "html": "".join(map(self._fragment, files)),
                }
            )
        return shown

    @cached_property
    def figures(self) -> list[dict[str, Any]]:
        """All figures, as HTML fragments."""
        unsampled, pages = unsampled_benchmarks(self.experiments, self.layout.preset, self.name), self.layout.pages
        declarations = self.experiments.figures(self.name).figures
        if declarations:
            read_derived(self.layout.figures(self.name), self.layout.collected(self.name) / RECORD)
        return [
            {
                "number": each.number,
                "name": each.heading,
                "title": each.title,
                "html": figure_fragment(
                    each,
                    self.layout.figure(self.name, each.number),
                    self.name,
                    pages,
                    self.preset.stand_in,
                    unsampled,
                ),
            }
            for each in declarations
            if self._is_made(self.layout.figure(self.name, each.number))
        ]

    @property
    def cases(self) -> dict[str, Any] | None:
        """Case studies of a paper that declares some; `html` is empty until they are written."""
        declared = self.experiments.figures(self.name).cases
        if declared is None:
            return None
        file = self.layout.cases(self.name).with_suffix(".html")
        html = ""
        if file.exists():
            check_own_hash(file)
            html = checked_fragment(file, "")
        return {"numbers": declared.numbers, "run": f"{declared.cell} seed {self.preset.seeds[0]}", "html": html}

    @property
    def without_counterpart(self) -> dict[str, Any] | None:
        """Reasons why reported rows have no reproduced counterpart, with counts; details in brackets are cut."""
        file = self.layout.without_counterpart(self.name).with_suffix(".csv")
        if not file.exists():
            return None
        check_derived(file)
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
        # Brackets hold what differs from row to row, such as evaluated steps.
        kinds = frame["reason"].str.replace(r" \(.*\)", "", regex=True)
        reasons = frame.groupby(kinds, sort=False)["table"].agg(["size", lambda t: ", ".join(dict.fromkeys(t))])
        return {
            "total": len(frame),
            "reasons": [(reason, int(count), tables) for reason, count, tables in reasons.itertuples()],
            "file": link(self.layout, file),
        }

    @property
    def evaluation(self) -> dict[str, Any]:
        """Summary of graded responses."""
        graders = evaluation.graders(self.runs) if self.preset.evaluation.lighteval else []
        return evaluation.summary(self.runs) | {"graders": graders}

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Cells without finished runs that the latest campaign left out since they do not fit, with the reason."""
        done = {f"{self.name}/{cell}" for cell in self.runs.runs["cell"]}
        left_out = read_left_out(self.layout.left_out)
        return {c: reason for c, reason in left_out.items() if c.startswith(f"{self.name}/") and c not in done}

    @property
    def missing(self) -> MissingRuns:
        """Cells of the paper's own grids by what is finished of them, and the runs that are missing.

        Runs that the preset does not support, and those of `left_out`, do not count.
        """
        experiments, preset = self.experiments, self.preset
        cells = experiments.cells(self.name, experiments.grids(self.name, beyond_paper=False))
        possible = [
            cell
            for cell in cells
            if not preset.lacks(cell)
            and cell.id not in self.left_out
            and not experiments.run(cell.id, preset.seeds[0], preset.name).unsupported
        ]
        done: dict[str, set[int]] = {}
        for run in self.runs.runs.itertuples():
            done.setdefault(str(run.cell), set()).add(int(run.seed))
        # Seed by seed, not a difference of counts: finished runs may have other seeds or cells.
        left = {cell.name: len({*experiments.seeds(cell, preset)} - done.get(cell.name, set())) for cell in possible}
        started = [cell for cell in left if cell in done]
        return MissingRuns(
            cells=len(left),
            untrained=len(left) - len(started),
            incomplete=sum(left[cell] > 0 for cell in started),
            seeds=frozenset(len(done[cell]) for cell in started if not left[cell]),
            runs=sum(left.values()),
            minutes=sum(left.values()) * float(self.runs.runs["seconds"].median()) / 60 if done else math.nan,
        )

    def _fragment(self, file: Path) -> str:
        """A rendered fragment with links relative to the pages' folder."""
        check_derived(file)
        return checked_fragment(file, link(self.layout, file.parent))
