"""The tiny models of the decoder's tests."""

from tests.decoder.conftest import default_model, make_model, tiny  # noqa: F401
