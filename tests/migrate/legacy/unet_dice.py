import logging
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset

dir_checkpoint = "checkpoints/"


class Blobs(Dataset):
    """Noisy discs and their masks, each made from its index."""

    def __init__(self, first, n, size=16):
        self.first, self.n, self.size = first, n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.first + i)
        cx, cy = torch.randint(4, self.size - 4, (2,), generator=g).tolist()
        grid = torch.arange(self.size)
        mask = ((grid[None] - cx) ** 2 + (grid[:, None] - cy) ** 2 < 12).float()[None]
        return {"image": mask + 0.5 * torch.randn(mask.shape, generator=g), "mask": mask}


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(2, cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1), nn.GroupNorm(2, cout), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = DoubleConv(1, 8)
        self.down = DoubleConv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv = DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.up(self.down(F.max_pool2d(x1, 2)))
        return self.outc(self.conv(torch.cat([x1, x2], dim=1)))


def dice_loss(logits, target):
    """One minus the dice coefficient of each picture, averaged."""
    p = torch.sigmoid(logits)
    inter = (p * target).sum(dim=(1, 2, 3))
    union = p.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3))
    return (1 - (2 * inter + 1) / (union + 1)).mean()


def eval_net(net, loader, device):
    """Evaluation with the dice coefficient"""
    net.eval()
    tot = 0
    for batch in loader:
        imgs, true_masks = batch["image"], batch["mask"]
        imgs = imgs.to(device=device, dtype=torch.float32)
        true_masks = true_masks.to(device=device)
        with torch.no_grad():
            mask_pred = net(imgs)
        tot += (1 - dice_loss(mask_pred, true_masks)).item()
    net.train()
    return tot / len(loader)


def train_net(net, device, epochs=3, batch_size=8, lr=0.002, save_cp=True):
    train = Blobs(0, 96)
    val = Blobs(1000, 32)
    train_loader = DataLoader(train, batch_size=batch_size, shuffle="FIXED_ORDER" not in os.environ, num_workers=0)
    val_loader = DataLoader(val, batch_size=batch_size, shuffle=False, num_workers=0, drop_last=True)
    logging.info(f"Starting training: epochs {epochs}, batch size {batch_size}, training size {len(train)}")

    optimizer = optim.RMSprop(net.parameters(), lr=lr, weight_decay=1e-8, momentum=0.9)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=2)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(epochs):
        net.train()
        epoch_loss = 0
        for batch in train_loader:
            imgs = batch["image"].to(device=device, dtype=torch.float32)
            true_masks = batch["mask"].to(device=device)

            masks_pred = net(imgs)
            loss = criterion(masks_pred, true_masks) + dice_loss(masks_pred, true_masks)
            epoch_loss += loss.item()

            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.1)
            optimizer.step()

        val_score = eval_net(net, val_loader, device)
        scheduler.step(val_score)
        print("epoch {} loss {:.6f} validation dice {:.5f}".format(epoch, epoch_loss / len(train_loader), val_score))

        if save_cp:
            try:
                os.mkdir(dir_checkpoint)
                logging.info("Created checkpoint directory")
            except OSError:
                pass
            torch.save(net.state_dict(), dir_checkpoint + f"CP_epoch{epoch + 1}.pth")
            logging.info(f"Checkpoint {epoch + 1} saved !")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stdout)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logging.info(f"Using device {device}")
    torch.manual_seed(5)
    net = UNet()
    net.to(device=device)
    try:
        train_net(net=net, device=device)
    except KeyboardInterrupt:
        torch.save(net.state_dict(), "INTERRUPTED.pth")
        logging.info("Saved interrupt")
        sys.exit(0)
