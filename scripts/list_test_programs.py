"""Reads `ctest --show-only=json-v1` and prints the programs of the groups named as arguments."""

import json
import sys


def labels_of(test: dict) -> list[str]:
    return next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])


def main() -> None:
    groups = set(sys.argv[1:])
    tests = json.load(sys.stdin)["tests"]
    chosen = (test["command"] for test in tests if groups & set(labels_of(test)))
    # An emulator stands first where the tests were cross-built.
    programs = {next(word for word in command if "/bin/" in word) for command in chosen}
    print("\n".join(sorted(programs)))


if __name__ == "__main__":
    main()
