"""Make a stage faster: replay it alone with inputs made from its signature.

python examples/replay_stage.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import stagespan


class Mixer:
    """The stage that is replayed."""

    def __init__(self) -> None:
        self.model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()

    @stagespan.ProfilingContext4Debug("mix")
    @torch.inference_mode()
    def process(self, hidden: torch.Tensor, mask: torch.Tensor, rounds: int = 2) -> torch.Tensor:
        """Mix [batch, tokens, 64]; positions where the mask is true are left out."""
        for _ in range(rounds):
            hidden = self.model(hidden, src_key_padding_mask=mask)
        return hidden


def main() -> None:
    """Capture the signature of one real call, then replay from the file."""
    stagespan.set_debug(True)
    mixer = Mixer()
    mixer.process(torch.rand(2, 32, 64), torch.zeros(2, 32, dtype=torch.bool))
    folder = Path(tempfile.mkdtemp())
    stagespan.dump_io_signatures(folder / "timing_io_signature.json")
    stagespan.set_debug(False)

    harness = stagespan.StageBenchHarness.from_signature_file(
        signature_path=folder / "timing_io_signature.json",
        stage_name="mix",
        stage_instance=mixer,
        config=stagespan.HarnessConfig(warmup=1, profile_steps=3, output_dir=folder),
    )
    harness.setup()
    results = harness.profile()
    print(f"one call: {results['timing_ms']['p50']:.2f} ms (median)")
    for kernel in results["breakdown"]["top_kernels"][:3]:
        print(f"  {kernel['ms']:.3f} ms in {kernel['count']} calls of {kernel['name']}")
    print("written:", ", ".join(sorted(path.name for path in folder.iterdir())))


if __name__ == "__main__":
    main()
