"""Files of calibrations: one that cannot be read is an error, never a reason to speculate."""

import json
import re

import pytest

from redraft.errors import UserError
from redraft.files import read_json, write_json
from redraft.selfspec.calibration import read_calibration, write_calibration
from tests.selfspec import QWEN


def test_a_calibration_that_is_written_is_read_again(tmp_path):
    file = tmp_path / "calibration.json"
    write_calibration(file, QWEN, {"sweep": "sweep.csv"})
    assert read_calibration(file) == QWEN
    assert read_json(file)["metadata"] == {"sweep": "sweep.csv"}


BROKEN = {
    "a missing section": (lambda c: c.pop("hardware"), ["lacks a section", "hardware"]),
    "a section that is none": (lambda c: c.update(model=[]), ["lacks a section", "model"]),
    "a missing number": (lambda c: c["calibration"].pop("eta_d"), ["lacks a number", "eta_d", "more than 0"]),
    "more than a float holds": (lambda c: c["calibration"].update(eta_d=10**400), ["lacks a number", "eta_d"]),
    "a text": (lambda c: c["calibration"].update(c_V="12"), ["lacks a number", "calibration.c_V", "0 or more"]),
    "a truth": (lambda c: c["hardware"].update(BW_eff=True), ["lacks a number", "hardware.BW_eff"]),
    "a bandwidth of 0": (lambda c: c["hardware"].update(BW_eff=0), ["lacks a number", "BW_eff", "more than 0"]),
    "a negative overhead": (lambda c: c["calibration"].update(c_T=-1.0), ["lacks a number", "calibration.c_T"]),
    "no weights": (lambda c: c["model"].update(W_t=None), ["lacks a number", "model.W_t"]),
    "two GPUs": (lambda c: c["hardware"].update(tp=2), ["does not model this", "hardware.tp", "2"]),
    "communication": (lambda c: c["hardware"].update(c_comm=1e-3), ["does not model this", "hardware.c_comm"]),
    "one gamma": (lambda c: c["calibration"].update(per_gamma={"3": {}}), ["does not model this", "per_gamma"]),
    "more reading": (lambda c: c["calibration"].update(beta=0.1), ["does not model this", "calibration.beta"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_calibration_that_is_not_right_is_an_error(name, tmp_path):
    mistake, parts = BROKEN[name]
    file = tmp_path / "calibration.json"
    write_calibration(file, QWEN, {})
    content = read_json(file)
    mistake(content)
    write_json(file, content)
    with pytest.raises(UserError) as error:
        read_calibration(file)
    assert error.value.file == file
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"hardware": {}}', "null"])
def test_a_calibration_that_cannot_be_read_is_an_error(text, tmp_path):
    file = tmp_path / "calibration.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match="missing|damaged|lacks a"):
        read_calibration(file)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_an_error(value, tmp_path):
    file = tmp_path / "calibration.json"
    write_calibration(file, QWEN, {})
    file.write_text(re.sub(r'"eta_d": [0-9.]+', f'"eta_d": {value}', file.read_text()))
    with pytest.raises(UserError, match="lacks a number"):
        read_calibration(file)


def test_the_authors_need_not_write_what_is_neutral(tmp_path):
    file = tmp_path / "calibration.json"
    write_calibration(file, QWEN, {})
    content = json.loads(file.read_text())
    del content["hardware"]["tp"], content["calibration"]["per_gamma"], content["metadata"]
    write_json(file, content)
    assert read_calibration(file) == QWEN
