"""Mutations of the real configuration files, by a fixed seed: of their trees, of their texts and of their bytes."""

import random
from copy import deepcopy
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "experiments").rglob("*.yaml"))

RAW = {
    f"RAW{number}": text
    for number, text in enumerate(
        [
            ".inf",
            "-.inf",
            ".nan",
            "9" * 5000,
            "-" + "9" * 400,
            "1e999999999",
            "1e400",
            "0x1F",
            "0o17",
            "010",
            "1:30",
            "1_000",
            "2026-02-31",
            "2026-13-45T99:99:99Z",
            "!!int abc",
            "!!float x",
            "!!bool maybe",
            "!!timestamp 2026-02-31",
            "!!python/object/apply:os.system [ls]",
            "!!binary '%'",
            "!unknown x",
            "!!set {a, b}",
            "&loop [*loop]",
            "&loop {a: *loop}",
            "*nowhere",
            "[" * 300 + "]" * 300,
            "{a: " * 150 + "1" + "}" * 150,
            "? [a, b]",
            "{? [a, b] : 1}",
            "{? {a: 1} : 1}",
            "{<<: {a: 1}}",
            "{a: 1, a: 2}",
            "{1: 1, 1.0: 2}",
            "{true: 1, null: 2}",
            '"\\ud800"',
            '"\\0"',
            "'",
            "@x",
            "|",
            "",
        ]
    )
}
"""Placeholder in a dumped tree to the YAML that replaces it."""
VALUES = [
    *(True, False, None, 0, 1, -1, 2, 0.5, -0.5, 1e300, -1e300, 1e-300, 2**31, 2**53 + 1, 10**30, float("inf")),
    *(float("nan"), "", " ", "x", "🦄", "x" * 100_000, "../../etc/passwd", "/", "a b", "{}", "{0}", "%s", "~", "1/0"),
    *("5/6", "e^9999", "e^-9999", "e^x", "inf", "nan", "1e400", "9" * 400, "null", "*", "a/b", "a:b:c", "accuracy:"),
    *("mean@2-1:reward", "hours_to::", "bin@1-0:x:y", "at_equal:a:b", "speedup:", "\n", "a.b.c", "."),
    *([], {}, [[]], [None], [{}], {"kind": "x"}, {"kind": None}, {"kind": ["a"]}, {"a": {"b": {"c": 1}}}, [1, 2, 3]),
    *RAW,
]
KEYS = ["", "kind", "x", "🦄", "k" * 5000, 1, 1.5, True, None, "a.b", "../x", "name", "base", "paper", "RAW27", "RAW12"]
PIECES = [
    *RAW.values(),
    "\t",
    "\x07",
    "---\n",
    "...\n",
    "%YAML 9.9\n",
    ": :",
    "- - - -",
    "\r",
    "\ufeff",
    "#",
    "`",
    ">-",
]
BYTES = [b"\xff", b"\xc3", b"\x00", b"\xed\xa0\x80", "é".encode("latin-1"), "x".encode("utf-16")]


def _nodes(tree, path=()):
    """Paths of all nodes below a tree."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from _nodes(child, (*path, key))


def _at(tree, path):
    for part in path:
        tree = tree[part]
    return tree


def _mutate_tree(tree, rng):
    """Change one node of a tree in place."""
    if not (nodes := list(_nodes(tree))):
        return  # all of it was deleted
    path = rng.choice(nodes)
    parent, key = _at(tree, path[:-1]), path[-1]
    kind = rng.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice(KEYS)] = parent.pop(key)
    elif kind == 2:
        parent[key] = rng.choice([[parent[key]], {"x": parent[key]}, [deepcopy(parent[key]) for _ in range(3)]])
    elif kind == 3:
        parent[key] = deepcopy(_at(tree, rng.choice(list(_nodes(tree)))))
    elif kind == 4 and isinstance(parent, dict):
        parent[rng.choice(KEYS)] = deepcopy(rng.choice(VALUES))
    else:
        parent[key] = deepcopy(rng.choice(VALUES))


def _mutate_text(text, rng):
    """Delete, repeat or insert a piece of a text."""
    at, length = rng.randrange(len(text)), rng.choice([1, 2, 5, 40, 400])
    piece = text[at : at + length]
    inserted = rng.choice(["", piece * 2, rng.choice(PIECES), piece[::-1], rng.choice(PIECES) + piece])
    return text[:at] + inserted + text[at + length :]


def mutants(seed, count, files=FILES):
    """Mutated files: pairs of a path in the repository and its content in bytes.

    The same seed gives the same mutants, and the first of them do not depend on their number.
    """
    rng = random.Random(seed)
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    trees = {file: yaml.load(text, Loader=yaml.CSafeLoader) for file, text in texts.items()}
    for _ in range(count):
        file = rng.choice(files)
        if rng.random() < 0.7:
            tree = deepcopy(trees[file])
            for _ in range(rng.choice([1, 1, 1, 2, 4])):
                _mutate_tree(tree, rng)
            text = yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
            for placeholder in sorted(RAW, key=len, reverse=True):
                text = text.replace(placeholder, RAW[placeholder])
        else:
            text = texts[file]
            for _ in range(rng.choice([1, 1, 2, 5])):
                text = _mutate_text(text, rng)
        content = text.encode("utf-8", errors="surrogatepass")
        if rng.random() < 0.03:
            at = rng.randrange(len(content))
            content = content[:at] + rng.choice(BYTES) + content[at:]
        yield file, content
