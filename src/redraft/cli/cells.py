"""`redraft list`, `redraft show` and `redraft schema`: the declared cells, and the files generated from
declarations."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import DEFAULT_PRESET, AsJson, Cell, Cells, Changes, Preset, Seed, Wide
from redraft.cli.process import gc_paused
from redraft.cli.terminal import document, error_text, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.config import Cell as CellModel
    from redraft.config import Experiments
    from redraft.config import Preset as PresetModel
    from redraft.config.hyperparameters import Settings
    from redraft.layout import Layout

Row = dict[str, Any]


def list_cells(
    paper: Annotated[str, typer.Argument(help="A folder under experiments/; empty for all.")] = "",
    preset: Preset = DEFAULT_PRESET,
    wide: Wide = False,
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """List the cells by paper: model, data, and how many of the preset's seeds are done.

    --wide adds the reuse, the schedule and the decoding.
    """
    from redraft.config import Experiments
    from redraft.layout import Layout

    experiments, layout = Experiments(), Layout(preset)
    settings = experiments.preset(preset)
    papers = [paper] if paper else experiments.papers
    listed, mistakes = experiments.readable(papers)
    rows = [_row(cell, experiments, settings, layout) for cell in listed]
    if as_json:
        echo(document("list", {"preset": preset, "papers": papers}, rows))
    elif rows or not mistakes:
        _print_cells(rows, settings, wide)
    # The last one is raised, which also sets the exit code.
    for mistake in mistakes[:-1]:
        echo(error_text(mistake), err=True)
    if mistakes:
        raise mistakes[-1]


def _print_cells(rows: list[Row], preset: "PresetModel", wide: bool) -> None:
    """Print one table per paper, or with --wide a single table."""
    header = ["cell", "model", "data", "reuse", "schedule", "decoding", "state"]
    if wide:
        echo(table(header, [[row[key] for key in header] for row in rows], left=header, wide=True))
        return
    for name in dict.fromkeys(row["paper"] for row in rows):
        heading = [f"cell of {name}", "model", "data", "state"]
        shown = [
            [row["cell"].partition("/")[2], *(row[key] for key in heading[1:])] for row in rows if row["paper"] == name
        ]
        echo(table(heading, shown, left=heading, wraps=["state"]) + "\n")
    seeds = ", ".join(map(str, preset.seeds))
    echo(
        filled(
            f"{len(rows)} cells at the preset {preset.name}, seeds {seeds}; --wide: reuse, schedule and "
            "decoding; a cell's full name is paper/cell"
        )
    )


def _row(cell: "CellModel", experiments: "Experiments", preset: "PresetModel", layout: "Layout") -> Row:
    """One row of the list. The state counts the preset's seeds, and other seeds if their runs have started."""
    from redraft.ops.workflow.status import STATES, run_status

    fits = experiments.has_run(cell, preset)
    # Seeds with a folder only: resolving all seeds of all cells would take much longer than listing them.
    seeds = sorted(layout.seeds(cell.id)) if fits else []
    states = {seed: run_status(layout, experiments.run(cell.id, seed, preset.name)).state for seed in seeds}
    done = [seed for seed in seeds if states[seed] == "done"]
    counts = Counter(states[seed] for seed in seeds if seed not in done)
    others = [f"{counts[state]} {state}" for state in STATES if counts[state] and state != "waiting"]
    if done or not counts["unpacked"]:
        others.insert(0, f"{len(done)}/{len({*experiments.seeds(cell, preset), *done})} done")
    state = ", ".join(others)
    return {
        "paper": cell.paper,
        "cell": cell.id,
        "model": cell.model,
        "data": cell.data,
        "reuse": cell.reuse.kind,
        "schedule": cell.schedule.kind if cell.schedule else "-",
        "decoding": getattr(cell.decoding, "when", "-"),
        "state": state if fits else "not at this preset",
        "seeds_done": done,
    }


def show(
    cell: Cell,
    preset: Preset = DEFAULT_PRESET,
    seed: Seed = 0,
    backend: Annotated[str, typer.Option(help="`verl`: print verl's complete configuration instead.")] = "",
    changes: Changes = [],  # noqa: B006
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Print one cell resolved to a complete run, with the origin of each value of its trainer.

    --set shows a variant without saving it.
    """
    import yaml

    from redraft.analysis.cost.memory_text import memory_lines
    from redraft.config import Experiments, run_fingerprint, variants
    from redraft.layout import Layout

    experiments = Experiments()
    variant, run = variants.tried(experiments, cell, changes, seed, preset)
    request = {"cell": cell, "preset": preset, "seed": seed, "backend": backend or None, "set": changes}
    if backend == "verl":
        with gc_paused():
            from redraft.train.verl.config import show as verl_configuration
        layout = Layout(preset)
        text = verl_configuration(run, layout.model(run.model_role), layout.run(f"{run.paper}/{run.cell}", seed))
        content, notes = _fields(yaml.safe_load(text)), memory_lines(run)
        # Comments of YAML, so that the output can be read by programs.
        text += "".join(f"# {line}\n" for line in notes)
        echo(document("show", request, content, notes) if as_json else text, nl=as_json)
        return
    if backend:
        raise UserError("no such backend", key="--backend", value=backend, allowed="verl")
    settings = experiments.trainer_settings(variant, experiments.preset(preset))
    shown = {"fingerprint": run_fingerprint(run), **run.model_dump(mode="json")}
    if as_json:
        origins = {f"trainer.{name}": " ".join(setting.origin.split()) for name, setting in settings.items()}
        echo(document("show", request, [row | {"origin": origins.get(row["field"])} for row in _fields(shown)]))
        return
    for key, value in shown.items():
        text = yaml.safe_dump({key: value}, sort_keys=False)
        # Field by field, since only those of the trainer have an origin.
        echo(_with_origins(text, settings) if key == "trainer" else text, nl=False)
    for line in memory_lines(run):
        echo(f"# {line}")


def _fields(content: dict[str, Any], prefix: str = "") -> list[Row]:
    """Flatten nested mappings to rows of a dotted key and its value."""
    rows = []
    for key, value in content.items():
        # An empty mapping is a value of its own.
        nested = isinstance(value, dict) and value
        rows += _fields(value, f"{prefix}{key}.") if nested else [{"field": f"{prefix}{key}", "value": value}]
    return rows


def _with_origins(text: str, settings: "Settings") -> str:
    """Lines of YAML, one per field of the trainer, with the origin of the value as a comment."""
    heading, *fields = text.splitlines()
    width = max(map(len, fields))
    origins = [settings[field.partition(":")[0].strip()].origin for field in fields]
    lines = [f"{field:<{width}}  # {' '.join(origin.split())}" for field, origin in zip(fields, origins, strict=True)]
    return "\n".join([heading, *lines, ""])


def validate(
    paper: Annotated[str, typer.Argument(help="A folder under experiments/; all of the preset if empty.")] = "",
    preset: Preset = DEFAULT_PRESET,
    as_json: AsJson = False,
    cells: Cells = None,
) -> None:
    """Read all declarations at a preset, as `snakemake -n` does, and print the first mistake of every paper."""
    from redraft.analysis.data.reported_tables import check_reported
    from redraft.config import Experiments
    from redraft.ops.workflow.plan import check_paper

    experiments = Experiments()
    settings, mistakes = experiments.preset(preset), {}
    papers = [paper] if paper else list(dict.fromkeys([*settings.default, *experiments.own_papers]))
    # Each paper separately: a mistake in one hides none in another.
    for each in papers:
        try:
            check_paper(experiments, settings, each)
            check_reported(experiments, each)
        except UserError as error:
            mistakes[each] = error
    if as_json:
        rows = [{"paper": each, "mistake": str(mistakes[each]) if each in mistakes else None} for each in papers]
        echo(document("validate", {"preset": preset, "papers": papers}, rows))
    elif not mistakes:
        number = len(experiments.readable(papers)[0])
        echo(f"no mistake in {number} cells of {len(papers)} papers at the preset {preset}")
    for found in mistakes.values():
        echo(error_text(found), err=True)
    if mistakes:
        raise typer.Exit(2)


def schema(
    folder: Annotated[Path, typer.Argument(help="Folder of the JSON schemas.")] = Path("docs/schemas"),
    check: Annotated[
        bool, typer.Option(help="Only check that the documentation and the tasks are up to date.")
    ] = False,
) -> None:
    """Write the generated files: JSON schemas, tables of documentation and results, and lm-eval's tasks."""
    from redraft.config.schema import write_reference, write_schemas
    from redraft.data_dictionary import write_descriptions, write_pages
    from redraft.evaluate.lm_eval.tasks import write_tasks
    from redraft.layout import require

    require("Snakefile")
    changed = write_reference(Path("docs/configuration.md"), check) + write_pages(Path("docs"), check)
    changed += write_descriptions(Path("results/reference"), check) + write_tasks(Path("workflows/lm_eval"), check)
    if check and changed:
        raise UserError("not up to date; run `redraft schema`", file=changed[0])
    if not check:
        echo("\n".join(f"wrote {file}" for file in write_schemas(folder) + changed))
