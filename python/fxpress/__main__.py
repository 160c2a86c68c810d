"""`python -m fxpress`: what a shell can ask of fxpress."""

from __future__ import annotations

import argparse
import json


def main() -> int:
    """Run the command that the arguments name, and return the exit status.

    Returns:
        0 when every room works with the installed torch, 1 when one does not.
    """
    parser = argparse.ArgumentParser(prog="python -m fxpress")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help="say what works here, and what to do about the rest"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON, for reports of bugs")
    arguments = parser.parse_args()

    from fxpress import _doctor  # imports torch: not for --help

    report = _doctor.examine()
    print(json.dumps(report, indent=2) if arguments.json else _doctor.show(report))
    return 0 if all(room["works"] for room in report["rooms"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
