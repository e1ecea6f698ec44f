"""Trains under Comet, which logs losses by itself if it is imported before torch, and says what it logged."""

import json
import os
import zipfile


def main():
    import comet_ml

    if not os.environ.get("PLAIN"):
        import ddp_patch

        ddp_patch.enable()
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    quiet = {"offline_directory": "out", "log_code": False, "log_env_details": False, "auto_output_logging": False}
    experiment = comet_ml.start(online=False, project_name="p", experiment_config=comet_ml.ExperimentConfig(**quiet))
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    loader = DataLoader(TensorDataset(torch.arange(84.0).view(42, 2)), 4, shuffle=True)
    for _ in range(4):
        for (rows,) in loader:
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(experiment.curr_step)
    experiment.end()
    with zipfile.ZipFile("out/" + os.listdir("out")[0]) as archive, archive.open("messages.json") as messages:
        told = [json.loads(line)["payload"] for line in messages]
    metrics = [message["metric"] for message in told if message.get("metric")]
    print([(m["metricName"], m["metricValue"], m["step"]) for m in metrics if m["metricName"] == "loss"])
    print(len(os.listdir("out")))


main()
