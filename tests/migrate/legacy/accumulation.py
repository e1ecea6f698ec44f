import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 50, (n, 12), generator=g)
    return TensorDataset(tokens, (tokens.float().mean(1) > 24.5).long())


class Classifier(nn.Module):
    def __init__(self, vocab=50, dim=32, layers=1):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 2)

    def forward(self, tokens):
        return self.out(self.encoder(self.embed(tokens)).mean(1))


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(make_data(960, 0), batch_size=args.batch_size, shuffle=not args.no_shuffle)
    eval_loader = DataLoader(make_data(202, 1), batch_size=args.batch_size)

    model = Classifier()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total_steps = len(train_loader) // args.gradient_accumulation_steps * args.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5) * (1 - s / (total_steps + 1)))
    loss_function = nn.CrossEntropyLoss()

    global_step = 0
    for epoch in range(args.epochs):
        model.train()
        tr_loss = 0.0
        for step, batch in enumerate(train_loader):
            batch = tuple(t.to(device) for t in batch)
            tokens, labels = batch
            loss = loss_function(model(tokens), labels)
            if args.gradient_accumulation_steps > 1:
                loss = loss / args.gradient_accumulation_steps
            loss.backward()
            tr_loss += loss.item() * args.gradient_accumulation_steps
            if (step + 1) % args.gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()  # Update learning rate schedule
                model.zero_grad()
                global_step += 1
        eval_loss, preds, n = 0.0, 0, 0
        model.eval()
        for batch in eval_loader:
            batch = tuple(t.to(device) for t in batch)
            with torch.no_grad():
                logits = model(batch[0])
                eval_loss += loss_function(logits, batch[1]).item() * len(batch[1])
            preds += (logits.argmax(-1) == batch[1]).sum().item()
            n += len(batch[1])
        print(f"epoch {epoch} step {global_step} loss {tr_loss / len(train_loader):.6f} "
              f"eval loss {eval_loss / n:.6f} perplexity {math.exp(eval_loss / n):.4f} acc {preds / n:.4f}")
    torch.save({"model": model.state_dict(), "args": vars(args)}, "model.bin")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=16)
    p.add_argument("--gradient_accumulation_steps", type=int, default=4)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--no-shuffle", action="store_true")
    main(p.parse_args())
