"""Extras of the package: the error message for a missing third-party module names the extra to install."""

from collections.abc import Sequence
from importlib.util import find_spec

from redraft.errors import UserError

EXTRAS = {
    "report": (
        "jinja2",
        "markdown_it",
        "markupsafe",
        "matplotlib",
        "numpy",
        "pandas",
        "pyarrow",
        "pylatexenc",
        "rocrate",
        "scipy",
        "tabulate",
        "threadpoolctl",
    ),
    "evaluate": (
        "datasets",
        "httpx",
        "huggingface_hub",
        "langdetect",
        "latex2sympy2_extended",
        "lm_eval",
        "math_verify",
        "nltk",
        "pebble",
        "psutil",
        "sacrebleu",
        "sympy",
        "tokenizers",
        "torch",
        "transformers",
    ),
    "train": ("filelock", "safetensors", "snakemake", "snakemake_interface_logger_plugins", "verl"),
    "verl": ("hydra", "omegaconf", "ray", "transfer_queue", "vllm"),
    "mlflow": ("mlflow",),
    "certify": (),
    "gym": ("reasoning_gym",),
    "trl": ("trl",),
}
"""Third-party modules by the extra that adds them (pyproject.toml); each of the first four includes the previous."""
CERTIFY = ("httpx", "numpy", "scipy")
"""Modules of the extra `certify`, which is enough for that command alone; larger extras have them too."""
NEEDS = {
    "run": "train",
    "recover": "train",
    "evaluate": "evaluate",
    "sensitivity": "evaluate",
    "regrade": "evaluate",
    "predict": "evaluate",
    "advise": "evaluate",
    "schema": "evaluate",
}
"""Smallest extra with which a command works; the first missing module may belong to a smaller one."""


def missing(error: ModuleNotFoundError, arguments: Sequence[str]) -> UserError | None:
    """Error for a missing module that an extra adds; None for any other module, whose absence is a bug."""
    module, names = (error.name or "").partition(".")[0], list(EXTRAS)
    extra = next((name for name in names if module in EXTRAS[name]), None)
    if extra is None:
        return None
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    extra = max(extra, NEEDS.get(command, extra), key=names.index)
    if command == "certify" and module in CERTIFY:
        extra = command
    return UserError(f"`{f'redraft {command}'.strip()}` needs {module}: pip install 'redraft[{extra}]'")


def require_module(name: str) -> None:
    """Check that a module is installed, for a command that runs it in another process.

    Raises:
        ModuleNotFoundError: if it is not, as an import would.
    """
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
