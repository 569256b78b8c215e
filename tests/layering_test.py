"""Who may include whom: the table below against every #include line, and files of readable size."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 700
NOT_OURS = {".git", ".deps", ".venv", "build", "dist"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')

# Folder -> prefixes of the project's own headers that it may include.
MAY_INCLUDE = {
    "base": ("base/",),
    "graph_partitioner": ("base/", "graph_partitioner/"),
    "codegen": ("base/", "codegen/"),
    "kernels": (
        "base/",
        "graph_partitioner/ir/",
        "graph_partitioner/tiling/",
        "codegen/",
        "kernels/",
    ),
    "distributed": ("base/", "graph_partitioner/ir/", "kernels/", "distributed/"),
    "provider": (
        "base/",
        "graph_partitioner/",
        "codegen/",
        "kernels/",
        "distributed/",
        "provider/",
    ),
}

# Rooms of kernels/: what will run, what makes it, what runs it. What stands above them chooses and
# builds, and may include all.
BELOW_KERNELS = ("base/", "graph_partitioner/ir/", "codegen/")
ROOMS = {
    "kernels/planning": (*BELOW_KERNELS, "kernels/planning/"),
    "kernels/autotune": (*BELOW_KERNELS, "kernels/planning/", "kernels/autotune/"),
    "kernels/llvm": (
        *BELOW_KERNELS,
        "graph_partitioner/tiling/",
        "kernels/planning/",
        "kernels/llvm/",
    ),
    "kernels/cudnn": (
        *BELOW_KERNELS,
        "kernels/planning/",
        "kernels/device/",
        "kernels/cudnn/",
    ),
    "kernels/device": ("base/", "codegen/", "kernels/device/"),
    "kernels/running": (*BELOW_KERNELS, "kernels/planning/", "kernels/device/", "kernels/running/"),
}

# Third-party headers by first path component or file name -> the only places that may include them.
ONLY_IN = {
    r"llvm(-c)?/": ("codegen/llvm/", "tests/codegen/llvm/"),
    r"onnxruntime_": ("provider/", "tests/provider/", "examples/"),
    r"(cuda|cudnn|cublas|nccl|nvshmem|nvJitLink)": (
        "kernels/",
        "distributed/",
        "tests/kernels/cudnn/",
    ),
    r"gloo/": ("distributed/",),
    r"(gtest|gmock)/": ("tests/",),
    r"nlohmann/": ("provider/", "kernels/", "tests/"),
}


def sources() -> list[Path]:
    """Every file of the project, less what a build or the set-up leaves behind."""
    folders = (path for path in ROOT.iterdir() if path.is_dir() and path.name not in NOT_OURS)
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(ROOT) for path in files if "__pycache__" not in path.parts)


def cpp_sources() -> list[Path]:
    return [path for path in sources() if path.suffix in (".h", ".cc", ".c")]


def includes(path: Path) -> list[tuple[int, str, str]]:
    """(line number, '<' or '"', header) for each #include line."""
    text = (ROOT / path).read_text()
    matches = ((number, INCLUDE.match(line)) for number, line in enumerate(text.splitlines(), 1))
    return [(number, match[1], match[2]) for number, match in matches if match]


def violations_of_own_layers(path: Path) -> list[str]:
    allowed = ROOMS.get("/".join(path.parts[:2])) or MAY_INCLUDE.get(path.parts[0])
    if allowed is None:
        return []
    found = []
    for number, quote, header in includes(path):
        if quote == '"' and not header.startswith(allowed):
            found.append(f'{path}:{number}: "{header}" is not under any of {", ".join(allowed)}')
        if header.startswith("kernels/reference/") and not path.match("kernels/reference/*"):
            found.append(f'{path}:{number}: "{header}" belongs to tests only')
    return found


def violations_of_third_party(path: Path) -> list[str]:
    found = []
    for number, quote, header in includes(path):
        for pattern, places in ONLY_IN.items():
            if quote == "<" and re.match(pattern, header) and not str(path).startswith(places):
                found.append(f"{path}:{number}: <{header}> may be included only in {places}")
    return found


def test_folders_include_only_the_layers_below_them():
    found = [line for path in cpp_sources() for line in violations_of_own_layers(path)]
    assert not found, "\n".join(found)


def test_third_party_headers_stay_behind_their_folder():
    found = [line for path in cpp_sources() for line in violations_of_third_party(path)]
    assert not found, "\n".join(found)


def test_llvm_stays_out_of_headers_that_others_see():
    inside = "codegen/llvm/"
    leaks = [
        f'{path}:{number}: "{header}"'
        for path in cpp_sources()
        if path.suffix == ".h" and not str(path).startswith(inside)
        for number, _, header in includes(path)
        if header.startswith("llvm")
    ]
    assert not leaks, "LLVM belongs in .cc files and codegen/llvm:\n" + "\n".join(leaks)


def test_the_ep_header_is_never_included_directly():
    direct = [
        f"{path}:{number}"
        for path in cpp_sources()
        for number, _, header in includes(path)
        if header == "onnxruntime_ep_c_api.h"
    ]
    assert not direct, f"onnxruntime_c_api.h includes it at the right place already: {direct}"


def test_no_file_is_longer_than_a_reader_bears():
    code = {".h", ".cc", ".c", ".py", ".sh", ".cmake"}
    long = {
        str(path): count
        for path in sources()
        if path.suffix in code
        and (count := len((ROOT / path).read_text().splitlines())) > MAX_LINES
    }
    assert not long, f"over {MAX_LINES} lines, split by subject: {long}"


def test_every_folder_has_a_short_readme():
    folders = [folder for folder in [*MAY_INCLUDE, "models", "python"] if (ROOT / folder).is_dir()]
    readmes = {folder: ROOT / folder / "README.md" for folder in folders}
    missing = [folder for folder, readme in readmes.items() if not readme.exists()]
    assert not missing, f"each README says what comes in, goes out, and is read first: {missing}"
    long = [f for f, readme in readmes.items() if len(readme.read_text().splitlines()) > 20]
    assert not long, f"a folder's README is at most 20 lines: {long}"


def test_inline_assembly_is_in_one_table_of_single_instructions():
    """Readers find every instruction that LLVM has no name for in one place."""
    table = ROOT / "codegen" / "llvm" / "ptx.cc"
    users = {
        path for path in (ROOT / "codegen").rglob("*.cc") if "InlineAsm::get" in path.read_text()
    }
    assert users == {table}
    instructions = re.findall(r'"([^"]*;)"', table.read_text())
    assert len(instructions) > 15
    for instruction in instructions:
        assert instruction.count(";") == 1 and "\\n" not in instruction, instruction


def test_architectures_are_compared_in_their_table_only():
    """What a GPU has or is used of it is a field of codegen/arch_spec.h."""
    compared = re.compile(r'([=!]=|<=>|\.compare\(|(starts|ends)_with\(|\bfind\()\s*"sm_\d')
    outside = [
        f"{path}:{number}"
        for path in cpp_sources()
        if path.parts[0] in MAY_INCLUDE
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if compared.search(line) or re.search(r'"sm_\d\w*"\s*[=!]=', line)
    ]
    assert not outside, f"ask a field of codegen/arch_spec.h instead: {outside}"


def test_layouts_of_registers_are_named_by_the_compiler_only():
    """Kernels say what is computed; which thread holds what is the work of codegen."""
    makers = (
        r"codegen/((layouts|linear_map|moves)\.h|layout_inference/)"
        r"|\bLayout::(uniform|dealt|mma|bits|sums|left_operand|replicated|splat)\b"
    )
    outside = [
        f"{path}:{number}"
        for path in cpp_sources()
        if path.parts[0] in MAY_INCLUDE and path.parts[0] != "codegen"
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if re.search(makers, line)
    ]
    assert not outside, f"leave layouts to codegen/layout_inference/: {outside}"
