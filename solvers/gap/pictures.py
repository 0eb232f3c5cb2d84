"""Pictures of a gap study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ot_spec.errors import OptionError
from solvers.gap.study import OPTIMUM, labelled, write

__all__ = ["acceptance_picture", "draw_pictures", "gap_picture", "temperature_picture"]

# Okabe and Ito's colours, which stay apart for colour-blind readers; markers and dashes say the same again
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one more than colours: 42 styles
_WORDS = {"iid": "independent drafts", "without_replacement": "drafts without replacement"}
_WORDS |= {"top_then_sample": "top tokens, then one draft"}
# a DataFrame; its declared return types are unions too wide to check against
Frame = Any

_PANEL, _ACROSS = 3.1, 3
_LEAST_SPAN = 0.1
_LINEAR_BELOW = 1e-3


def draw_pictures(table: pd.DataFrame, folder: str | Path) -> list[Path]:
    """Draw a study into `folder` as png and svg, each complete or not there, and say which files.

    ``acceptance_LAW`` acceptance against k, at the first draft temperature; ``temperature_LAW`` acceptance
    against the draft temperature, at the largest k, where there are several; ``gap`` lost acceptance against
    entropy and TV.
    """
    lines: Frame = table[table["kind"] != "left out"]
    figures: dict[str, Figure] = {}
    for law in lines["law"].unique():
        figures[f"acceptance_{law}"] = acceptance_picture(lines, law)
        if lines["draft_temperature"].nunique() > 1:
            figures[f"temperature_{law}"] = temperature_picture(lines, law)
    if (lines["selector"] != OPTIMUM).any():
        figures["gap"] = gap_picture(lines)
    return save(figures, folder)


def save(figures: dict[str, Figure], folder: str | Path) -> list[Path]:
    """Each figure as name.png and name.svg in `folder`, complete or not there; drawn twice it gives the same bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with mpl.rc_context({"svg.hashsalt": "ot-spec"}):
        for name, figure in figures.items():
            for kind, about in (("png", {"Software": None}), ("svg", {"Date": None})):
                files.append(
                    write(
                        folder / f"{name}.{kind}",
                        lambda file, figure=figure, kind=kind, about=about: figure.savefig(
                            file, format=kind, dpi=150, metadata=about
                        ),
                    )
                )
    return files


def acceptance_picture(table: pd.DataFrame, law: str, draft_temperature: float | None = None) -> Figure:
    """Mean acceptance against k for one draft law, a panel a source and target temperature: selectors, the optimum,
    the marginal bound."""
    lines = _of_law(table, law)
    temperature = lines["draft_temperature"].iloc[0] if draft_temperature is None else draft_temperature
    chosen = lines[lines["draft_temperature"] == temperature]
    if chosen.empty:
        raise OptionError(f"the table has no lines at draft temperature {temperature}")
    note = "" if chosen["draft_temperature"].nunique() == 1 and temperature == 1 else f", T = {temperature:g}"
    ticks = sorted(chosen["k"].unique())
    figure, axes = panels(chosen["source"].unique(), f"Acceptance, {_WORDS.get(law, law)}{note}")
    handles: dict[str, Any] = {}
    for ax, source in axes:
        _lines(ax, chosen[chosen["source"] == source], "k", handles, lines)
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, [str(k) for k in ticks])
        ax.minorticks_off()
        ax.set_xlabel("k, candidates")
    _legend(figure, handles)
    return figure


def temperature_picture(table: pd.DataFrame, law: str, k: int | None = None) -> Figure:
    """Mean acceptance against the draft temperature for one draft law, at one k (the largest); panels as in
    `acceptance_picture`."""
    lines = _of_law(table, law)
    k = int(lines["k"].max()) if k is None else k
    chosen = lines[lines["k"] == k]
    if chosen.empty:
        raise OptionError(f"the table has no lines of k = {k}")
    title = f"Acceptance against draft temperature, {_WORDS.get(law, law)}, k = {k}"
    figure, axes = panels(chosen["source"].unique(), title)
    handles: dict[str, Any] = {}
    for ax, source in axes:
        _lines(ax, chosen[chosen["source"] == source], "draft_temperature", handles, lines)
        ax.set_xlabel("draft temperature (relative)")
    _legend(figure, handles)
    return figure


def gap_picture(table: pd.DataFrame, k: int | None = None) -> Figure:
    """optimum - acceptance of every row against the target's entropy and against TV(target, draft), at one k.

    k: default the largest for which a selector is compared. A row of panels a draft law, with all sources, at the
    first draft temperature; logarithmic above 0.001.
    """
    lines: Frame = table[(table["kind"] != "left out") & (table["selector"] != OPTIMUM)]
    if lines.empty:
        raise OptionError("the table compares no selector with the optimum")
    several = lines[lines["k"] > 1]
    k = int((lines if several.empty else several)["k"].max()) if k is None else k
    chosen = lines[(lines["k"] == k) & (lines["draft_temperature"] == lines["draft_temperature"].iloc[0])]
    if chosen.empty:
        raise OptionError(f"the table has no lines of k = {k}")
    laws = list(chosen["law"].unique())
    figure = Figure(figsize=(2 * 4.4, 2.9 * len(laws) + 1), layout="constrained")
    axes: Any = figure.subplots(len(laws), 2, sharey=True, sharex="col", squeeze=False)
    handles: dict[str, Any] = {}
    for (law, name), rows in chosen.groupby(["law", "selector"], sort=True):
        colour, marker = _style(name, lines)
        for ax, column in zip(axes[laws.index(law)], ("target_entropy", "tv"), strict=True):
            style = {"s": 14, "c": colour, "marker": marker, "alpha": 0.55, "linewidths": 0.6}
            handles[name] = ax.scatter(rows[column], rows["gap"].clip(lower=0), **style)
    for law, pair in zip(laws, axes, strict=True):
        pair[0].set_ylabel("optimum − acceptance")
        for ax in pair:
            ax.set_title(_WORDS.get(law, law), fontsize=9)
            ax.axhline(0, color="0.4", lw=0.8)
            _plain(ax)
            ax.set_yscale("symlog", linthresh=_LINEAR_BELOW)
            ax.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.001", "0.01", "0.1", "1"])
            ax.set_ylim(-_LINEAR_BELOW / 4, 1)
    axes[-1, 0].set_xlabel("entropy of the target (nats)")
    axes[-1, 1].set_xlabel("TV(target, draft)")
    figure.suptitle(f"Acceptance lost against the optimum, a point a law pair, k = {k}")
    _legend(figure, handles)
    return figure


def _of_law(table: Frame, law: str) -> Frame:
    table = table[(table["kind"] != "left out") & (table["law"] == law)]
    if table.empty:
        raise OptionError(f"the table has no lines of draft law {law!r}")
    return labelled(table)


def _style(name: str, table: Frame) -> tuple[str, str]:
    return style(sorted(set(table["selector"]) - {OPTIMUM}).index(name))


def style(place: int) -> tuple[str, str]:
    """Colour and marker of the line at this place."""
    return _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]


def _lines(ax: Axes, rows: Frame, column: str, handles: dict[str, Any], table: Frame) -> None:
    best = rows[rows["selector"] == OPTIMUM].groupby(column)[["acceptance", "marginal_bound"]].mean()
    if best["marginal_bound"].notna().any():
        (handles["marginal bound"],) = ax.plot(best.index, best["marginal_bound"], color="0.55", ls=":", lw=2.2)
    (handles["optimum"],) = ax.plot(best.index, best["acceptance"], color="black", lw=1.8)
    low, high = best.min(axis=None), best.max(axis=None)
    # one candidate leaves no choice: a selector is drawn if it goes further
    further = table[(table["k"] > 1) | (table["k"].max() == 1)]["selector"]
    for name in sorted(set(rows["selector"]) & set(further) - {OPTIMUM}):
        line = rows[rows["selector"] == name].groupby(column)[["acceptance", "acceptance_error"]].mean()
        colour, marker = _style(name, table)
        style = {"color": colour, "marker": marker, "ms": 5, "lw": 1.3, "ls": "--", "alpha": 0.9}
        handles[name] = ax.errorbar(line.index, line["acceptance"], yerr=line["acceptance_error"], **style)
        low, high = min(low, line["acceptance"].min()), max(high, line["acceptance"].max())
    short = max(_LEAST_SPAN - (high - low), 0) / 2
    room = 0.06 * max(high - low, _LEAST_SPAN)
    ax.set_ylim(max(low - short, 0) - room, min(high + short, 1) + room)
    if len(best) == 1:
        ax.set_xlim(best.index[0] * 0.5, best.index[0] * 2)
    count = rows[rows["selector"] == OPTIMUM].groupby(column).size().max()
    ax.set_title(f"{rows['source'].iloc[0]} ({count} rows)", fontsize=9)
    _plain(ax)


def _plain(ax: Axes) -> None:
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def panels(
    sources: Sequence[str] | np.ndarray, title: str, label: str = "mean acceptance"
) -> tuple[Figure, list[tuple[Axes, str]]]:
    """A figure with a panel for each of `sources`."""
    across = min(len(sources), _ACROSS)
    down = -(-len(sources) // across)
    figure = Figure(figsize=(max(across, 2) * _PANEL, down * 2.7 + 1.1), layout="constrained")
    grid: Any = figure.subplots(down, across, squeeze=False)
    figure.suptitle(title)
    for ax in grid[:, 0]:
        ax.set_ylabel(label)
    for ax in grid.flat[len(sources) :]:
        ax.set_axis_off()
    return figure, list(zip(grid.flat, sources, strict=False))


def _legend(figure: Figure, handles: dict[str, Any]) -> None:
    names = [name for name in ("optimum", "marginal bound") if name in handles]
    names += sorted(set(handles) - set(names))
    # a column is as wide as its longest name and the mark before it
    widest = 0.5 + 0.105 * max(map(len, names))
    columns = max(1, min(len(names), int(figure.get_figwidth() / widest)))
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=columns, frameon=False)
