"""The sentence splitter of IFEval's checkers: NLTK's Punkt with its trained parameters, `punkt_tab`.

Both harnesses load these parameters through NLTK. envs/install.sh extracts them from a wheel into the environment. NLTK
searches `$NLTK_DATA`, `$REDRAFT_DATA/nltk_data` and its usual folders; if they are in none, they are downloaded. If
that fails, Punkt runs untrained and ends a sentence after every abbreviation. Both harnesses use the same parameters,
so they split sentences in the same way.

This module imports only NLTK and `redraft.errors`, since lighteval's environment uses it too.
"""

import os
import subprocess
import sys
import warnings
from contextlib import suppress
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
"""Time limit for fetching, in seconds; NLTK itself waits for minutes if a network drops packets."""
NOTE = (
    "sentences were split by an untrained Punkt (NLTK's punkt_tab was not found), which can change the verdicts of "
    "length_constraints:number_sentences and change_case:capital_word_frequency"
)
"""Note on results of the untrained splitter."""
_EMPTY: list[TemporaryDirectory] = []
"""Folder of empty parameters, removed when this process ends."""


@cache
def sentence_splitter() -> Splitter:
    """Prepare NLTK to split sentences, also without a network, and return the kind of splitter.

    Processes that start later inherit the choice. The untrained splitter gives one warning, `NOTE`.

    Raises:
        UserError: if the parameters are incomplete or damaged.
    """
    if root := os.environ.get("REDRAFT_DATA"):
        _add_to_search_path(Path(root) / "nltk_data", first=False)
    if _folder() is None:  # NLTK's downloader in a process that can be stopped
        with suppress(subprocess.TimeoutExpired):
            # A failure, as without a network, is no error: then the splitter is untrained.
            command = [sys.executable, "-m", "nltk.downloader", "--quiet", "punkt_tab"]
            subprocess.run(command, capture_output=True, timeout=FETCHING, check=False)
    if folder := _folder():
        # `ENGLISH` is three levels below a folder of the search path.
        _add_to_search_path(folder.parents[2], first=False)
    else:
        _EMPTY.append(TemporaryDirectory(prefix="redraft-punkt-"))
        root = _EMPTY[-1].name
        (Path(root) / ENGLISH).mkdir(parents=True)
        for name in PARAMETERS:
            (Path(root) / ENGLISH / name).touch()
        _add_to_search_path(Path(root), first=True)
        warnings.warn(NOTE, stacklevel=2)
    folder = _folder()
    try:
        # Loaded as the checkers load it; trained parameters have abbreviations.
        trained = bool(nltk.tokenize.punkt.PunktTokenizer()._params.abbrev_types)
    except Exception as error:
        raise UserError(
            f"NLTK's sentence splitter is incomplete or damaged ({type(error).__name__})",
            file=folder,
            key="NLTK_DATA",
            allowed=PARAMETERS,
        ) from error
    return "punkt_tab" if trained else "untrained"


def _add_to_search_path(folder: Path, *, first: bool) -> None:
    """Add a folder to NLTK's search path and to `$NLTK_DATA`, before or after those of that variable."""
    configured = [part for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
    if str(folder) not in nltk.data.path:
        nltk.data.path.insert(0 if first else len(configured), str(folder))
    if str(folder) not in configured:
        os.environ["NLTK_DATA"] = os.pathsep.join([str(folder), *configured] if first else [*configured, str(folder)])


def _folder() -> Path | None:
    """The folder of English parameters that NLTK would use, or None."""
    try:
        return Path(str(nltk.data.find(ENGLISH)))
    except LookupError:
        return None
