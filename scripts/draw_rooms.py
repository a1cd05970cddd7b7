"""Draws docs/rooms.svg: the packages of ctr_trainer in the order of their imports, each with its docstring.

The contracts for import-linter in pyproject.toml define the order.
"""

import ast
import html
import pathlib
import re
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"
WIDTH, LINE, GAP, NAMES = 900, 22, 10, 132
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">
<title id="title">The packages of ctr_trainer from top to bottom; each imports packages below it</title>
<style>
  svg {{ background: #fff; font-family: system-ui, sans-serif; }}
  text {{ font-size: 13px; fill: #333; }}
  .b {{ font-size: 14px; font-weight: 600; fill: #111; }}
  rect {{ fill: #eceff1; stroke: #888; }}
  .within {{ fill: #d3f0dd; stroke: none; }}
</style>
"""


def layers(container):
    """Returns the existing packages in each line of the contract of the package `container`, from top to bottom."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("containers") == [container])
    of = ROOT / container.replace(".", "/")
    lines = [re.findall(r"\w+", line) for line in contract["layers"]]
    return [found for line in lines if (found := [room for room in line if (of / room / "__init__.py").exists()])]


def said_of(package):
    """Returns the first line of a package's docstring."""
    return ast.get_docstring(ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())).splitlines()[0]


def text(x, y, words, kind=""):
    kind = f' class="{kind}"' if kind else ""
    return f'<text{kind} x="{x}" y="{y}">{html.escape(words)}</text>'


def draw():
    """Returns the picture as the text of an SVG file."""
    out, y = [], GAP
    for line in layers("ctr_trainer"):
        within = layers("ctr_trainer.embedding") if "embedding" in line else []
        rows = len(line) + len(within)
        out.append(f'<rect x="{GAP}" y="{y}" width="{WIDTH - 2 * GAP}" height="{rows * LINE + GAP}" rx="6"/>')
        at = y + LINE - 3
        for room in line:
            out += [text(2 * GAP, at, room, "b"), text(NAMES, at, said_of(f"ctr_trainer.{room}"))]
            at += LINE
            if room == "embedding":
                box = (
                    f'x="{NAMES - GAP}" y="{at - LINE + 7}" width="{WIDTH - NAMES - GAP}" height="{len(within) * LINE}"'
                )
                out.append(f'<rect class="within" {box} rx="6"/>')
                for (inner,) in within:
                    said = said_of(f"ctr_trainer.embedding.{inner}")
                    out += [text(NAMES, at, inner, "b"), text(NAMES + 80, at, said)]
                    at += LINE
        y += rows * LINE + 2 * GAP
    return HEAD.format(width=WIDTH, height=y) + "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
