"""A picture is what is trained, by LBFGS, through a network that is frozen, with Gram matrices."""

import torch
import torch.nn.functional as F
from torch import nn


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = gram_matrix(target).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


torch.manual_seed(0)
content, style = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)
cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()).eval()
model, style_losses = nn.Sequential(), []
for number, layer in enumerate(cnn.children()):
    model.add_module(f"layer_{number}", layer)
    if isinstance(layer, nn.Conv2d):
        loss = StyleLoss(model(style).detach())
        model.add_module(f"style_loss_{number}", loss)
        style_losses.append(loss)
image = content.clone().requires_grad_(True)
model.requires_grad_(False)
optimizer = torch.optim.LBFGS([image], max_iter=4)
run = [0]
while run[0] <= 12:

    def closure():
        with torch.no_grad():
            image.clamp_(0, 1)
        optimizer.zero_grad()
        model(image)
        loss = 1e4 * sum(each.loss for each in style_losses) + F.mse_loss(image, content)
        loss.backward()
        run[0] += 1
        if run[0] % 4 == 0:
            print(f"run {run}: loss {loss.item():.4f}")
        return loss

    optimizer.step(closure)
with torch.no_grad():
    image.clamp_(0, 1)
torch.save(image.detach(), "image.pt")
