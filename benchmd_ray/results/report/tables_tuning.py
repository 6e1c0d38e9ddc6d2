"""The tables of searches and of what they found, as people read them."""

from __future__ import annotations

import pandas as pd

from benchmd_ray.results.report.table_cells import (
    ABOUT,
    INTERVAL,
    about,
    cautions,
    number,
    p_value,
    protocol_of,
    signed,
    spanned,
)


def searches_shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Searches: how many trials, what they scored, what they cost."""
    return pd.DataFrame(
        {
            **about(frame, "modality", "source", "technique", "setting"),
            "sampler": frame["sampler"],
            "stopping": frame["stopping"],
            **{name: frame[name] for name in ("trials", "complete", "stopped", "failed")},
            "best trial": frame["best"].map(whole),
            "inner AUROC, start": frame["first_value"].map(number),
            "inner AUROC, best": frame["best_value"].map(number),
            "hours": (frame["seconds"] / 3600).map(hours),
            "device hours": frame["device_hours"].map(hours),
            "shared hours": (frame["shared_seconds"] / 3600).map(hours),
            "device": frame["device"],
            "policy": frame["policy"],
            "search": frame["search"],
        }
    )


def tuned_shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Tuned settings beside those that the search started from, and the paper's number."""
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique"),
            f"tuned {INTERVAL}": spanned(frame, "value"),
            f"start {INTERVAL}": spanned(part(frame, "start"), "start"),
            "paper": frame["paper"].map(number),
            f"tuned minus start {INTERVAL}": spanned(
                part(frame, "difference"), "difference", signed
            ),
            "p": frame["p"].map(p_value),
            "p (DeLong)": frame["p_delong"].map(p_value),
            "seeds": frame["seeds"],
            "start is": frame["start_protocol"].fillna("").replace("", "–"),
            "trials": frame["trials"].map(whole),
            "device hours": frame["device_hours"].map(hours),
            "search": frame["search"],
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def part(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The columns of ``start`` or ``difference`` with their interval as low and high."""
    names = [name, f"{name}_low", f"{name}_high"]
    return frame[names].set_axis([name, "low", "high"], axis=1)


def hours(value: float) -> str:
    """Hours: two digits that matter, and never 0 for what took time."""
    if pd.isna(value):
        return "–"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.1g}"


def whole(value: float) -> str:
    """A whole number; a dash where there is none."""
    return "–" if pd.isna(value) else f"{int(value):,}"
