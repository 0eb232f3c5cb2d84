"""Drafters: what proposes tokens, behind one small interface that gives the law they are drawn from."""

from gpu_decoder.drafters.drafter import Drafter, DraftSession, NoDrafter, Scores, get_drafter, widened
from gpu_decoder.drafters.early_exit import EarlyExitDrafter
from gpu_decoder.drafters.feature import FeatureDrafter
from gpu_decoder.drafters.lookup import LookupDrafter
from gpu_decoder.drafters.model import ModelDrafter

__all__ = [
    "DraftSession",
    "Drafter",
    "EarlyExitDrafter",
    "FeatureDrafter",
    "LookupDrafter",
    "ModelDrafter",
    "NoDrafter",
    "Scores",
    "get_drafter",
    "widened",
]
