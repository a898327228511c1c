"""Description of a zip of results as an RO-Crate: what it contains, which workflow made it, and what to cite.

The profile is Workflow Run Crate (https://w3id.org/ro/wfrun/workflow/0.5). Each copy of the code is a workflow, and the
runs that it made are the results of one action. Without the code, as of published results, it is a plain RO-Crate.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from redraft.config import Experiments
from redraft.config.read import read_yaml
from redraft.data_dictionary import COLUMNS
from redraft.layout import code_root
from redraft.result_files import read_manifest

if TYPE_CHECKING:
    from rocrate.rocrate import ROCrate

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
"""Profiles that a crate with a workflow conforms to: names and versions."""
CONTENT = {
    "report": "pages of the report",
    "tables": "reproduced tables of the papers, with the papers' own values",
    "figures": "reproduced figures of the papers, and their points",
    "claims": "claims of the papers with verdicts and evidence",
    "cases": "responses of several policies to the same problems",
    "runs": "manifest, records of steps, scores and grades of each run",
    "initial": "scores and grades of the initial policies",
    "code": "code that made the runs, with its experiments and locked versions of all packages",
    "laboratory": "distributions of rules of reuse",
}
"""Folders of a preset's results."""
JSON = "application/json"
FILES = {
    "README.md": ("Guide to this folder", "text/markdown"),
    COLUMNS: ("Unit and meaning of each column", JSON),
    "CITATION.cff": ("Citation of the software and the papers", "application/yaml"),
    "LICENSE": ("Licence of code and results", "text/plain"),
}


def metadata(preset: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """Content of `ro-crate-metadata.json`.

    Args:
        preset: its results are described.
        files: by their names in the zip, which start with `results/<preset>` but for those of `FILES`.
    """
    from rocrate.rocrate import ROCrate

    crate, root, file = ROCrate(version="1.1"), f"results/{preset}", code_root() / "CITATION.cff"
    about: dict[str, Any] = read_yaml(file) if file.exists() else {}
    papers = _papers(crate, about)
    crate.name = f"Results of redraft at the preset {preset}"
    crate.description = (
        f"Tables, figures and verdicts on claims of {len(papers)} papers at the preset {preset}, with the records and "
        "the code of the runs that they are made from."
    )
    crate.root_dataset["citation"] = papers
    if licence := about.get("license"):
        address = f"https://spdx.org/licenses/{licence}"
        crate.license = _add(crate, address, "CreativeWork", name=licence, url=address)
    crate.root_dataset["author"] = crate.publisher = _one(
        [_add(crate, _identifier(each["name"]), "Organization", name=each["name"]) for each in about.get("authors", ())]
    )
    for name, (meaning, kind) in FILES.items():
        if name in files:
            described = {"name": meaning, "encodingFormat": kind, "about": crate.root_dataset}
            crate.add_file(dest_path=name, properties=described)
    page = {"name": "Report: the page to open", "encodingFormat": "text/html"}
    made = [crate.add_file(dest_path=f"{root}/report.html", properties=page)]
    for folder in dict.fromkeys(PurePosixPath(name).parts[2] for name in sorted(files) if name.count("/") > 2):
        entity = crate.add_dataset(dest_path=f"{root}/{folder}", properties={"name": CONTENT.get(folder, folder)})
        made += [entity] if folder != "code" else []
    _add_workflows(crate, root, files, made)
    content: dict[str, Any] = crate.metadata.generate()
    return content


def _add(crate: "ROCrate", identifier: str, kind: str, **properties: object) -> Any:
    """Add an entity that is no file."""
    from rocrate.model import ContextEntity

    return crate.add(ContextEntity(crate, identifier, properties={"@type": kind, **properties}))


def _identifier(name: str) -> str:
    return f"#{name.replace(' ', '-')}"


def _one(values: list[Any]) -> Any:
    """The values, or the only one: RO-Crate advises against lists of one."""
    return values[0] if len(values) == 1 else values


def _papers(crate: "ROCrate", about: Mapping[str, Any]) -> list[Any]:
    """The papers on arXiv, with the authors that `CITATION.cff` has."""
    known = {
        str(identifier["value"]): [f"{each['given-names']} {each['family-names']}" for each in reference["authors"]]
        for reference in about.get("references", ())
        for identifier in reference.get("identifiers", ())
    }
    experiments, found = Experiments(), []
    for file in map(experiments.cell_file, experiments.papers):
        if file.source.startswith("arXiv "):
            number = file.source.removeprefix("arXiv ")
            properties: dict[str, Any] = {"name": file.title, "url": f"https://arxiv.org/abs/{number}"}
            if names := known.get(f"arXiv:{number}"):
                properties["author"] = [_add(crate, _identifier(name), "Person", name=name) for name in names]
            found.append(_add(crate, f"https://doi.org/10.48550/arXiv.{number}", "ScholarlyArticle", **properties))
    return found


def _add_workflows(crate: "ROCrate", root: str, files: Mapping[str, Path], made: list[Any]) -> None:
    """Add the workflow of each copy of the code, and an action with its runs; the last action also made the report."""
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for name in sorted(files):
        if name.startswith(f"{root}/runs/") and name.endswith("/manifest.json"):
            manifest = read_manifest(files[name], "git")
            code = f"{root}/code/{manifest['git'].get('code')}"
            if f"{code}/Snakefile" in files:
                runs.setdefault(code, {})[name] = read_manifest(files[name], "run", "finished", "packages")
    finished = {code: max(each["finished"] for each in of.values()) for code, of in runs.items()}
    actions: list[Any] = []
    for code in sorted(runs, key=finished.__getitem__):
        own, is_last, version = runs[code], len(actions) == len(runs) - 1, PurePosixPath(code).name
        workflow = crate.add_workflow(
            dest_path=f"{code}/Snakefile",
            properties={"name": "Workflow: training to report", "version": version, "encodingFormat": "text/plain"},
            lang="snakemake",
            lang_version=next(iter(own.values()))["packages"].get("snakemake"),
            main=is_last,
        )
        results = [
            crate.add_file(dest_path=name, properties={"name": f"Manifest of {each['run']}", "encodingFormat": JSON})
            for name, each in own.items()
        ]
        properties = {
            "name": f"{len(own)} runs by this code",
            "description": "The page of a run has the command that makes it again.",
            "instrument": workflow,
            "result": [*results, *(made if is_last else ())],
            "endTime": finished[code],
        }
        preset = f"{code}/experiments/presets/{PurePosixPath(root).name}.yaml"
        if preset in files:
            scale = {"name": "Preset: the scale of the runs", "encodingFormat": "application/yaml"}
            properties["object"] = crate.add_file(dest_path=preset, properties=scale)
        actions.append(_add(crate, f"#runs-{version}", "CreateAction", **properties))
    if actions:
        crate.root_dataset["mentions"] = _one(actions)
        crate.root_dataset["conformsTo"] = [
            _add(crate, profile, "CreativeWork", name=name, version=version)
            for profile, (name, version) in PROFILES.items()
        ]
