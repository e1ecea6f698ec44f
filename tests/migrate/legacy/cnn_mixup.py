'''Mixup training of a convolutional network with BatchNorm.'''
import argparse
import csv
import os

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

parser = argparse.ArgumentParser(description='mixup')
parser.add_argument('--lr', default=0.05, type=float, help='learning rate')
parser.add_argument('--batch-size', default=100, type=int)
parser.add_argument('--epoch', default=3, type=int)
parser.add_argument('--alpha', default=0.2, type=float)
parser.add_argument('--seed', default=20, type=int)
parser.add_argument('--no-shuffle', action='store_true')
args = parser.parse_args()

use_cuda = torch.cuda.is_available()
best_acc = 0
torch.manual_seed(args.seed)
np.random.seed(args.seed)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
trainset = TensorDataset(images[:1400], labels[:1400])
trainloader = DataLoader(trainset, batch_size=args.batch_size, shuffle=not args.no_shuffle, num_workers=0)
testset = TensorDataset(images[1400:], labels[1400:])
testloader = DataLoader(testset, batch_size=100, shuffle=False, num_workers=0)

net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Flatten(), nn.Linear(16 * 9, 10))
if use_cuda:
    net.cuda()
    net = torch.nn.DataParallel(net)
    cudnn.benchmark = True
if not os.path.isdir('results'):
    os.mkdir('results')
logname = 'results/log_mixup_' + str(args.seed) + '.csv'

criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)


def mixup_data(x, y, alpha=1.0, use_cuda=True):
    '''Returns mixed inputs, pairs of targets, and lambda'''
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1
    index = torch.randperm(x.size()[0])
    if use_cuda:
        index = index.cuda()
    mixed_x = lam * x + (1 - lam) * x[index, :]
    y_a, y_b = y, y[index]
    return mixed_x, y_a, y_b, lam


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


def train(epoch):
    net.train()
    train_loss = 0
    correct = 0
    total = 0
    bar = tqdm(trainloader)
    for batch_idx, (inputs, targets) in enumerate(bar):
        if use_cuda:
            inputs, targets = inputs.cuda(), targets.cuda()
        inputs, targets_a, targets_b, lam = mixup_data(inputs, targets, args.alpha, use_cuda)
        outputs = net(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        train_loss += loss.item()
        _, predicted = torch.max(outputs.data, 1)
        total += targets.size(0)
        correct += (lam * predicted.eq(targets_a.data).cpu().sum().float()
                    + (1 - lam) * predicted.eq(targets_b.data).cpu().sum().float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_description('Loss: %.3f | Acc: %.3f%%' % (train_loss / (batch_idx + 1), 100. * correct / total))
    return (train_loss / (batch_idx + 1), 100. * correct / total)


def test(epoch):
    global best_acc
    net.eval()
    test_loss = 0
    correct = 0
    total = 0
    for batch_idx, (inputs, targets) in enumerate(testloader):
        with torch.no_grad():
            if use_cuda:
                inputs, targets = inputs.cuda(), targets.cuda()
            outputs = net(inputs)
            loss = criterion(outputs, targets)
        test_loss += loss.item()
        _, predicted = torch.max(outputs.data, 1)
        total += targets.size(0)
        correct += predicted.eq(targets.data).cpu().sum()
    acc = 100. * correct / total
    if acc > best_acc:
        checkpoint(acc, epoch)
        best_acc = acc
    return (test_loss / (batch_idx + 1), 100. * correct / total)


def checkpoint(acc, epoch):
    # Save checkpoint.
    print('Saving..')
    state = {'net': net.state_dict(), 'acc': acc, 'epoch': epoch, 'rng_state': torch.get_rng_state()}
    if not os.path.isdir('checkpoint'):
        os.mkdir('checkpoint')
    torch.save(state, './checkpoint/ckpt.t7_' + str(args.seed))


def adjust_learning_rate(optimizer, epoch):
    """decrease the learning rate at 100 and 150 epoch"""
    lr = args.lr
    if epoch >= 2:
        lr /= 10
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr


if not os.path.exists(logname):
    with open(logname, 'w') as logfile:
        logwriter = csv.writer(logfile, delimiter=',')
        logwriter.writerow(['epoch', 'train loss', 'train acc', 'test loss', 'test acc'])

for epoch in range(args.epoch):
    train_loss, train_acc = train(epoch)
    test_loss, test_acc = test(epoch)
    adjust_learning_rate(optimizer, epoch)
    print('epoch %d loss %.6f test loss %.6f acc %.3f' % (epoch, train_loss, test_loss, test_acc))
    with open(logname, 'a') as logfile:
        logwriter = csv.writer(logfile, delimiter=',')
        logwriter.writerow([epoch, train_loss, float(train_acc), test_loss, float(test_acc)])
