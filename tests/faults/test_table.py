"""Every recorded kind of fault is checked on our code and has a mutant."""

from __future__ import annotations

from tests.decoder import test_decoder_faults
from tests.faults import test_coins, test_filters, test_laws, test_numerics, test_residuals, test_solvers
from tests.faults.kind import RECORDED

MODULES = (test_coins, test_filters, test_laws, test_numerics, test_residuals, test_solvers, test_decoder_faults)


def test_no_recorded_fault_is_left_out():
    kinds = {(kind.fault, kind.what): kind for module in MODULES for kind in module.KINDS}
    assert {(case["fault"], case.get("what", "")) for case in RECORDED} == set(kinds)
    assert all(kind.ours and kind.mutants for kind in kinds.values())
