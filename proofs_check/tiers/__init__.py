"""The ways to judge a rule on a case: exactly, at edge coins, by locating thresholds, or by sequential statistics."""

from proofs_check.tiers.edge import EdgeJudge
from proofs_check.tiers.exact import ExactJudge
from proofs_check.tiers.judge import Judge
from proofs_check.tiers.statistical import SequentialTest, StatisticalJudge
from proofs_check.tiers.stratified import StratifiedJudge

__all__ = ["EdgeJudge", "ExactJudge", "Judge", "SequentialTest", "StatisticalJudge", "StratifiedJudge"]
