"""Seconds that the rollouts of a run would take on GPUs with known rooflines, from the passes that it recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from redraft.config.quantities import PREDICTED
from redraft.lab.selfspec.replay import recorded_passes
from redraft.result_files import read_steps
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.devices import DEVICES, QWEN_7B
from redraft.selfspec.rollout_time import (
    ProposalSeconds,
    no_seconds,
    rollout_seconds,
    seconds_of_head,
    seconds_of_quantised,
)


def with_predicted_seconds(file: Path, decoding: dict[str, Any]) -> list[dict[str, Any]]:
    """Records of a run with `predicted_seconds.<device>`, for Qwen2.5-7B; as they are where no passes were recorded.

    Args:
        file: the run's `steps.jsonl`.
        decoding: of its configuration.

    Raises:
        UserError: if the file is damaged.
    """
    records = read_steps(file)
    proposals = {device: _proposal(calibration, decoding) for device, calibration in DEVICES.items()}
    for record in records:
        if "passes" in record and (passes := recorded_passes(record, file)):
            for device, calibration in DEVICES.items():
                seconds = rollout_seconds(calibration, passes, record["tokens_verified"], proposals[device])
                record[f"{PREDICTED}{device}"] = seconds
    return records


def _proposal(calibration: Calibration, decoding: dict[str, Any]) -> ProposalSeconds:
    match decoding["kind"]:
        case "self_speculation":
            return seconds_of_quantised(calibration.of_model(replace(QWEN_7B, draft_bits=decoding["bits"])))
        case "head":
            return seconds_of_head(calibration, QWEN_7B, decoding["width"])
        case _:
            return no_seconds
