"""Find a slow stage: debug mode, a timing report, the signatures of all stages.

python examples/find_slow_stage.py        same as TELEFUSER_PROFILE_DEBUG=true around a program
"""

from __future__ import annotations

import torch

import stagespan


class Encoder:
    """A stage with a nested stage."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(64, 256)

    @stagespan.ProfilingContext4Debug("encode")
    @torch.inference_mode()
    def process(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed tokens: [batch, 64] to [batch, 256]."""
        with stagespan.ProfilingContext4Debug("normalise"):
            tokens = torch.nn.functional.normalize(tokens)
        return self.model(tokens)


class Decoder:
    """The slow stage."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(50)))

    @stagespan.ProfilingContext4Debug("decode")
    @torch.inference_mode()
    def process(self, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Decode: [batch, 256] to [batch, 256]."""
        return self.model(hidden) * scale


def main() -> None:
    """Run two requests in debug mode; print the report and the paths of the files."""
    stagespan.set_debug(True)
    encoder, decoder = Encoder(), Decoder()
    decoder.process(encoder.process(torch.rand(8, 64)))  # the first run is not representative
    stagespan.reset_timing_registry("two requests")
    for number in range(2):
        with stagespan.request(f"request-{number}"):
            decoder.process(encoder.process(torch.rand(8, 64)), scale=0.5)

    stagespan.print_timing_summary()
    signature = stagespan.get_io_signatures()["decode"]
    print("decode takes", signature["input_signatures"]["hidden"]["shape"])
    print("at exit, timing.json and timing_io_signature.json go to", end=" ")
    print(stagespan.get_profiler_output_dir())


if __name__ == "__main__":
    main()
