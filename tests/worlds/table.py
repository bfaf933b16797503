"""What people see: a line for each row as it comes, and what is left to play on a terminal."""

import os
import shutil

COLUMNS = (
    ("sent", 7, lambda o: f"{o.sent}"),
    ("answered", 9, lambda o: f"{100 * o.share():.2f} %"),
    ("refused", 8, lambda o: f"{o.refused}"),
    ("failed", 7, lambda o: f"{o.failed}"),
    ("gave up", 8, lambda o: f"{o.gave_up}"),
    ("p50 ms", 8, lambda o: f"{o.p50:.1f}"),
    ("p99 ms", 8, lambda o: f"{o.p99:.0f}"),
)
"""Heading, width and text of an outcome."""

COLOURS = {"holds": "32", "BROKEN": "1;31", "NOT PLAYED": "33"}


class Table:
    """Writes lines of a table, and below them on a terminal what is being played."""

    def __init__(self, out, rows):
        """`rows` are (world, strategy) of all that will come."""
        self.out, self.terminal = out, out.isatty()
        self.colour = self.terminal and "NO_COLOR" not in os.environ
        self.worlds = max(len("world"), *(len(world) for world, _ in rows))
        self.strategies = max(len("strategy"), *(len(strategy) for _, strategy in rows))
        self.left = len(rows)
        self.playing = []

    def head(self):
        titles = "".join(title.rjust(width) for title, width, _ in COLUMNS)
        self.line(f"{'world':{self.worlds}}  {'strategy':{self.strategies}} seed{titles}  verdict")

    def row(self, row):
        """Writes a row."""
        self.left -= 1
        cells = "".join(
            text(row.outcome).rjust(width) if row.outcome else "-".rjust(width) for _, width, text in COLUMNS
        )
        verdict = self.painted(row.verdict()) if row.judged() else row.verdict().lower()
        words = [verdict, *figures(row), *notes(row)]
        name = f"{row.world:{self.worlds}}  {row.strategy:{self.strategies}} {row.seed:4}"
        self.line(f"{name}{cells}  {'  '.join(words)}")

    def painted(self, verdict):
        return f"\x1b[{COLOURS[verdict]}m{verdict}\x1b[0m" if self.colour else verdict

    def line(self, text):
        """Writes a line, above what is being played."""
        self.clear()
        print(text, file=self.out, flush=True)
        self.progress()

    def begins(self, world, strategy):
        self.playing.append(f"{world} {strategy}")
        self.progress()

    def ends(self, world, strategy):
        self.playing.remove(f"{world} {strategy}")

    def clear(self):
        if self.terminal:
            self.out.write("\r\x1b[K")

    def progress(self):
        """Shows on a terminal what is being played."""
        if self.terminal and self.playing:
            width = shutil.get_terminal_size().columns - 1
            self.clear()
            self.out.write(f"{self.left} to come; now {', '.join(self.playing)}"[:width])
            self.out.flush()


def figures(row):
    """Returns the figures of a row in words."""
    return [
        f"{name} {value:.2f}".removesuffix(".00")
        for name, value in (row.outcome.figures if row.outcome else {}).items()
    ]


def notes(row):
    """Returns what is wrong with a row."""
    asked = [f"(asked for: {'; '.join(row.broken)})"] if row.broken else []
    if row.outcome and row.outcome.reasons:
        asked.append(
            "reasons: " + ", ".join(f"{reason} {count}" for reason, count in row.outcome.reasons.items())
        )
    return asked + ([f"({row.error})"] if row.error else [])


def summary(rows, harms):
    """Returns lines that say what came of all rows of `adaptive`."""
    judged = [row for row in rows if row.judged()]
    broken = list(dict.fromkeys(row.world for row in judged if row.broken))
    missing = list(dict.fromkeys(f"{row.world} {row.strategy}" for row in rows if row.error))
    lines = [
        f"adaptive: {sum(not row.broken and not row.error for row in judged)} of {len(judged)} rows hold"
    ]
    lines += [f"broken: {', '.join(broken)}"] if broken else []
    lines += [f"not played: {', '.join(missing)}"] if missing else []
    return lines + [f"law 1 broken: {one}" for one in harms]
