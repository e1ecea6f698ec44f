"""An evolution strategy: no gradients at all, and a model inside a function."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def fitness(model, x, y):
    with torch.no_grad():
        return -nn.functional.cross_entropy(model(x), y).item()


def run(generations=3, population=6, sigma=0.05, rate=0.02):
    digits = load_digits()
    x = torch.tensor(digits.data[:200] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[:200])
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    mean = parameters_to_vector(model.parameters()).detach()
    for _ in range(generations):
        noise = torch.randn(population, mean.numel())
        scores = []
        for row in noise:
            vector_to_parameters(mean + sigma * row, model.parameters())
            scores.append(fitness(model, x, y))
        scores = torch.tensor(scores)
        scores = (scores - scores.mean()) / scores.std()
        mean = mean + rate / sigma * (scores[:, None] * noise).mean(0)
        vector_to_parameters(mean, model.parameters())
    print("generations", generations)


torch.manual_seed(1)
run()
