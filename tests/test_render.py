"""Tables as people see them: half an interval behind a value, the paper's value beside it, drawings, LaTeX."""

import math
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from markupsafe import escape

from redraft.analysis.tables import render
from redraft.analysis.tables.comparison import COLUMNS
from redraft.analysis.tables.sparklines import HEIGHT, MARGIN, WIDTH, trajectories
from redraft.analysis.tables.table_columns import expand
from redraft.config import CellTable, Column, Experiments, Row, StepTable, TableWithoutRuns

ROOT = Path(__file__).parents[1]
LATEX = shutil.which("pdflatex") or shutil.which("tectonic")
ACCURACY = Column(name="accuracy", title="Δ & 50 % (points)", quantity="accuracy:all", decimals=1)
TOKENS = Column(name="tokens", title="Tokens_(M)", quantity="tokens_decoded", decimals=2)


def cell(row, column, value, low=math.nan, high=math.nan, verdict="not comparable", **fields):
    known = {name: "" for name in ("group", "step", "cell", "seeds", "missing_seeds", "manifests")}
    numbers = dict.fromkeys(set(COLUMNS) - set(known), math.nan) | {"n_seeds": 3}
    return (
        numbers
        | known
        | {
            "row": row,
            "column": column,
            "reproduced": value,
            "low": low,
            "high": high,
            "verdict": verdict,
            **fields,
        }
    )


def sheet(records, columns=(ACCURACY, TOKENS), kind=CellTable):
    table = kind(
        number=3,
        title="Made up: a_b & 100 %",
        baseline="grpo-vanilla",
        columns=list(columns),
        rows=[Row(label="GRPO", cell="grpo-vanilla")],
    )
    return render.Sheet(table, list(columns), pd.DataFrame(records, columns=COLUMNS))


EVERY_VERDICT = [
    *("agrees", "same direction", "differs", "opposite direction", "inconclusive", "not decided", "baseline"),
    *("not comparable", "not applicable", "missing", "no data"),
]


@pytest.fixture
def whole():
    """Two groups, each verdict once, reported values beside the first column only."""
    records = []
    for i, verdict in enumerate(EVERY_VERDICT):
        empty = verdict in ("not applicable", "missing", "no data")
        value, group = math.nan if empty else -1.5 + i, "first" if i < 9 else "second_group"
        records += [
            cell(
                f"row {i}, ℓ = e^0.5 #",
                "accuracy",
                value,
                value - 0.25,
                value + 0.25,
                verdict,
                group=group,
                reported=-2.0,
                deviation=value + 2,
            ),
            cell(f"row {i}, ℓ = e^0.5 #", "tokens", value, verdict=verdict if empty else "not comparable", group=group),
        ]
    return sheet(records)


def table_of(text):
    """Cells of a Markdown table."""
    return [[part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_a_value_has_half_its_interval_and_an_interval_that_is_not_around_it_stays_whole():
    found = sheet(
        [
            cell("even", "accuracy", -1.5, -1.75, -1.25),
            cell("even", "tokens", 2.0),
            cell("uneven", "accuracy", 1.0, 0.5, 3.0),
            cell("uneven", "tokens", math.inf),
            cell("itself", "accuracy", 1.0, 1.0, 1.0, "baseline"),
            cell("itself", "tokens", math.nan, verdict="missing"),
        ]
    )
    assert table_of(render.markdown(found))[2:] == [
        ["even", "−1.5 ± 0.2", "2.00"],
        ["uneven", "1.0 [0.5, 3.0]", "†"],
        ["itself", "1.0", "missing"],
    ]
    tex = render.latex(found)
    assert r"\num{-1.5 +- 0.2} & \num{2.00} \\" in tex
    assert r"\num{1.0} [\num{0.5}, \num{3.0}] & {\textdagger} \\" in tex


def test_the_paper_s_values_have_a_column_where_there_are_any(whole):
    header, _, first = table_of(render.markdown(whole))[:3]
    assert header == ["", "Δ & 50 % (points)", "paper", "Tokens_(M)"]
    assert first == ["**first**", "", "", ""]
    assert table_of(render.markdown(whole))[3] == ["row 0, ℓ = e^0.5 #", "−1.5 ± 0.2", "−2.0", "−1.50"]
    page = render.html(whole, Path("results"))
    assert page.count('<th scope="col" class="paper">paper</th>') == 1
    assert page.count('<td class="paper">−2.0</td>') == len(EVERY_VERDICT)


def test_a_verdict_is_a_mark_with_a_name_and_what_has_none_has_no_mark(whole):
    page = render.html(whole, Path("results"))
    for verdict in EVERY_VERDICT[:6]:
        mark = f'<span class="mark {verdict.replace(" ", "-")}" role="img" aria-label="{verdict}">'
        assert page.count(mark) == 1
        assert page.count(f"<dd>{escape(render.MEANINGS[verdict])}</dd>") == 1
    assert page.count('role="img"') == 6


def test_the_copied_csv_holds_each_number_in_a_cell_of_its_own(whole):
    first = render.csv(whole).splitlines()[:2]
    assert first == [
        'group,row,Δ & 50 % (points),Δ & 50 % (points) ±,"Δ & 50 % (points), paper",Tokens_(M)',
        'first,"row 0, ℓ = e^0.5 #",-1.5,0.2,-2.0,-1.50',
    ]


def test_the_copied_csv_has_all_columns_of_one_title():
    other = TOKENS.model_copy(update={"name": "other"})
    made = sheet([cell("a", "tokens", 1.0), cell("a", "other", 2.0)], (TOKENS, other))
    assert render.csv(made) == "row,Tokens_(M),Tokens_(M)\na,1.00,2.00\n"


def test_the_copied_texts_are_those_of_the_files(whole):
    page = render.html(whole, Path("results"))
    copied = dict(re.findall(r'<textarea hidden readonly id="table3-(\w+)">\n(.*?)</textarea>', page, re.DOTALL))
    unescaped = {kind: unescape(text) for kind, text in copied.items()}
    assert unescaped == {"CSV": render.csv(whole), "Markdown": render.markdown(whole), "LaTeX": render.latex(whole)}


def test_what_was_not_run_is_folded_and_named_by_group_where_it_is_a_whole_one():
    records = [
        cell(label, name, value, verdict="missing" if math.isnan(value) else "not comparable", group=group)
        for label, group, value in (("1", "a", 1.0), ("2", "a", math.nan), ("3", "b", math.nan), ("4", "b", math.nan))
        for name in ("accuracy", "tokens")
    ]
    page = render.html(sheet(records), Path("results"))
    assert "not run: 2 (a); b</span>" in page
    assert "1 of 4 rows run" in page
    assert '<tr class="group not-run">' in page
    assert "none-run" not in page
    nothing = render.html(sheet(records[2:]), Path("results"))
    assert "none of 3 rows run" in nothing
    assert 'class="table none-run"' in nothing


def along():
    records = []
    for step, value, reported in (("10", 1.0, math.nan), ("30", 3.0, 4.0)):
        records += [
            cell(f"GRPO @ {step}", "accuracy", value, value - 1, value + 1, step=step, reported=reported),
            cell(f"GRPO @ {step}", "tokens", math.nan, verdict="missing", step=step),
        ]
    return sheet(records, kind=StepTable)


def test_a_trajectory_is_drawn_over_its_steps_to_the_scale_of_its_column():
    found = trajectories(along())
    assert (found.steps, found.ranges) == ((10, 30), ["0.0 to 4.0", ""])
    ((label, (drawn, absent)),) = found.series
    assert (label, absent) == ("GRPO", None)
    left, right, bottom, top = MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN, MARGIN
    height = bottom - top
    assert drawn.mean == [(left, bottom - height / 4), (right, bottom - 3 * height / 4)]
    assert drawn.band == [(left, bottom), (right, bottom - height / 2), (right, top), (left, bottom - height / 2)]
    assert drawn.paper == [(right, top)]
    assert drawn.words == "GRPO, Δ & 50 % (points): 1.0 at step 10, 3.0 at step 30"


def test_drawings_come_first_and_the_numbers_of_a_trajectory_are_folded():
    page = render.html(along(), Path("results"))
    assert page.index("<svg") < page.index('<details class="numbers">') < page.index('<th scope="row">GRPO @ 10</th>')
    whole = sheet([cell("GRPO", "accuracy", 1.0), cell("GRPO", "tokens", 1.0)])
    assert "<svg" not in render.html(whole, Path("results"))


def compile_tables(files, folder):
    """Compile a document that holds these tables; fail where LaTeX does."""
    inputs = "\n".join(rf"\input{{{file}}}\clearpage" for file in files)
    head = "\\documentclass{article}\n\\usepackage{booktabs,graphicx,siunitx}\n"
    (folder / "all.tex").write_text(f"{head}\\begin{{document}}\n{inputs}\n\\end{{document}}\n")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if Path(LATEX).name == "pdflatex" else []
    fonts = os.environ | {"TEXMFVAR": str(folder / "texmf")}
    command = [LATEX, *options, "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False, env=fonts)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


@pytest.mark.skipif(LATEX is None, reason="there is no pdflatex and no tectonic")
def test_latex_compiles_with_the_packages_that_it_names(whole, tmp_path):
    texts = [render.latex(whole), render.latex(along()), *_declared()]
    for i, text in enumerate(texts):
        assert text.isascii()
        (tmp_path / f"table{i}.tex").write_text(text)
    compile_tables([f"table{i}" for i in range(len(texts))], tmp_path)


def _declared():
    """Every table of runs with its own titles and labels, and a made-up value in each cell."""
    experiments = Experiments(ROOT)
    for file in sorted((ROOT / "experiments").glob("*/tables.yaml")):
        paper = file.parent.name
        for table in experiments.tables(paper).tables:
            if not isinstance(table, TableWithoutRuns):
                benchmarks = experiments.preset_of("paper", paper).benchmarks
                whole = expand(table, benchmarks, experiments.reported(paper), "paper")
                records = [
                    cell(row.label, column.name, 1.0, 0.9, 1.1, "agrees", group=row.group, reported=1.1)
                    for row in whole.rows
                    for column in whole.columns
                ]
                yield render.latex(render.Sheet(whole, whole.columns, pd.DataFrame(records, columns=COLUMNS)))
