"""Where IFEval's checkers get their sentences from: NLTK's Punkt and its trained parameters, `punkt_tab`.

Both harnesses ask NLTK for them, and no package index carries them. They are looked for in `$NLTK_DATA`, in
`$REDRAFT_DATA/nltk_data` and in NLTK's usual folders, then fetched, which needs a network. Where all that fails, Punkt
works untrained: it takes every abbreviation's full stop for the end of a sentence. Both harnesses are then pointed to
the same empty parameters, so that they still split alike.

Imports nothing but NLTK, since lighteval's environment uses this file too.
"""

import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import nltk

from redraft.errors import UserError

Splitter = Literal["punkt_tab", "untrained"]
ENGLISH = "tokenizers/punkt_tab/english"
PARAMETERS = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
FETCHING = 60
"""Longest time that fetching may take, seconds; where packets are dropped, NLTK itself waits for minutes."""
NOTE = (
    "sentences were split by an untrained Punkt (NLTK's punkt_tab was not found), which can change the verdicts of "
    "length_constraints:number_sentences and change_case:capital_word_frequency"
)
"""What to say beside a result of the untrained splitter."""


@cache
def sentence_splitter() -> Splitter:
    """Make NLTK ready to split sentences, without a network if need be, and say by what it does.

    Processes that are started later inherit the choice. Warns once, with `NOTE`, if it is the untrained splitter.

    Raises:
        UserError: if parameters are there but incomplete or damaged.
    """
    if root := os.environ.get("REDRAFT_DATA"):
        _look_in(Path(root) / "nltk_data", first=False)
    if _folder() is None:
        _fetch()
    if _folder() is None:
        _look_in(_untrained(), first=True)
        warnings.warn(NOTE, stacklevel=2)
    return "punkt_tab" if _trained() else "untrained"


def _look_in(folder: Path, *, first: bool) -> None:
    """Add a folder in front of NLTK's own, before or behind those of `$NLTK_DATA`."""
    configured = [part for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
    if str(folder) in nltk.data.path:
        return
    nltk.data.path.insert(0 if first else len(configured), str(folder))
    os.environ["NLTK_DATA"] = os.pathsep.join([str(folder), *configured] if first else [*configured, str(folder)])


def _folder() -> Path | None:
    """The parameters that NLTK would use; where only other languages are, nothing."""
    try:
        return Path(str(nltk.data.find(ENGLISH)))
    except LookupError:
        return None


def _fetch() -> None:
    """Ask NLTK's downloader, in a process that can be stopped; whether it worked shows in what is there then."""
    command = [sys.executable, "-m", "nltk.downloader", "--quiet", "punkt_tab"]
    try:
        subprocess.run(command, capture_output=True, timeout=FETCHING, check=False)
    except subprocess.TimeoutExpired:
        return


@cache
def _untrained() -> Path:
    """A folder with empty parameters, which stays until this process ends."""
    _KEPT.append(TemporaryDirectory(prefix="redraft-punkt-"))
    root = Path(_KEPT[-1].name)
    (root / ENGLISH).mkdir(parents=True)
    for name in PARAMETERS:
        (root / ENGLISH / name).touch()
    return root


_KEPT: list[TemporaryDirectory] = []


def _trained() -> bool:
    """Whether the parameters that are found hold anything.

    Raises:
        UserError: if they cannot be read.
    """
    folder = _folder()
    try:
        parameters = nltk.tokenize.punkt.PunktTokenizer()._params
        return bool(parameters.abbrev_types)
    except Exception as error:
        raise UserError(
            f"NLTK's sentence splitter is incomplete or damaged ({type(error).__name__})", file=folder,
            key="NLTK_DATA", allowed=PARAMETERS,
        ) from error  # fmt: skip
