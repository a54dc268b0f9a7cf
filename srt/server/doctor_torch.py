"""What torch says of itself, as JSON: `twinloop doctor` runs this in a process of its own."""

from __future__ import annotations

import json

import torch


def main() -> None:
    """Prints one JSON object: the fields of `srt.server.doctor.TorchFacts`."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    facts = {
        "version": str(torch.__version__),
        "cuda_build": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "gpus": [f"{gpu.name} with {gpu.total_memory / (1 << 30):.0f} GiB" for gpu in gpus],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
