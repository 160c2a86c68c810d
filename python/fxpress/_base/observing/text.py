"""Format numbers and texts for display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: int) -> str:
    """Return a number of bytes as text, such as "37.7 kB"; the units are powers of 1000."""
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def counted_text(count: int, noun: str) -> str:
    """Return a number with a noun, such as "1 value" and "2,000 values"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Return a time as text in s, ms or us, such as "1.5 ms"."""
    if seconds >= 0.9995:
        return f"{seconds:,.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return "1,154 nodes, 37.7 kB" for {"nodes": 1154, "bytes": 37700}."""
    return ", ".join(
        bytes_text(count)
        if name == "bytes"
        else f"{count:,} {name if count != 1 else name.removesuffix('s')}"
        for name, count in sizes.items()
    )


class _Escapes:
    """The table for `str.translate` in `printable`: it escapes unprintable characters."""

    def __getitem__(self, number: int) -> str:
        each = chr(number)
        if each.isprintable():
            return each
        return each.encode("unicode_escape", "surrogatepass").decode()


_ESCAPES = _Escapes()


def printable(text: str) -> str:
    """Escape control characters in a text, because they would control a terminal that shows it."""
    if text.isprintable():
        return text
    return text.translate(_ESCAPES)  # "".join() would allocate an object for each character


def printable_lines(text: str) -> str:
    """Escape a text like `printable`, but keep its line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for a notebook; a column is right-aligned if its head starts with #."""
    import html  # imported on use, to keep `import fxpress` fast

    def shown(text: object) -> str:
        return html.escape(printable_lines(str(text)))

    styles = ["text-align: " + ("right" if each.startswith("#") else "left") for each in head]
    lines = [
        "".join(
            f'<{tag} style="{style}; white-space: pre-wrap">{shown(cell)}</{tag}>'
            for cell, style in zip(row, styles, strict=True)
        )
        for tag, group in (("th", [[each.removeprefix("#") for each in head]]), ("td", rows))
        for row in group
    ]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div style="white-space: pre-wrap">{shown(title)}</div><table>{table}</table>'
