"""Entry point: `python -m benchmarks [NAME ...] [--write]` runs all benchmarks, or some, and compares their figures."""

import argparse
import sys
from importlib import import_module

from benchmarks import side_by_side

NAMES = (
    "certify",
    "chunks",
    "engine",
    "exact_rules",
    "gpu",
    "reuse_simulation",
    "rewards",
    "scoring",
    "self_speculation",
    "smol",
    "statistics",
    "updates",
    "vllm_rollout",
    "vllm_scoring",
)
BY_NAME = ("advise", "certificates", "check_faults", "gym", "mixing")
"""Those that time nothing, so that a run of all leaves them out."""

parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks, and compare their figures.")
parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*NAMES, *BY_NAME)))
parser.add_argument("--write", action="store_true", help="replace the committed figures by the new ones")
arguments = parser.parse_args()
if unknown := ", ".join({*arguments.names} - {*NAMES, *BY_NAME}):
    parser.error(f"unknown benchmark {unknown}; allowed: {', '.join((*NAMES, *BY_NAME))}")
sys.argv[1:] = []  # benchmarks parse their own options
for name in arguments.names or NAMES:
    import_module(f"benchmarks.{name}").main()
multiples = side_by_side.multiples(side_by_side.MEASURED)
print(side_by_side.compare(multiples))
if arguments.write:
    side_by_side.write(multiples)
