"""A run that another paper has trained, under the name of an equal cell (rule `take_run`)."""

import shutil
from pathlib import Path

from redraft.config import Experiments
from redraft.config.read import shown
from redraft.errors import UserError
from redraft.files import linked_folder, remove, write_atomically
from redraft.ops.locking.lease import TAKING, lease
from redraft.provenance import write_named_manifest
from redraft.result_files import check_hashes, read_manifest

LINKED = ("rollouts", "policies")
"""Folders of a finished run. No process changes a file in them in place, so links are safe."""
NAMES = ("paper", "cell")


def take_run(preset_name: str, cell_id: str, seed: int, origin: Path, file: Path) -> None:
    """Take a finished run: link its rollouts and policies, copy its records, write its manifest with this cell's name.

    Args:
        preset_name: name of the preset.
        cell_id: the cell that takes it, as `paper/cell`.
        seed: seed of both runs.
        origin: manifest of the finished run.
        file: the manifest to write, in the folder of the cell's run.

    Raises:
        UserError: if the finished run differs in more than the names, or its records are not those of its manifest.
    """
    run = Experiments().run(cell_id, seed, preset_name)
    manifest = read_manifest(origin, "run", "identity", "configuration", "sha256")
    named = {name: run.identity[name] for name in NAMES}
    if (found := manifest["identity"] | named) != run.identity:
        differing = sorted(key for key in found.keys() | run.identity if found.get(key) != run.identity.get(key))
        raise UserError(
            f"this run is not that of {cell_id}, which takes it (`runs_from`)",
            file=origin,
            key=f"identity.{differing[0]}",
            value=shown(found.get(differing[0])),
            allowed=str(shown(run.identity.get(differing[0]))),
            hint="train it again, or remove the paper from `runs_from`",
        )
    rollouts = [name for name in manifest["sha256"] if name.startswith("rollouts/")]
    if removed := [name for name in rollouts if not (origin.parent / name).exists()]:
        raise UserError(
            f"rollouts of this run were removed, so {cell_id} cannot take it (`runs_from`)",
            file=origin.parent / removed[0],
            hint=f"remove {origin.parent}, which trains it again, or the paper from `runs_from`",
        )
    records = origin.with_name("steps.jsonl")
    check_hashes(origin.parent, {records.name: manifest["sha256"][records.name]}, origin)
    folder = file.parent
    with lease(folder, TAKING, folder / "taken.log") as held:
        # An earlier run of this cell, which was trained here.
        remove(folder / name for name in ("checkpoints", *LINKED))
        for name in LINKED:
            if (origin.parent / name).is_dir():  # policies may have been removed to save space
                linked_folder(origin.parent / name, folder / name)
        write_atomically(folder / records.name, records.read_bytes())
        if (resources := origin.with_name("resources.tsv")).exists():
            shutil.copyfile(resources, folder / resources.name)
        held.check()
        write_named_manifest(file, manifest, run)
