"""The look of the report page: one style sheet, light and dark, for wide and narrow screens; no request leaves the page."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbf9; --card: #ffffff; --ink: #1c2024; --soft: #5a636d; --line: #dcdfe3; --accent: #1f5f99;
  --better: #d5efdc; --better-ink: #0b5a2a; --low: #fdf0d3; --far: #fadfdb; --control: #f0f1f3; --bad-ink: #a3271b; --open-ink: #7a5200;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171a; --card: #1b1f23; --ink: #e6e8ea; --soft: #a2abb4; --line: #343a41; --accent: #7fb8ee;
    --better: #173d27; --better-ink: #8fe0ab; --low: #41351a; --far: #48231f; --control: #24292e; --bad-ink: #ff9e92; --open-ink: #f0c56b;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header, main, footer { max-width: 84rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 3rem 0 .75rem; padding-top: .75rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.75rem 0 .5rem; }
p, li { max-width: 72ch; }
p { margin: .5rem 0; }
ul { padding-left: 1.2rem; margin: .5rem 0; }
ul.plain { list-style: none; padding: 0; }
ul.plain li { margin: .3rem 0; }
a { color: var(--accent); }
.soft, footer { color: var(--soft); font-size: .875rem; overflow-wrap: anywhere; }
footer { padding-bottom: 3rem; margin-top: 3rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0 0; font-size: .95rem; }
.badge {
  display: inline-block; padding: .05rem .5rem; border-radius: 1rem; font-size: .82rem; font-weight: 600; white-space: nowrap;
  background: var(--control); color: var(--ink);
}
.badge.good { background: var(--better); color: var(--better-ink); }
.badge.bad { background: var(--far); color: var(--bad-ink); }
.badge.open { background: var(--low); color: var(--open-ink); }
.missing { border-left: 4px solid var(--line); padding: .4rem .9rem; background: var(--card); max-width: 72ch; }
.scroll { overflow-x: auto; margin: .75rem 0 1.25rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption {
  caption-side: top; text-align: left; font-weight: 600; padding: .6rem .75rem; position: sticky; left: 0;
  max-width: min(76rem, calc(100vw - 3rem));
}
th, td { padding: .4rem .5rem; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th.number { text-align: right; }
tbody th { font-weight: 500; min-width: 9rem; max-width: 17rem; }
.ledger tbody th { min-width: 15rem; }
th:first-child { position: sticky; left: 0; z-index: 1; background: var(--card); border-right: 1px solid var(--line); }
td.number { text-align: right; white-space: nowrap; }
td.text { min-width: 12rem; max-width: 24rem; }
td small { display: block; color: var(--soft); font-size: .76rem; }
tbody tr:hover > * { box-shadow: inset 0 0 0 99rem rgb(127 127 127 / .07); }
.better { background: var(--better); } .better b { color: var(--better-ink); }
.better b::before { content: "\\25B2\\2009"; font-size: .7em; }
.low { background: var(--low); }
.far { background: var(--far); } .far span::before { content: "\\25BC\\2009"; font-size: .7em; }
.control { background: var(--control); }
.legend { display: flex; flex-wrap: wrap; gap: .4rem .6rem; margin: .5rem 0; padding: 0; list-style: none; font-size: .85rem; }
.legend li { padding: .1rem .55rem; border: 1px solid var(--line); border-radius: .3rem; }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
figure { margin: 0; padding: .75rem; border: 1px solid var(--line); border-radius: .5rem; background: #ffffff; color: #1c2024; }
figure img, figure svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure.wide { grid-column: 1 / -1; }
.drawing { overflow-x: auto; }
.wide .drawing img { min-width: 48rem; }
figcaption { font-size: .85rem; margin-top: .5rem; overflow-wrap: anywhere; }
details { margin: .6rem 0; }
summary { cursor: pointer; color: var(--accent); }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
td code { white-space: pre-wrap; }
@media (max-width: 40rem) {
  body { font-size: 15px; }
  header, main, footer { padding-left: .85rem; padding-right: .85rem; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.25rem; }
  table { font-size: .8rem; }
  th, td { padding: .35rem .5rem; }
  tbody th, .ledger tbody th { min-width: 6.5rem; max-width: 38vw; }
  td.text { min-width: 10rem; }
}
@media print { .scroll { overflow: visible; } nav { display: none; } }
"""
