"""Where the time of a decoded token goes, by the roofline of each part, beside the shares that the paper prints."""

import pandas as pd

from redraft.analysis.data.reported import ReportedTable, mean_of
from redraft.analysis.tables.comparison import COLUMNS
from redraft.analysis.tables.without_runs import as_printed, record
from redraft.config import Column, DecompositionTable
from redraft.lab.selfspec.token_time import decode_shares
from redraft.selfspec.constants import model_constants

PARTS = {"ffn": "FFN", "qkvo": "QKVO", "attention": "attention", "head": "head", "nonlinear": "nonlinear"}
"""Part to its title."""
REPORTED = {"head": "lm_head"}
"""Names of parts in transcribed columns, where they differ."""


def make_decomposition(table: DecompositionTable, reported: ReportedTable) -> pd.DataFrame:
    """All cells of a table, a line each, columns as those of every table; shares in percent.

    Raises:
        UserError: for a model that the roofline does not cover.
    """
    records = []
    for model in table.models:
        sizes = model_constants(model.configuration)
        own = reported.select(model.reported) if model.reported else {}
        for each in table.passes:
            shares = decode_shares(sizes, each.batch, each.length, bandwidth=table.bandwidth, flops=table.flops)
            for part in PARTS:
                value, printed = 100 * shares[part], mean_of(own, [f"{REPORTED.get(part, part)}@{each.reported}"])
                verdict = as_printed(value, printed, table.decimals)
                records.append(record(model.label, each.label, part, value, printed, verdict))
    return pd.DataFrame(records, columns=COLUMNS)


def columns_of(table: DecompositionTable) -> list[Column]:
    """A share for each part."""
    return [
        Column(name=part, title=f"{title} (%)", quantity=part, decimals=table.decimals) for part, title in PARTS.items()
    ]
