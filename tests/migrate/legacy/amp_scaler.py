"""Mixed precision where there is a GPU."""
import argparse
import logging
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger(__name__)


def get_loaders(batch_size, shuffle):
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(x[:1408], y[:1408]), batch_size=batch_size, shuffle=shuffle, drop_last=True)
    val_loader = DataLoader(TensorDataset(x[1408:], y[1408:]), batch_size=batch_size, shuffle=False)
    return train_loader, val_loader


def train_one_epoch(model, loader, criterion, optimizer, scaler, device, epoch):
    model.train()
    running_loss, seen = 0.0, 0
    for step, (images, targets) in enumerate(loader):
        images, targets = images.to(device), targets.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device.type, enabled=device.type == "cuda"):
            outputs = model(images)
            loss = criterion(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        running_loss += loss.item() * images.size(0)
        seen += images.size(0)
        if step % 5 == 0:
            logger.info("epoch %d step %d loss %.4f", epoch, step, running_loss / seen)
    return running_loss / seen


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    hits, seen = 0, 0
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        outputs = model(images)
        hits += (outputs.argmax(1) == targets).float().sum().item()
        seen += targets.size(0)
    return hits / seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--output", default="amp_out")
    parser.add_argument("--no-shuffle", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(6)
    if not os.path.exists(args.output):
        os.makedirs(args.output)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, val_loader = get_loaders(args.batch_size, not args.no_shuffle)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    model = nn.DataParallel(model).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")

    best = 0.0
    for epoch in range(args.epochs):
        loss = train_one_epoch(model, train_loader, criterion, optimizer, scaler, device, epoch)
        accuracy = evaluate(model, val_loader, device)
        scheduler.step()
        print(f"epoch {epoch} loss {loss:.6f} accuracy {accuracy:.4f}")
        if accuracy > best:
            best = accuracy
            torch.save(
                {"model": model.module.state_dict(), "scaler": scaler.state_dict(), "best": best},
                os.path.join(args.output, "best.pt"),
            )
    logger.info("best accuracy %.4f", best)


if __name__ == "__main__":
    main()
