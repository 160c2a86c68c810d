"""Check the message of a commit by the rules of CONTRIBUTING.md; a commit-msg hook of Git.

usage: check_commit.py FILE
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_SUBJECT = re.compile(r"[a-z_]+(, [a-z_]+)*: [a-z`_][^\n]*[^.\s]")
_BY_GIT = re.compile(r"(Merge|merge:|Revert|fixup!|squash!) ?")
_NOT_IMPERATIVE = re.compile(r": ([a-z]{2,}(ed|ing)|adds|fixes|removes|makes|uses|renames)\b")
_IMPERATIVE = ("embed", "feed", "need", "shed", "speed", "bring", "string")
_TRAILER = re.compile(r"^[A-Z][a-z]+(-[a-z]+)+: ", re.MULTILINE)
_LANGUAGE = {
    'write "not a" or "does not"': re.compile(
        r"(?<![Tt]here )\b(is|are|was|were) no (?!longer\b|more\b|less\b)[a-z]"
    ),
    'name what "those" means': re.compile(r"\b[Tt]hose (that|who|which|of)\b"),
    "code reports, returns or raises": re.compile(r"\b(is|are|was|were) (told|said|asked)\b"),
}


def faults(message: str) -> Iterator[str]:
    """Yield the violations of CONTRIBUTING.md's rules in the message of a commit."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    text = "\n".join(lines).strip()
    subject, _, body = text.partition("\n")
    if _BY_GIT.match(subject):
        return
    if not _SUBJECT.fullmatch(subject):
        yield f"subject: expected `scope: imperative summary` without a period, found {subject!r}"
    verb = _NOT_IMPERATIVE.search(subject)
    if verb is not None and verb[1] not in _IMPERATIVE:
        yield f"subject: expected an imperative such as `add`, found {verb[1]!r}"
    if len(subject) > 72:
        yield f"subject: expected at most 72 characters, found {len(subject)}"
    if body and not body.startswith("\n"):
        yield "expected an empty line after the subject"
    if _TRAILER.search(body):
        yield "expected a body without trailers"
    for rule, pattern in _LANGUAGE.items():
        found = pattern.search(text)
        if found is not None:
            yield f"language: {rule}, found {found[0]!r}"


def main(path: str) -> int:
    """Print the faults of a message in a file, and return the exit status."""
    found = list(faults(Path(path).read_text(encoding="utf-8")))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
