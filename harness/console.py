"""rich's console for output with colours or tables. It cleans the texts that it shows."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from harness.terminal import clean


class CleanConsole(Console):
    """A console without highlighting: texts of hosts, guests and files cannot control the terminal or a CI system."""

    def __init__(
        self, *, stderr: bool = False, width: int | None = None, colours: bool | None = None, tables_only: bool = False
    ) -> None:
        """`colours`: None for those that the terminal has. `tables_only`: never a terminal, whatever is connected."""
        super().__init__(
            highlight=False,
            stderr=stderr,
            width=width,
            no_color=None if colours is None else not colours,
            color_system=None if tables_only else "auto",
            force_terminal=False if tables_only else None,
            legacy_windows=False if tables_only else None,
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The parts of a renderable, with clean texts."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isalnum():
                yield segment
            else:
                yield Segment(clean(segment.text), segment.style)
