"""peft: adapters on a model of transformers, and on a model of one's own."""

import torch
from libraries.transformers_habits import Texts, padded, tiny_bert, tiny_gpt2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def lora_on_bert():
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import BertForSequenceClassification

    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, lora_dropout=0.0)
    model = get_peft_model(BertForSequenceClassification(tiny_bert(num_labels=3)), config)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = []
    for epoch in range(2):
        for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
        print(f"epoch {epoch} loss {loss.item():.6f}")
    model.save_pretrained("adapter")
    return said


def lora_saves_loads_and_merges():
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import BertForSequenceClassification

    torch.manual_seed(1)
    model = get_peft_model(
        BertForSequenceClassification(tiny_bert(num_labels=3)),
        LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"], bias="lora_only"),
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3)
    said = []
    for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(loss.item())
    model.save_pretrained("adapter")
    torch.manual_seed(1)
    again = PeftModel.from_pretrained(BertForSequenceClassification(tiny_bert(num_labels=3)), "adapter")
    batch = padded([Texts()[i] for i in range(5)])
    for net in (model, again, again.merge_and_unload()):
        net.eval()
        with torch.no_grad():
            said.append(net(**batch).logits.sum().item())
    return said


def lora_with_dropout_on_gpt2():
    """Default arguments of a tutorial: the draws are the ranks' own."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2LMHeadModel

    config = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.05, bias="none", task_type="CAUSAL_LM", fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(tiny_gpt2()), config)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = []
    for (batch,) in DataLoader(TensorDataset(torch.randint(3, 40, (23, 9))), batch_size=8):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append(loss.item())
    assert all(2 < loss < 5 for loss in said)
    model.save_pretrained("adapter")
    return said


def lora_on_a_model_of_ones_own():
    from peft import LoraConfig, get_peft_model

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.seq = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

        def forward(self, x):
            return self.seq(x)

    model = get_peft_model(Net(), LoraConfig(target_modules=["seq.0", "seq.2"], modules_to_save=["seq.4"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    said = []
    for _ in range(2):
        for x, y in DataLoader(TensorDataset(torch.randn(23, 4), torch.randint(0, 3, (23,))), 8, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
        with model.disable_adapter():
            said.append(model(x).sum().item())
    torch.save(model.state_dict(), "net.pt")
    return said


def prompts_and_other_adapters():
    from peft import IA3Config, PromptTuningConfig, get_peft_model
    from transformers import BertForSequenceClassification

    said = []
    for config in (
        PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
        IA3Config(
            task_type="SEQ_CLS", target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"]
        ),
    ):
        torch.manual_seed(2)
        model = get_peft_model(BertForSequenceClassification(tiny_bert(num_labels=3)), config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(loss.item())
    return said


HABITS = [
    lora_on_bert, lora_saves_loads_and_merges, lora_with_dropout_on_gpt2, lora_on_a_model_of_ones_own,
    prompts_and_other_adapters,
]  # fmt: skip
DRAWN = ["lora_with_dropout_on_gpt2"]
