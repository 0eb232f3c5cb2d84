"""Pictures of a field study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ot_spec.errors import OptionError
from solvers.gap.field import mean_of_all
from solvers.gap.pictures import panels, save, style
from solvers.gap.study import OPTIMUM

__all__ = ["draw_field", "share_picture", "time_picture"]

_DASHES = {"iid": "-", "without_replacement": "--", "top_then_sample": ":"}

Frame = Any  # a DataFrame; its declared return types are unions too wide to check against


def draw_field(table: pd.DataFrame, folder: str | Path) -> list[Path]:
    """Draw a study into `folder` as png and svg and say which files: ``time`` where families are timed, ``share``."""
    figures = {"share": share_picture(table)}
    if not _families(table).empty:
        figures["time"] = time_picture(table)
    return save(figures, folder)


def time_picture(table: pd.DataFrame) -> Figure:
    """Mean CPU time a law against the vocabulary, unfiltered families, a panel a k; hollow where over the budget.

    Of the solvers, only those of independent drafts are drawn.
    """
    lines = _families(table)
    lines = lines[(lines["kind"] != "plan") | (lines["law"] == "iid")]
    if lines.empty:
        raise OptionError("the table has no unfiltered laws of families")
    names = _names(table)
    counts = sorted(lines["k"].unique())
    figure, axes = panels([f"k = {k}" for k in counts], "CPU time a law", "CPU seconds")
    handles: dict[str, Any] = {}
    for (ax, title), k in zip(axes, counts, strict=True):
        here = lines[lines["k"] == k]
        for (name, law), rows in here.groupby(["label", "law"], sort=False):
            rows = rows.assign(over=rows["status"] != "done")
            line = rows.groupby("vocab").agg(seconds=("seconds", "mean"), over=("over", "any"))
            line = line[line["seconds"].notna()]
            _draw(ax, line.index, line["seconds"], name, law, names, handles, hollow=line["over"].to_numpy())
        ax.set_title(title, fontsize=9)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks = sorted(lines["vocab"].unique())
        words = [f"{v / 1000:.0f}k" if v >= 1000 else str(v) for v in ticks]
        ax.set_xticks(ticks, words, fontsize=7)
        ax.xaxis.minorticks_off()
        ax.set_xlabel("V, tokens")
    _legend(figure, handles)
    return figure


def share_picture(table: pd.DataFrame) -> Figure:
    """Mean acceptance against k, a panel a source and filter, families at the largest vocabulary; solvers of the
    optimum left out, since they all are the optimum's lines."""
    rules: Frame = table[table["kind"] != "plan"]
    if rules.empty:
        raise OptionError("the table has no selector")
    largest = rules.groupby("source")["vocab"].transform("max")
    lines = rules[rules["vocab"] == largest].pipe(_labelled)
    names = _names(table)
    panel = lines["source"].str.partition(":")[0] + " " + lines["filter"].replace("none", "")
    lines = lines.assign(panel=panel.str.strip() + ", V = " + lines["vocab"].map("{:,}".format))
    figure, axes = panels(lines["panel"].unique(), "Acceptance of each rule and the optima", "mean acceptance")
    handles: dict[str, Any] = {}
    for ax, title in axes:
        for (name, law), rows in lines[lines["panel"] == title].groupby(["label", "law"], sort=False):
            line = rows.groupby("k")["acceptance"].agg(mean_of_all).dropna()
            _draw(ax, line.index, line, name, law, names, handles)
        ticks = sorted(lines["k"].unique())
        ax.set_title(title, fontsize=8)
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, [str(k) for k in ticks])
        ax.minorticks_off()
        ax.set_xlabel("k, candidates")
    _legend(figure, handles)
    return figure


def _families(table: Frame) -> Frame:
    """Unfiltered laws of the sources that come in several vocabularies, or in one if none does."""
    plain = table[table["filter"] == "none"]
    several = plain.groupby("source")["vocab"].transform("nunique")
    return _labelled(plain[several == several.max()])


def _labelled(table: Frame) -> Frame:
    """With the name of each line in `label`: the optimum and solvers say which draft law they are for."""
    words = table["law"].map({"iid": "i.i.d.", "without_replacement": "w/o repl.", "top_then_sample": "top, then one"})
    return table.assign(label=table["method"].where(table["kind"] == "select", table["method"] + ", " + words))


def _names(table: Frame) -> list[str]:
    labels = _labelled(table)["label"]
    return sorted(set(labels[table["method"] != OPTIMUM]))


def _legend(figure: Figure, handles: dict[str, Any]) -> None:
    """Below the panels, in the order of the methods."""
    columns = max(1, int(figure.get_figwidth() / 2.2))
    figure.set_figheight(figure.get_figheight() + 0.17 * max(-(-len(handles) // columns) - 4, 0))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def _draw(
    ax: Any, x: Any, y: Any, name: str, law: str, names: list[str], handles: dict[str, Any], hollow: Any = None
) -> None:
    if name.startswith(OPTIMUM):
        look = {"color": "black", "lw": 1.8, "ls": _DASHES[law]}
        (handles[name],) = ax.plot(x, y, **look)
    else:
        colour, marker = style(names.index(name))
        lw = 2.4 if name.startswith("optimal") else 1.1
        (handles[name],) = ax.plot(x, y, color=colour, marker=marker, ms=4.5, lw=lw, ls=_DASHES[law], alpha=0.9)
        if hollow is not None and hollow.any():
            ax.plot(np.asarray(x)[hollow], np.asarray(y)[hollow], marker, color=colour, ms=4.5, mfc="white")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
