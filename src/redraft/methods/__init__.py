"""Rollout methods, one file each: a kind of reuse or a schedule, with its configuration and what it does.

A class registers itself by its `kind` (`redraft.methods.registry`); unions, audit, prediction and tests list the
registry. Files of methods import no NumPy until they run: it is in `acceptance`, `drafts` and `redraft.rollout`.

Of the configuration they import leaves alone (`base`, `capability`, `retention`, `trainer`), and the rest of it imports
them. So it is imported first: its unions then load every method, whichever of the two packages is imported.
"""

import redraft.config  # noqa: F401
