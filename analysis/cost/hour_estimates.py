"""Estimates of hours and storage from a paper's own tables, by the rules that its `reported.yaml` declares.

If the paper prints the time of a cell, that is its estimate. Otherwise the estimate uses the seconds of a step with the
same model and algorithm: of the baseline, or of the reference row for reuse (`cost.reference`). Estimates exist only at
the paper's scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from redraft.analysis.data.reported_tables import ReportedTable, match_of, read_reported
from redraft.config import (
    Cell,
    CostRules,
    Engine,
    Experiments,
    Preset,
    PretrainedModel,
    Reported,
    ReportedTimes,
    Run,
    TrainerConfig,
)
from redraft.config.hyperparameters import trainer_of

WEIGHT_BYTES = 4
"""Bytes of a weight of a kept policy: verl writes float32, and so does the in-process trainer unless it computes in
bfloat16."""
ROLLOUT_BYTES = 8
"""Bytes of a token of a saved rollout before compression: token and step of sampling."""
DRAFT_BYTES = 12
"""Bytes of a token of a draft in memory: token, log-probability and step."""
TOP_BYTES = 8
"""Bytes of each token of its top distribution, if the method keeps one: token and log-probability."""

EVALUATION = {"evaluate_every", "evaluation_clock"}
"""Trainer settings that do not change a step."""
SAME_UPDATES = EVALUATION | {"epochs"}
"""Trainer settings that do not change updates."""
UNKNOWN = "unknown until one run is finished"

Values = Mapping[str, float]
Storage = tuple[float | None, float | None, float | None]


def devices(engine: Engine) -> int:
    """Number of GPUs of one run on all its nodes, or of cores if it uses no GPU."""
    # Both are per node.
    return (engine.gpus or engine.threads) * engine.nodes


@dataclass(frozen=True)
class Scale:
    """The model of the reported times that replaces a cell's model, and the factor on its hours."""

    model: str
    factor: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Estimates:
    """Estimates by a paper's rules and tables; without rules every estimate is unknown."""

    preset: Preset
    rules: "_Rules | None" = None

    @classmethod
    def of(cls, experiments: Experiments, paper: str, preset: Preset) -> "Estimates":
        """The rules and tables of a paper."""
        spec, folder = experiments.reported(paper), experiments.folder_of(paper)
        if not spec or not spec.cost or not spec.times:
            return cls(preset)
        # Only these are read, and one that is not transcribed yet is left out.
        numbers = {spec.times.table, *spec.cost.speedups, *spec.cost.lengths}
        files = {number: folder / "reported" / f"table{number:02d}.csv" for number in numbers}
        tables = {n: read_reported(folder, n, spec) for n, file in files.items() if file.exists()}
        if spec.times.table not in tables:
            return cls(preset)
        # The paper's trainer without what any cell changes, as the reference of a step's work.
        unchanged = experiments.cells(paper)[0].model_copy(update={"trainer": {}, "trainer_factors": {}})
        stated = trainer_of(experiments.trainer_settings(unchanged, preset))
        return cls(preset, _Rules(preset, spec, stated, spec.cost, spec.times, tables))

    def hours(self, cell: Cell, run: Run) -> tuple[float | None, str]:
        """Wall hours of one run and the name of the rule; None if the tables have no basis for an estimate.

        They are wall hours on the paper's GPUs (`CostRules.hardware`), and nothing scales them to an engine with
        another number of GPUs. GPU-hours are these hours times the GPUs of the run's own engine.
        """
        # The paper's seconds are of its models on its GPUs.
        if not self.preset.paper_scale or not (rules := self.rules):
            return None, UNKNOWN
        if (scale := rules.scale(cell)) is None:
            return None, "unknown: the paper has no such model, and its parameters are not known"
        row = rules.printed(cell, scale.model)
        if rules.has(row, "hours"):
            return rules.value(row, "hours") * scale.factor, f"Table {rules.times.table}{scale.note}"
        setting, stand_in = rules.setting(cell, scale.model)
        seconds, rule = rules.seconds_a_step(cell, setting)
        if seconds is None:
            return None, UNKNOWN
        work = rules.work(run.trainer)
        note = f" of {work:g} times the tokens" if work != 1 else ""
        hours = seconds * run.steps * work * scale.factor / 3600
        return hours, f"{rule} × {run.steps} steps{note}{stand_in}{scale.note}"

    def storage(self, cell: Cell, run: Run, runs: int) -> Storage:
        """Bytes of all kept policies, of all rollouts, and of one draft store; None if unknown."""
        if not (rules := self.rules):
            return None, None, None
        size = rules.parameters(cell.model)
        # Lengths of responses are those of the paper's models and data; sizes of models are known at any scale.
        length = rules.length(cell, run.trainer) if self.preset.paper_scale else None
        halved = run.engine.kind == "torch" and run.engine.dtype == "bfloat16"
        weight = WEIGHT_BYTES // 2 if halved else WEIGHT_BYTES
        policies = None if size is None else size * weight * run.most_evaluations * runs
        if length is None:
            return policies, None, None
        group = run.trainer.group_size
        rollouts = run.steps * run.trainer.prompts_per_step * group * length * ROLLOUT_BYTES * runs
        kept = run.reuse.retention
        drafts = run.data.size * group * length * (DRAFT_BYTES + TOP_BYTES * kept.top) * float(kept.visits)
        return policies, rollouts, drafts


@dataclass(frozen=True)
class _Rules:
    """Declared rules at work on the tables that they name and that are transcribed, by number.

    `stated` is the paper's trainer, without changes by cells.
    """

    preset: Preset
    spec: Reported
    stated: TrainerConfig
    cost: CostRules
    times: ReportedTimes
    tables: Mapping[int, ReportedTable]

    @property
    def breakdown(self) -> ReportedTable:
        """The paper's table of times."""
        return self.tables[self.times.table]

    def value(self, row: Values, quantity: str) -> float:
        """Value of a one-column quantity in a row; 0 if the row lacks it."""
        return row.get(self.spec.quantities[quantity].columns[0], 0.0)

    def has(self, row: Values, quantity: str) -> bool:
        """True if the row has a one-column quantity; a stage without a value did not run, a whole without one did."""
        return self.spec.quantities[quantity].columns[0] in row

    def column(self, of: str) -> str:
        """The key column for a field of cells."""
        return next(name for name, column in self.spec.key.items() if column.of == of)

    def values_of(self, column: str) -> list[str]:
        """Distinct values of a key column in the table of times."""
        return list(dict.fromkeys(key[self.spec.row.index(column)] for key in self.breakdown.rows))

    def scale(self, cell: Cell) -> Scale | None:
        """The model of the times that replaces a cell's model; None if its parameters are unknown.

        A model without reported times uses those of the largest one, scaled by parameters.
        """
        models = self.values_of(self.column("model"))
        if cell.model in models:
            return Scale(cell.model)
        known = {role: size for role in (cell.model, *models) if (size := self.parameters(role))}
        # The size of the cell's model, or of a model of the times, is not declared.
        if len(known) <= len(models):
            return None
        nearest = max(models, key=lambda role: known[role])
        factor = known[cell.model] / known[nearest]
        return Scale(nearest, factor, f", scaled from {nearest} by parameters (× {factor:.2f})")

    def parameters(self, role: str) -> float | None:
        """Number of parameters of the preset's model."""
        model = self.preset.models.get(role)
        return self.cost.parameters.get(model.path) if isinstance(model, PretrainedModel) else None

    def printed(self, cell: Cell, model: str) -> Values:
        """The row of a cell in the table of times; empty if it has none or its trainer is changed."""
        match = match_of(cell, self.spec)
        # A printed time is of the printed trainer; evaluation alone does not change a step.
        if match is None or (cell.trainer | cell.trainer_factors).keys() - EVALUATION:
            return {}
        return self.breakdown.select(match | {self.column("model"): model})

    def setting(self, cell: Cell, model: str) -> tuple[dict[str, str], str]:
        """Key columns that a cell shares with its baseline, with replacements, and a note on these."""
        plain = self._plain(cell) | {self.column("model"): model}
        found = self._substituted(plain)
        notes = [f", {plain[name]} as {found[name]}" for name in found if found[name] != plain[name]]
        return {name: found[name] for name in self.times.setting}, "".join(notes)

    def _plain(self, cell: Cell) -> dict[str, str]:
        """Key columns of a cell, also if the paper does not report such cells."""
        # Without names each value is its own name, so that cells that the paper lacks have key columns too.
        unnamed = {name: column.model_copy(update={"names": {}}) for name, column in self.spec.key.items()}
        return match_of(cell, self.spec.model_copy(update={"key": unnamed})) or {}

    def _substituted(self, match: Mapping[str, str]) -> dict[str, str]:
        return {name: self.cost.stand_ins.get(name, {}).get(value, value) for name, value in match.items()}

    def seconds_a_step(self, cell: Cell, setting: Mapping[str, str]) -> tuple[float | None, str]:
        """Estimated seconds of a step of a cell that the table of times lacks, and the rule.

        A baseline has the seconds of its setting. For a cell with a printed speedup the rollout time of the baseline is
        divided by that speedup, and verification (if the method verifies) and assembly of the reference are added. Any
        other cell has the seconds of the reference.
        """
        baseline = self.breakdown.select({**setting, **self.times.baseline})
        reference = self.breakdown.select({**setting, **self.cost.reference})
        if not all(self.has(row, "seconds:total") for row in (baseline, reference)):
            return None, ""
        match, name = match_of(cell, self.spec), f"Table {self.times.table}"
        if match and self.times.baseline.items() <= match.items():
            return self.value(baseline, "seconds:total"), f"{name} s/step"
        if match and (found := self.speedup(cell, match)):
            speedup, number = found
            unverified = any(row.items() <= match.items() for row in self.cost.without_verification)
            overhead = self.value(reference, "seconds:assembly")
            overhead += 0.0 if unverified else self.value(reference, "seconds:verification")
            rollout = self.value(baseline, "seconds:rollout")
            # The printed speedup is of rollouts alone, so the other stages stay the baseline's.
            rest = self.value(baseline, "seconds:total") - rollout
            return rest + rollout / speedup + overhead, f"{name} × Table {number} speedup"
        return self.value(reference, "seconds:total"), f"{name} s/step of {self.cost.reference_name}"

    def speedup(self, cell: Cell, match: Mapping[str, str]) -> tuple[float, int] | None:
        """The printed rollout speedup of a cell and the number of its table; None if its updates differ."""
        if not self.spec.speedup or (cell.trainer | cell.trainer_factors).keys() - SAME_UPDATES:
            return None
        column = self.spec.speedup.column
        found = ((self.tables[n].select(match), n) for n in self.cost.speedups if n in self.tables)
        return next(((row[column], number) for row, number in found if column in row), None)

    def work(self, trainer: TrainerConfig) -> float:
        """Maximum tokens of a step relative to the paper's step."""
        tokens = [t.prompts_per_step * t.group_size * t.max_response_tokens for t in (trainer, self.stated)]
        return tokens[0] / tokens[1]

    def length(self, cell: Cell, trainer: TrainerConfig) -> float | None:
        """Mean tokens of a response: decoded tokens of the baseline over its rollouts, on the cell's data or the
        times'.

        The mean is scaled by the limit of tokens if that differs from the paper's.
        """
        limit = trainer.max_response_tokens / self.stated.max_response_tokens
        tokens, data = self.spec.quantities.get("tokens_decoded"), self.column("data")
        key = self._substituted(self._plain(cell))
        known = {name: key[name] for name in (*self.times.setting, data)} | self.times.baseline
        for of in (cell.data, self.values_of(data)[0]):
            for table in (self.tables[number] for number in self.cost.lengths if number in self.tables):
                found = table.last(known | {data: of})
                row = table.rows[found] if found else {}
                done = table.steps_done(found) if found else None
                if tokens and done and tokens.columns[0] in row:
                    # The table's own step, since some tables end before the run does.
                    rollouts = done * self.stated.prompts_per_step * self.stated.group_size
                    return row[tokens.columns[0]] * tokens.scale / rollouts * limit
        return None
