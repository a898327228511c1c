"""Seconds that the rollouts of a run would take on GPUs with known rooflines, from the passes that it recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from redraft.config.decoding import Decoding, LearnedHead, SelfSpeculation
from redraft.config.quantities import PREDICTED
from redraft.lab.selfspec.replay import PassFields
from redraft.result_files import check_record, read_steps
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.controller import Stretch
from redraft.selfspec.devices import DEVICES, QWEN_7B
from redraft.selfspec.rollout_time import (
    ProposalSeconds,
    no_seconds,
    rollout_seconds,
    seconds_of_head,
    seconds_of_quantised,
)


class WorkFields(PassFields):
    """Types of the fields of a step's record that have seconds here."""

    tokens_verified: Annotated[int, Field(ge=0)]


WORK_FIELDS: TypeAdapter[Any] = TypeAdapter(WorkFields)


def with_predicted_seconds(file: Path, decoding: Decoding) -> list[dict[str, Any]]:
    """Records of a run with `predicted_seconds.<device>`, for Qwen2.5-7B; as they are where no passes were recorded.

    Args:
        file: the run's `steps.jsonl`.

    Raises:
        UserError: if the file is damaged.
    """
    records = read_steps(file)
    proposals = {device: _proposal(calibration, decoding) for device, calibration in DEVICES.items()}
    for record in records:
        if "passes" not in record:
            continue
        check_record(record, WORK_FIELDS, file)
        passes = [Stretch(*stretch) for stretch in record["passes"]]
        for device, calibration in DEVICES.items():
            seconds = rollout_seconds(calibration, passes, record["tokens_verified"], proposals[device])
            record[f"{PREDICTED}{device}"] = seconds
    return records


def _proposal(calibration: Calibration, decoding: Decoding) -> ProposalSeconds:
    match decoding:
        case SelfSpeculation():
            return seconds_of_quantised(calibration.of_model(replace(QWEN_7B, draft_bits=decoding.bits)))
        case LearnedHead():
            return seconds_of_head(calibration, QWEN_7B, decoding.width)
        case _:
            return no_seconds
