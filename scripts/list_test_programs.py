"""Reads `ctest --show-only=json-v1` and prints the programs of the groups named as arguments."""

import json
import sys


def labels_of(test: dict) -> list[str]:
    return next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])


def program_of(command: list[str]) -> str:
    """An emulator, itself in a folder named bin, stands first where the tests were cross-built."""
    return [word for word in command if "/bin/" in word and not word.startswith("-")][-1]


def main() -> None:
    groups = set(sys.argv[1:])
    tests = json.load(sys.stdin)["tests"]
    chosen = (test["command"] for test in tests if groups & set(labels_of(test)))
    print("\n".join(sorted({program_of(command) for command in chosen})))


if __name__ == "__main__":
    main()
