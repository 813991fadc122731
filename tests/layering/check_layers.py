"""Checks every #include under src/halfstep against cmake/layers.txt.

A module may include itself and the closure of the modules on its line. libtorch stays below the torch
line, Highway stays inside kernels, c10d inside dist. Run: check_layers.py SOURCE_DIR
"""

import pathlib
import re
import sys

# Third-party header prefixes that belong to one module only.
GUESTS = {
    "hwy/": {"kernels"},
    "torch/csrc/distributed/": {"dist"},
    "gloo/": {"dist"},
}
TORCH = ("torch/", "ATen/", "c10/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def read_layers(path):
    """Returns ({module: set of direct dependencies}, set of modules below the torch line)."""
    deps, torch_modules, below = {}, set(), False
    for line in path.read_text().splitlines():
        if line.startswith("--- torch"):
            below = True
        elif line and not line.startswith("#"):
            module, _, rest = line.partition(":")
            deps[module] = set(rest.split())
            if below:
                torch_modules.add(module)
    return deps, torch_modules


def closure(deps, module):
    seen, todo = set(), [module]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo.extend(deps[current])
    return seen


def violations(source_dir):
    root = pathlib.Path(source_dir)
    deps, torch_modules = read_layers(root / "cmake" / "layers.txt")
    for module, direct in deps.items():
        for dep in direct - deps.keys():
            yield f"cmake/layers.txt: {module} depends on {dep}, which has no line"
    for module in deps:
        if any(module in closure(deps, d) for d in deps[module]):
            yield f"cmake/layers.txt: {module} depends on itself"
    for directory in sorted((root / "src" / "halfstep").iterdir()):
        if directory.name not in deps:
            yield f"src/halfstep/{directory.name} has no line in cmake/layers.txt"
            continue
        allowed = closure(deps, directory.name)
        for path in sorted(directory.rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                header, where = match[1], f"{path.relative_to(root)}:{number}"
                if header.startswith("halfstep/") and header.split("/")[1] not in allowed:
                    yield f"{where}: {directory.name} may not include {header}"
                if header.startswith(TORCH) and directory.name not in torch_modules:
                    yield f"{where}: {header} above the torch line"
                for prefix, owners in GUESTS.items():
                    if header.startswith(prefix) and directory.name not in owners:
                        yield f"{where}: {header} belongs inside {', '.join(owners)}"


if __name__ == "__main__":
    found = list(violations(sys.argv[1]))
    print("\n".join(found) if found else "layers: every include follows cmake/layers.txt")
    sys.exit(1 if found else 0)
