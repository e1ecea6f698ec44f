"""Draws docs/picture.svg: how a batch reaches the ranks, and how one global view comes back.

    python docs/picture.py

The picture has a background of its own, so that it can be read on light and on dark pages.
"""

from __future__ import annotations

from pathlib import Path

OUTPUT = Path(__file__).with_name("picture.svg")
INK, FAINT, LINE, PAPER = "#1f2328", "#57606a", "#6e7781", "#ffffff"
RANKS = (("#0550ae", "#ddf4ff"), ("#953800", "#fff1e5"))  # of rank 0 and rank 1: ink, fill
FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
OUTPUT_OF = ("prints, saves", "is silent")  # what each rank does with it
UPPER, LOWER, HEIGHT = 92, 214, 72  # the two rows of boxes, one for each rank


def text(x: float, y: float, words: str, size: int = 14, color: str = INK, anchor: str = "middle", **more: str) -> str:
    """Write one line."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    where = f'x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{attributes}'
    return f"<text {where}>{escaped}</text>"


def box(x: float, y: float, width: float, height: float, ink: str, fill: str) -> str:
    """Draw a box with round corners."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{ink}" '
        'stroke-width="1.5"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, color: str = LINE, both: bool = False) -> str:
    """Draw an arrow."""
    start = ' marker-start="url(#head)"' if both else ""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="2"{start} '
        'marker-end="url(#head)"/>'
    )


def lane(rank: int) -> str:
    """Draw what holds all that one process does."""
    y = (UPPER, LOWER)[rank] - 10
    return f'<rect x="240" y="{y}" width="746" height="{HEIGHT + 20}" rx="12" fill="#f6f8fa" stroke="#d0d7de"/>'


def head(x: float, title: str, below: str) -> list[str]:
    """Name a column."""
    return [text(x, 40, title, 16, font_weight="600"), text(x, 62, below, 13, FAINT)]


def picture() -> str:
    """Give the whole picture."""
    parts = [
        *head(120, "your DataLoader", "every rank draws the same order"),
        *head(320, "rows", "each rank loads its own"),
        *head(520, "your model", "gradients of the whole batch"),
        *head(846, "your script", "on each rank, sees the whole batch"),
        *(lane(rank) for rank in range(len(RANKS))),
    ]
    for index in range(8):
        ink, fill = RANKS[index // 4]
        y = (UPPER, LOWER)[index // 4] + index % 4 * 18
        parts.append(f'<rect x="50" y="{y + 1}" width="140" height="16" rx="3" fill="{fill}" stroke="{ink}"/>')
    parts.append(text(120, 310, "one batch of 64 rows", 13, FAINT))
    for rank, (ink, fill) in enumerate(RANKS):
        y = (UPPER, LOWER)[rank]
        middle = y + HEIGHT / 2
        parts += [
            arrow(194, middle, 248, middle, ink),
            box(250, y, 140, HEIGHT, ink, fill),
            text(320, middle - 6, f"process of rank {rank}", 13, ink, font_weight="600"),
            text(320, middle + 18, f"rows {32 * rank} to {32 * rank + 31}", 14),
            arrow(394, middle, 444, middle, ink),
            box(450, y, 140, HEIGHT, ink, fill),
            text(520, middle - 6, "forward, backward", 14),
            text(520, middle + 18, "of 32 rows", 14),
            arrow(596, middle - 10, 714, middle - 10, ink),
            text(655, middle - 18, "outputs", 12, FAINT),
            arrow(714, middle + 14, 596, middle + 14, ink),
            text(655, middle + 32, "loss.backward()", 11, FAINT, font_family=MONO),
            box(720, y, 252, HEIGHT, ink, PAPER),
            text(846, y + 21, "outputs.shape[0] == 64", 13, font_family=MONO),
            text(846, y + 41, "loss.item()  # of 64 rows", 13, font_family=MONO),
            text(846, y + 62, f"holds 32 of the rows; {OUTPUT_OF[rank]}", 12, FAINT),
        ]
    parts += [
        arrow(520, UPPER + HEIGHT + 4, 520, LOWER - 4, both=True),
        text(532, 194, "gradients, by DDP", 13, FAINT, "start"),
        arrow(846, UPPER + HEIGHT + 4, 846, LOWER - 4, both=True),
        text(858, 194, "sums of all rows", 13, FAINT, "start"),
        text(500, 346, "A function that needs the whole batch gets it, on every rank: slower, and right.", 14, FAINT),
    ]
    body = "\n".join(f"  {part}" for part in parts)
    label = "Each rank loads and computes its own rows under DDP; the script sees the whole batch."
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 372" width="1000" height="372" role="img" \
aria-label="{label}" font-family="{FONT}">
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse">
      <path d="M0 0 L10 5 L0 10 z" fill="{LINE}"/>
    </marker>
  </defs>
  <rect x="0.5" y="0.5" width="999" height="371" rx="12" fill="{PAPER}" stroke="#d0d7de"/>
{body}
</svg>
"""


if __name__ == "__main__":
    OUTPUT.write_text(picture(), encoding="utf-8")
