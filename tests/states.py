"""State files of checkpoints whose content a test changes on purpose, with the hash that fits it."""

from redraft.config import fingerprint
from redraft.files import read_json, write_json
from redraft.train.checkpoint import OWN_HASH


def restate(file, **changes):
    """Change values of a `state.json` and its own hash."""
    content = {key: value for key, value in read_json(file).items() if key != OWN_HASH} | changes
    write_json(file, content | {OWN_HASH: fingerprint(content)})
