"""Second floor: validated selectors on real language models."""

from gpu_decoder.decode import Decoder, Generation
from gpu_decoder.door import ot_spec_generate
from gpu_decoder.drafters import get_drafter
from gpu_decoder.models import LanguageModel, load

__all__ = ["Decoder", "Generation", "LanguageModel", "get_drafter", "load", "ot_spec_generate"]
