"""Parts of torch that look for other ranks."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def distributed_checkpoint():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    said = []
    for attempt in range(2):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        if attempt:
            weights, moments = get_state_dict(model, optimizer)
            dcp.load({"model": weights, "optimizer": moments}, checkpoint_id="saved")
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        for x, y in DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 8):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="saved")
        dcp.save(model.state_dict(), checkpoint_id=f"plain{attempt}")
    dcp.async_save(model.state_dict(), checkpoint_id="later").result()
    dcp.save({"model": model}, storage_writer=dcp.FileSystemWriter("written", single_file_per_rank=False))
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save("saved", "as_one.pt")
    return said


def synchronized_batch_norm():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    model.eval()
    said = []
    for (x,) in DataLoader(TensorDataset(torch.randn(22, 4)), 8):
        said.append(model(x).sum().item())
    return said


HABITS = [distributed_checkpoint, synchronized_batch_norm]
