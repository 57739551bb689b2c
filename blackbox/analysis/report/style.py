"""Colours of all charts, and the style sheet of the page: light or dark as the viewer's system."""

from typing import Final

COLOURS: Final = 8
"""`--c0` to `--c7`: one for each message type, the last one for the rest."""

LIGHT: Final = {
    "page": "#f4f6f9",
    "card": "#ffffff",
    "ink": "#18212d",
    "dim": "#5c6878",
    "edge": "#e2e7ee",
    "grid": "#e9edf3",
    "accent": "#2f6bd8",
    "soft": "#2f6bd822",
    "up": "#0f8f76",
    "down": "#d4483f",
    "bad": "#c92a2a",
    "good": "#0f8f76",
    "c0": "#2f6bd8",
    "c1": "#e0861a",
    "c2": "#18998a",
    "c3": "#c1417c",
    "c4": "#7b5bd0",
    "c5": "#7d9428",
    "c6": "#37a3d0",
    "c7": "#a3adba",
}
DARK: Final = {
    "page": "#0d1117",
    "card": "#161c25",
    "ink": "#e8ecf2",
    "dim": "#97a3b4",
    "edge": "#262f3b",
    "grid": "#222a35",
    "accent": "#6aa5ff",
    "soft": "#6aa5ff2e",
    "up": "#3ccbaa",
    "down": "#ff7b72",
    "bad": "#ff7b72",
    "good": "#3ccbaa",
    "c0": "#6aa5ff",
    "c1": "#f2a64a",
    "c2": "#3ccbaa",
    "c3": "#ee7fb2",
    "c4": "#a98bff",
    "c5": "#b5cc55",
    "c6": "#6fcdf2",
    "c7": "#6b7686",
}


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


PALETTE: Final = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""
"""The colours as CSS variables."""

STYLE: Final = (
    PALETTE
    + """
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 56px; display: grid; gap: 20px; }
main > * { min-width: 0; }
h1 { margin: 0; font-size: 32px; line-height: 1.15; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h1 small { color: var(--dim); font-weight: 400; font-size: 22px; letter-spacing: 0; white-space: nowrap; }
h2 { margin: 0; font-size: 17px; letter-spacing: -0.01em; }
p { margin: 0; }
.dim { color: var(--dim); }
.path { overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 13px; }
.tile b { display: block; font-size: 19px; line-height: 1.25; letter-spacing: -0.01em; white-space: nowrap; }
.tile span { color: var(--dim); font-size: 13px; }
.tile.bad b { color: var(--bad); }
.tile.good b { color: var(--good); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 14px; padding: 20px 22px 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 20px; }
.pair > * { min-width: 0; }
.head { display: flex; flex-wrap: wrap; gap: 2px 14px; align-items: baseline; margin-bottom: 14px; }
.head .dim { font-size: 13px; }
.price { font-size: 17px; font-weight: 600; }
.up { color: var(--up); }
.down { color: var(--down); }
.bad { color: var(--bad); }
.chart { display: grid; grid-template-columns: 64px minmax(0, 1fr); font-size: 12px; color: var(--dim); }
.chart svg { display: block; width: 100%; overflow: visible; }
.chart + .chart { margin-top: 6px; }
.chart + .dim { margin: 14px 0 4px; font-size: 13px; }
.y { position: relative; }
.y span { position: absolute; right: 10px; transform: translateY(50%); white-space: nowrap; line-height: 1; }
.x { grid-column: 2; position: relative; height: 24px; }
.x span {
  position: absolute; left: var(--at); top: 7px; transform: translateX(-50%); white-space: nowrap; line-height: 1;
}
.x.long span { left: min(var(--at), calc(100% - 28px)); }
.chart path, .chart line { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--grid); stroke-width: 1; fill: none; }
.area { fill: var(--soft); }
.line { fill: none; stroke: var(--c, var(--accent)); stroke-width: 1.75; stroke-linejoin: round; }
.fill { fill: var(--c); }
.rise { fill: var(--up); }
.fall { fill: var(--down); }
.wick.rise { fill: none; stroke: var(--up); }
.wick.fall { fill: none; stroke: var(--down); }
.volume { fill: var(--accent); opacity: 0.55; }
.mark { fill: none; stroke: var(--bad); stroke-width: 2; }
.hover { fill: transparent; }
.hover:hover { fill: var(--ink); fill-opacity: 0.08; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 14px; padding: 0; list-style: none; font-size: 13px;
}
.key { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; background: var(--c); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { color: var(--dim); font-weight: 500; }
th, td { text-align: right; padding: 6px 0 6px 14px; border-bottom: 1px solid var(--edge); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.words td:first-child { white-space: normal; min-width: 84px; }
tr:last-child td { border-bottom: 0; }
.more { margin-top: 10px; font-size: 13px; }
.notes { margin: 8px 0 0; padding-left: 18px; font-size: 13px; color: var(--dim); overflow-wrap: anywhere; }
footer { color: var(--dim); font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 24px 14px 40px; gap: 14px; }
  h1 { font-size: 26px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .card { padding: 16px 16px 12px; }
  .chart { grid-template-columns: 52px minmax(0, 1fr); }
  .x span:nth-child(even), .x.long span:not(:nth-child(4n + 1)) { display: none; }
}
"""
)
