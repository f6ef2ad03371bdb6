"""Page: the head of a report that a benchmark prints."""

from __future__ import annotations


def head(docstring: str | None) -> None:
    """Print a module's docstring as Markdown: its title, its command, then one paragraph."""
    title, command, *rest = (docstring or "").split("\n\n")
    print(f"# {title}\n\n{command}\n\n{' '.join(' '.join(rest).split())}\n")
