"""How timings are shown."""

from __future__ import annotations


def report(title: str, rows: list[tuple[str, float]], against: str) -> None:
    """Print seconds per row and how many times longer each row takes than the row `against`."""
    base = dict(rows)[against]
    print(f"\n{title}")
    for name, seconds in rows:
        print(f"  {name:<58} {seconds:10.4f} s   {seconds / base:8.1f} x")
