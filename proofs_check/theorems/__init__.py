"""The theorem ledger: statements of the field, each with a machine check and a falsifier, one file a paper."""
