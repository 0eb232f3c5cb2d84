"""How far selectors are from the optimum, on random families and on captured laws, and what every method costs."""

from solvers.gap.command import gap_command
from solvers.gap.field import FIELD_COLUMNS, METHODS, field_study, field_summary
from solvers.gap.field_command import field_command
from solvers.gap.field_pictures import draw_field, share_picture, time_picture
from solvers.gap.pictures import acceptance_picture, draw_pictures, gap_picture, temperature_picture
from solvers.gap.study import COLUMNS, DRAFT_LAWS, OPTIMUM, gap_study, guarantee, summary
from solvers.gap.tuned import tuned
from solvers.gap.worst import WorstCase, sharp_guarantee, two_token_pair, worst_case

__all__ = [
    "COLUMNS",
    "DRAFT_LAWS",
    "FIELD_COLUMNS",
    "METHODS",
    "OPTIMUM",
    "WorstCase",
    "acceptance_picture",
    "draw_field",
    "draw_pictures",
    "field_command",
    "field_study",
    "field_summary",
    "gap_command",
    "gap_picture",
    "gap_study",
    "guarantee",
    "share_picture",
    "sharp_guarantee",
    "summary",
    "temperature_picture",
    "time_picture",
    "tuned",
    "two_token_pair",
    "worst_case",
]
