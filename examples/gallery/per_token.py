"""Small codes for tokens. Each token must be told from its code with a loss of at most 0.5, rare ones too."""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import samplewise as sw

torch.manual_seed(0)
frequency = 1 / torch.arange(1, 31)  # as in a language: most tokens are rare
tokens = torch.multinomial(frequency, 300 * 12, replacement=True).view(300, 12)
mask = torch.arange(12) < torch.randint(4, 13, (300, 1))  # True where there is a token, False where padding
bound = [sw.AtMost("loss", 0.5, margin=0.05)]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.01, growth=1.02))
beyond = {}
for name, method in {"a weight on the mean loss": sw.FixedPenalty(bound, 0.05), "bounded": growing}.items():
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        code = model[0](tokens)
        loss = cross_entropy(model[1](code).transpose(1, 2), tokens, reduction="none")  # (B, length)
        size = (code.square().mean(2) * mask).sum(1) / mask.sum(1)
        optimizer.zero_grad()
        method(size + 1e-3 * model[1].weight.square().sum(), loss=(loss, mask)).backward()
        optimizer.step()
        beyond[name] = method.step()["loss"].violated
    plt.plot(tokens[mask], loss[mask].detach(), ".", label=f"{name}: {beyond[name]} of 300 sequences beyond")
plt.axhline(0.5, color="0.3", linewidth=1)
plt.xlabel("token, from frequent to rare")
plt.ylabel("loss")
plt.legend()
plt.savefig("per_token.png")
