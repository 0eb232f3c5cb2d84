"""The optimum itself: `solve` for a plan on small vocabularies, `subset_selection` for the value at any size.

==============  ====================  ==============================================================
method          module                what it does
==============  ====================  ==============================================================
``lp``          `linear_program`      HiGHS through scipy, membership edges only
``cvxpy``       `modelled`            the linear program as the paper states it; HIGHS or CLARABEL
``rational``    `rational`            the optimum as a fraction, from a HiGHS basis solved exactly
``max_flow``    `max_flow`            networkx on exact integers; igraph as the fast float backend
``lifting``     `lifting`             the optimal selectors as a plan; a lazy one at full vocabulary
==============  ====================  ==============================================================

Every plan leaves with its certificate in ``info["cut"]``; see `certificate`.
"""
