"""lm-evaluation-harness: a model `headcount` that loads pruned directories and turns heads off.

    python -m headcount.export.lm_evaluation run --model headcount --tasks lambada_openai \
        --model_args pretrained=small,off=decoder.3.5,decoder.4.0-3

Everything after the module is the harness's own command line. In Python, importing this module registers the model.
Pruned directories also work with the harness's own `--model hf`, given `trust_remote_code=True`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from transformers import AutoTokenizer

from headcount.errors import HeadcountError
from headcount.intervene import masked
from headcount.model_directory import fetch
from headcount.surgery import load

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise HeadcountError(
        "the evaluation harness needs lm_eval, which is not installed", advice="pip install 'headcount[harness]'"
    ) from error


@register_model("headcount")
class HeadcountLM(HFLM):
    """A causal or encoder-decoder model, whole or pruned, with some of its units off.

    pretrained: a directory or hub id. off: units to turn off, separated by commas. The harness splits its arguments at
        commas too, so what follows the first unit arrives as arguments without values. options: of the harness's `hf`.
    """

    def __init__(
        self, pretrained: str, off: str = "", device: str = "cpu", dtype: str = "float32", **options: Any
    ) -> None:
        units = [off, *(name for name, value in options.items() if value == "" and "." in name)]
        kept = {name: value for name, value in options.items() if name not in units}
        directory = fetch(pretrained)
        model: Any = load(directory, dtype=dtype).to(device)
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        self._masks = ExitStack()
        self._masks.enter_context(masked(model, off=",".join(filter(None, units))))
        super().__init__(pretrained=model, tokenizer=tokenizer, device=device, **kept)


def main() -> None:
    """The harness's command line, with the model registered."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    # Run as a script, this file is not the module that the registry knows.
    from headcount.export import lm_evaluation

    sys.exit(lm_evaluation.main())
