"""A campaign over several sittings or machines: published runs that a campaign lacks, beside its own."""

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from redraft.analysis.claims.files import write_claims
from redraft.analysis.data.collect import FRAMES, Runs
from redraft.analysis.figures.figure_files import write_figures
from redraft.analysis.measuring import measure
from redraft.analysis.reference.published import Published, inside, runs_file
from redraft.analysis.tables.files import write_tables
from redraft.config import Experiments, id_of, run_fingerprint
from redraft.errors import UserError
from redraft.files import errors_of_reading
from redraft.layout import Layout, check_inside
from redraft.messages import echo
from redraft.result_files import read_manifest

KEY = ["cell", "seed"]


@contextmanager
def with_published(layout: Layout, paper: str, published: Published) -> Iterator[frozenset[Path]]:
    """Work in a folder with the results of a campaign and the published runs that it lacks.

    Tables, figures and claims are made again, from all of these runs. Of the published ones there are manifests,
    scores and collected data alone. A published run of another configuration than today's is left out and named.

    Args:
        layout: results of the campaign.
        published: has the paper's published runs.

    Yields:
        Folders of the published runs, relative to the folder of work.

    Raises:
        UserError: if the paper is not published, a campaign is sequential, or a figure needs responses of a published
            run.
    """
    if paper not in published.records:
        raise UserError(
            "this paper is not published yet", key="paper", value=paper, hint="publish it without `--add` first"
        )
    own, earlier = Runs.load(layout.collected(paper)), Runs.load(published.layout.collected(paper))
    for runs, file in ((own, layout.collected(paper)), (earlier, published.layout.collected(paper))):
        if runs.looks:
            raise UserError("runs of a sequential campaign cannot be joined with others", file=file, key="looks")
    lacking = _of_today(_without(earlier.runs, own.runs), paper, layout.preset)
    Path("build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir="build") as temporary:
        folder = Path(temporary).absolute()
        for parent in {Path(str(file)).parent for kind in ("manifest", "initial") for file in own.runs[kind]}:
            shutil.copytree(parent, folder / parent, copy_function=_link)
        _unpack(published, paper, lacking, folder)
        if (cases := layout.cases(paper).parent).is_dir():
            shutil.copytree(cases, folder / cases)
        joined = _joined(own, earlier, lacking, paper)
        with inside(folder):
            _warn_of_machines(joined.runs)
            here = Layout(layout.preset)
            joined.save(here.collected(paper))
            measure(here.preset, paper)
            write_tables(here.preset, paper)
            write_figures(here.preset, paper)
            if published.layout.claims(paper).exists() or layout.claims(paper).exists():
                write_claims(here.preset, paper)
            yield frozenset(Path(str(manifest)).parent for manifest in lacking["manifest"])


def _without(runs: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Rows of runs that the others lack."""
    known = set(others[KEY].itertuples(index=False, name=None))
    return runs[[key not in known for key in runs[KEY].itertuples(index=False, name=None)]]


def _of_today(runs: pd.DataFrame, paper: str, preset: str) -> pd.DataFrame:
    """Runs whose configuration is that of today; the others are named."""
    experiments, kept = Experiments(), []
    for run in runs.itertuples():
        try:
            today = run_fingerprint(experiments.run(id_of(paper, str(run.cell)), int(run.seed), preset))
        except UserError:
            today = ""
        if run.fingerprint != today:
            echo(f"left out, since its configuration changed: published {run.cell}, seed {run.seed}", err=True)
        kept.append(run.fingerprint == today)
    return runs[kept]


def _warn_of_machines(runs: pd.DataFrame) -> None:
    """Name the seeds whose runs are from several kinds of machines."""
    kinds: dict[int, set[tuple[str, ...]]] = {}
    for run in runs.itertuples():
        machine = read_manifest(Path(str(run.manifest)))["machine"]
        kind = tuple(str(machine.get(key)) for key in ("processor", "model", "instructions"))
        kinds.setdefault(int(run.seed), set()).add(kind)
    if several := [str(seed) for seed, found in sorted(kinds.items()) if len(found) > 1]:
        echo(f"seed {', '.join(several)}: cells are from several kinds of machines, whose seconds differ", err=True)


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where there can be none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _unpack(published: Published, paper: str, runs: pd.DataFrame, folder: Path) -> None:
    """Unpack manifests and scores of published runs, and records of their initial policies, where they are missing."""
    wanted = {Path(str(file)).parent.as_posix() for kind in ("manifest", "initial") for file in runs[kind]}
    file = runs_file(published.layout, paper)
    with errors_of_reading(file, zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            target = check_inside(folder / name, folder, file, "name")
            if Path(name).parent.as_posix() in wanted and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def _joined(own: Runs, earlier: Runs, lacking: pd.DataFrame, paper: str) -> Runs:
    """All runs in the order in which `collect` finds them: the paper's own before those that its cells start from."""
    runs = pd.concat([own.runs, lacking], ignore_index=True)
    of_paper = runs["manifest"].map(lambda file: Path(file).parts[-4] != paper)
    runs = runs.assign(other=of_paper).sort_values(["other", "manifest"], kind="stable").drop(columns="other")
    order = {key: i for i, key in enumerate(runs[KEY].itertuples(index=False, name=None))}
    added = set(lacking[KEY].itertuples(index=False, name=None))
    frames = {"runs": runs.reset_index(drop=True)}
    for name in FRAMES[1:]:
        frame = getattr(earlier, name)
        frame = frame[[key in added for key in frame[KEY].itertuples(index=False, name=None)]]
        frame = pd.concat([getattr(own, name), frame], ignore_index=True) if len(frame) else getattr(own, name)
        place = [order[key] for key in frame[KEY].itertuples(index=False, name=None)]
        frames[name] = frame.assign(place=place).sort_values("place", kind="stable").drop(columns="place")
        frames[name] = frames[name].reset_index(drop=True)
    by_seed = [steps for _, steps in frames["steps"].groupby("seed", sort=False)]  # as `with_repeats` orders them
    return Runs(**frames | {"steps": pd.concat(by_seed, ignore_index=True)})
