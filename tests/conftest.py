"""One thread, since tests run beside other work, and no deadlines, since machines are noisy."""

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("samplewise", deadline=None, print_blob=True)
hypothesis.settings.load_profile("samplewise")
