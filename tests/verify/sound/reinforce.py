"""REINFORCE with a baseline in an environment of its own: no loader, actions drawn, episodes of any length."""

from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Corridor:
    """Walk right to win; slips now and then."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)

    def reset(self):
        self.place = 2
        return self._seen()

    def step(self, action):
        slip = self.random.rand() < 0.1
        self.place += 1 if (action == 1) != slip else -1
        done = self.place in (0, 6)
        return self._seen(), float(self.place == 6) - 0.01, done

    def _seen(self):
        return np.eye(7, dtype=np.float32)[self.place]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(7, 32)
        self.action_head = nn.Linear(32, 2)
        self.value_head = nn.Linear(32, 1)
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


torch.manual_seed(543)
env, model = Corridor(543), Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
running = deque(maxlen=10)
for episode in range(8):
    state, done, steps = env.reset(), False, 0
    while not done and steps < 30:
        probs, value = model(torch.from_numpy(state))
        m = Categorical(probs)
        action = m.sample()
        model.saved_actions.append(SavedAction(m.log_prob(action), value))
        state, reward, done = env.step(action.item())
        model.rewards.append(reward)
        steps += 1
    R, returns = 0, []
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std(unbiased=False) + 1e-8)
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(model.saved_actions, returns):
        policy_losses.append(-log_prob * (R - value.item()))
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    running.append(sum(model.rewards))
    print(f"Episode {episode} length {steps} last reward: {running[-1]:.2f} average {np.mean(running):.3f}")
    del model.rewards[:], model.saved_actions[:]
