"""Generations of a run that another paper has trained and evaluated by the same protocol (rule `take_generations`)."""

import shutil
from pathlib import Path

from redraft.config import Experiments, sampling_fingerprint
from redraft.errors import UserError
from redraft.files import atomic, hashes, write_json
from redraft.ops.locking.lease import EVALUATION, lease
from redraft.result_files import check_hashes, check_same, read_manifest, read_record


def take_generations(preset_name: str, protocol: str, seed: int, origin: Path, file: Path) -> None:
    """Copy another run's generations, and write their record with this run's manifest.

    Args:
        preset_name: name of the preset.
        protocol: name of the protocol (`Preset.protocol_of`).
        seed: seed of the sampling streams.
        origin: record of the other run's generations.
        file: file of this run's generations.

    Raises:
        UserError: if the generations are not those of the other run, of these policies, or of this protocol and seed.
    """
    preset = Experiments().preset(preset_name, protocol).of_seed(seed)
    record, manifest = read_record(origin, "sampled", "seed"), file.with_name("manifest.json")
    check_same(record["made_from"], hashes(other := origin.with_name(manifest.name)), origin)
    expected = {"sampled": sampling_fingerprint(preset), "seed": seed}
    for key, value in expected.items():
        if record[key] != value:
            raise UserError(
                "these generations were sampled in another way",
                file=origin,
                key=key,
                value=record[key],
                allowed=str(value),
            )
    policies, own = (read_manifest(path, "sha256")["sha256"] for path in (other, manifest))
    if policies != own:
        raise UserError("these generations are those of other policies", file=origin, allowed=f"those of {manifest}")
    check_hashes(origin.parent, record["sha256"], origin)
    with lease(file.parent, EVALUATION, file.with_name("generate.log")) as held:
        held.check()
        # A copy: Snakemake touches its outputs, and a link would make the origin look newer than its grades.
        with atomic(file) as temporary:
            shutil.copyfile(origin.with_name(file.name), temporary)
        write_json(file.with_suffix(".json"), record | {"made_from": hashes(manifest)})
