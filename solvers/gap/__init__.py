"""The gap study: how far selectors are from the optimum, on random families and on captured laws."""

from solvers.gap.command import gap_command
from solvers.gap.pictures import acceptance_picture, draw_pictures, gap_picture, temperature_picture
from solvers.gap.study import COLUMNS, DRAFT_LAWS, OPTIMUM, gap_study, guarantee, summary
from solvers.gap.worst import WorstCase, sharp_guarantee, two_token_pair, worst_case

__all__ = [
    "COLUMNS",
    "DRAFT_LAWS",
    "OPTIMUM",
    "WorstCase",
    "acceptance_picture",
    "draw_pictures",
    "gap_command",
    "gap_picture",
    "gap_study",
    "guarantee",
    "sharp_guarantee",
    "summary",
    "temperature_picture",
    "two_token_pair",
    "worst_case",
]
