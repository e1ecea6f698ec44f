"""A frozen teacher in eval mode, a student in train mode, soft and hard losses."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def net(width):
    return nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10))


def loss_fn(student, labels, teacher, alpha=0.7, temperature=4.0):
    soft = nn.KLDivLoss(reduction="batchmean")(
        F.log_softmax(student / temperature, dim=1), F.softmax(teacher / temperature, dim=1)
    )
    return soft * (alpha * temperature**2) + F.cross_entropy(student, labels) * (1.0 - alpha)


torch.manual_seed(230)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data[:300] / 16, dtype=torch.float32), torch.tensor(digits.target[:300]))
loader = DataLoader(data, batch_size=32, shuffle=True)
teacher, student = net(64), net(16)
for parameter in teacher.parameters():
    parameter.requires_grad = False
teacher.eval()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
for epoch in range(2):
    student.train()
    summary = []
    for step, (images, labels) in enumerate(loader):
        output = student(images)
        with torch.no_grad():
            target = teacher(images)
        loss = loss_fn(output, labels, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            predicted = output.detach().numpy().argmax(axis=1)
            summary.append({"accuracy": (predicted == labels.numpy()).mean(), "loss": loss.item()})
    print(epoch, " ; ".join(f"{k}: {sum(s[k] for s in summary) / len(summary):05.3f}" for k in summary[0]))
