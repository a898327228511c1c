"""Two papers, made up for tests: one with a table, figures and claims in its own words, one with nothing but a cell."""

import yaml

CELLS = {
    "title": "Half of it kept: rollouts begin with what was there",
    "source": "made up",
    "grids": [
        {
            "name": "both",
            "cell": {"model": "qwen3-1.7b-base", "data": "deepmath-6k", "algorithm": {"kind": "grpo"}},
            "axes": {"approach": {"fresh": {"reuse": {"kind": "vanilla"}}, "halved": {"reuse": {"kind": "random"}}}},
        }
    ],
}
VOCABULARY = {
    "key": {
        "backbone": {"of": "model", "names": {"qwen3-1.7b-base": "Small"}},
        "approach": {"of": "reuse.kind", "names": {"vanilla": "from scratch", "random": "half kept"}},
    },
    "base": {"approach": "untrained"},
    "quantities": {"tokens_decoded": {"columns": ["effort"]}, "accuracy:all": {"columns": ["score"]}},
}
REPORTED = """backbone,approach,column,value
Small,untrained,score,20.0
Small,from scratch,effort,400
Small,from scratch,score,50.0
Small,half kept,effort,300
Small,half kept,score,48.0
"""
TABLES = {
    "tables": [
        {
            "number": 1,
            "kind": "cells",
            "title": "What is saved",
            "baseline": "fresh",
            "columns": [
                {
                    "name": "effort",
                    "title": "Effort / fresh",
                    "quantity": "sum:tokens_decoded",
                    "relative": "ratio",
                    "reported": ["effort"],
                },
                {
                    "name": "score",
                    "title": "Score (%)",
                    "quantity": "accuracy:all",
                    "reported": ["score"],
                    "decimals": 1,
                },
            ],
            "rows": [
                {"label": "Untrained", "cell": "fresh", "at": "start"},
                {"label": "From scratch", "cell": "fresh"},
                {"label": "Half kept", "cell": "halved"},
            ],
        },
        {
            "number": 101,
            "kind": "targets",
            "title": "Steps to a length",
            "baseline": "fresh",
            "clock": "steps",
            "targets": [
                {"name": "some", "title": "one token", "quantity": "response_length", "at_least": 1},
                {"name": "never", "title": "more than the limit", "quantity": "response_length", "at_least": 1000},
            ],
            "rows": [{"label": "From scratch", "cell": "fresh"}, {"label": "Half kept", "cell": "halved"}],
        },
        {
            "number": 102,
            "kind": "published",
            "title": "Their own curves",
            "folder": "nowhere",
            "time": "t",
            "targets": [{"name": "some", "title": "some", "at_least": 1, "fields": ["score"]}],
            "rows": [{"label": "From scratch", "file": "curve.json"}],
        },
    ]
}
FIGURES = {
    "figures": [
        {
            "number": 1,
            "title": "length over hours",
            "x": "hours",
            "panels": [
                {"quantity": "response_length", "title": "length", "cells": ["fresh", "halved"], "smoothing": 0.5}
            ],
        },
        {
            "number": 2,
            "title": "pass rates of prompts",
            "x": "bins",
            "panels": [
                {
                    "quantity": "share",
                    "by": "pass_rate",
                    "bins": [0, 0.5, 1],
                    "title": "share of prompts",
                    "cells": ["fresh", "halved"],
                }
            ],
        },
    ]
}
CLAIMS = {
    "claims": [
        {
            "id": "less-effort",
            "quotation": "less effort",
            "section": "1",
            "test": {
                "kind": "compare",
                "quantity": "tokens_decoded",
                "cell": "halved",
                "baseline": "fresh",
                "relative": "ratio",
                "expected": "below",
                "threshold": 1.0,
            },
            "printed": [{"number": "0.75"}],
        },
        {
            "id": "as-good",
            "quotation": "as good",
            "section": "1",
            "test": {
                "kind": "compare",
                "quantity": "accuracy:all",
                "cell": "halved",
                "baseline": "fresh",
                "expected": "above",
                "threshold": -1.0,
            },
        },
    ]
}
HYPERPARAMETERS = {
    "trainer": {
        name: {"value": value, "source": "ours: made up"}
        for name, value in {
            "epochs": 15,
            "prompts_per_step": 1024,
            "group_size": 8,
            "prompts_per_update": 256,
            "learning_rate": 1e-4,
            "weight_decay": 0.01,
            "gradient_clip": 1.0,
            "max_prompt_tokens": 1024,
            "max_response_tokens": 4096,
            "evaluate_every": 10,
        }.items()
    }
}
BARE = {
    "title": "Nothing but a cell",
    "source": "made up too",
    "grids": [
        {
            "name": "one",
            "axes": {"a": {"alone": {}}},
            "cell": {
                "model": "qwen3-1.7b-base",
                "data": "deepmath-6k",
                "algorithm": {"kind": "grpo"},
                "reuse": {"kind": "vanilla"},
            },
        }
    ],
}

DEFAULT = """  second: [both]
  bare: [one]
"""
"""The lines that a preset gets, at its end: the grids of these papers."""
FIRST, WITH_THEM = "first: [spec_rl]", "first: [spec_rl, second, bare]"
"""The preset's papers that run without being named."""


def write_papers(experiments):
    """The files of the two papers; everything that they add."""
    files = {
        "second/cells": CELLS,
        "second/reported": VOCABULARY,
        "second/tables": TABLES,
        "second/figures": FIGURES,
        "second/claims": CLAIMS,
        "second/hyperparameters": HYPERPARAMETERS,
        "bare/cells": BARE,
        "bare/hyperparameters": HYPERPARAMETERS,
    }
    for name, content in files.items():
        file = experiments / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(content, sort_keys=False))
    (experiments / "second/reported").mkdir()
    (experiments / "second/reported/table01.csv").write_text(REPORTED)
