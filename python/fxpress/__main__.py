"""Run the command `fxpress`, also as `python -m fxpress`."""

from __future__ import annotations

from importlib.util import find_spec

from fxpress import __version__


def main() -> int:
    """Run a command, and return its exit status; without click and rich, only `doctor` exists."""
    if find_spec("click") and find_spec("rich"):
        from fxpress._tools.cli import app

        return app.run()
    import argparse  # only here, because its import costs time

    parser = argparse.ArgumentParser(
        prog="fxpress", epilog="pip install 'fxpress[cli]' installs the other commands."
    )
    parser.add_argument("--version", action="version", version=f"fxpress {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="show what works here, and how to fix the rest")
    doctor.add_argument("--json", action="store_true", help="print JSON, for reports of bugs")
    arguments = parser.parse_args()

    from fxpress._tools.doctor import run  # after parsing, so that --help does not import torch

    return run(arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
