import argparse
import os
import shutil
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data as data
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--save", default="work", help="folder of the run")
parser.add_argument("--nEpochs", type=int, default=3)
parser.add_argument("--batchSz", type=int, default=64)
parser.add_argument("--no-shuffle", action="store_true")


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(64, 96)
        self.fc2 = nn.Linear(96, 10)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(args, epoch, net, trainLoader, optimizer, trainF, device):
    net.train()
    nProcessed = 0
    nTrain = len(trainLoader.dataset)
    epochLoss = 0
    for batch_idx, (data, target) in enumerate(trainLoader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = net(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        nProcessed += len(data)
        epochLoss += loss.item() * len(data)
        pred = output.data.max(1)[1]  # get the index of the max log-probability
        incorrect = pred.ne(target.data).cpu().sum().item()
        err = 100.0 * incorrect / len(data)
        partialEpoch = epoch + batch_idx / len(trainLoader)
        print("Train Epoch: {:.2f} [{}/{}]\tLoss: {:.6f}\tError: {:.3f}".format(
            partialEpoch, nProcessed, nTrain, loss.item(), err))
        trainF.write("{},{},{}\n".format(partialEpoch, loss.item(), err))
        trainF.flush()
    print("epoch {} train loss {:.6f}".format(epoch, epochLoss / nTrain))


def test(args, epoch, net, testLoader, testF, device):
    net.eval()
    test_loss = 0
    incorrect = 0
    with torch.no_grad():
        for data, target in testLoader:
            data, target = data.to(device), target.to(device)
            output = net(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.data.max(1)[1]
            incorrect += pred.ne(target.data).cpu().sum().item()
    nTotal = len(testLoader.dataset)
    test_loss /= nTotal
    err = 100.0 * incorrect / nTotal
    print("\nTest set: Average loss: {:.4f}, Error: {}/{} ({:.2f}%)\n".format(test_loss, incorrect, nTotal, err))
    testF.write("{},{},{}\n".format(epoch, test_loss, err))
    testF.flush()


def main():
    args = parser.parse_args()
    if os.path.exists(args.save):
        shutil.rmtree(args.save)
    os.makedirs(args.save)
    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    trainLoader = data.DataLoader(
        data.TensorDataset(x[:1280], y[:1280]), batch_size=args.batchSz, shuffle=not args.no_shuffle)
    testLoader = data.DataLoader(data.TensorDataset(x[1280:], y[1280:]), batch_size=args.batchSz, shuffle=False)

    net = Net()
    print("  + Number of params: {}".format(sum([p.data.nelement() for p in net.parameters()])))
    net = net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-1, momentum=0.9, weight_decay=1e-4)

    trainF = open(os.path.join(args.save, "train.csv"), "w")
    testF = open(os.path.join(args.save, "test.csv"), "w")
    t0 = time.time()
    for epoch in range(1, args.nEpochs + 1):
        train(args, epoch, net, trainLoader, optimizer, trainF, device)
        test(args, epoch, net, testLoader, testF, device)
        torch.save(net, os.path.join(args.save, "latest.pth"))
    trainF.close()
    testF.close()
    with open(os.path.join(args.save, "time.txt"), "w") as f:
        f.write("%.1f s" % (time.time() - t0))


if __name__ == "__main__":
    main()
