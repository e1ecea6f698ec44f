"""transformers: its models in loops of one's own."""

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Texts(Dataset):
    """Token ids of uneven length, with labels."""

    def __init__(self, length=22):
        generator = torch.Generator().manual_seed(1)
        self.texts = [
            torch.randint(5, 40, (int(torch.randint(3, 9, (), generator=generator)),), generator=generator)
            for _ in range(length)
        ]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        ids = self.texts[index].tolist()
        return {"input_ids": ids, "labels": int(sum(ids) % 3)}


def padded(items):
    longest = max(len(item["input_ids"]) for item in items)
    rows = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items]
    masks = [[1] * len(item["input_ids"]) + [0] * (longest - len(item["input_ids"])) for item in items]
    return {
        "input_ids": torch.tensor(rows),
        "attention_mask": torch.tensor(masks),
        "labels": torch.tensor([item["labels"] for item in items]),
    }


def tiny_bert(**more):
    from transformers import BertConfig

    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**sizes, intermediate_size=32, max_position_embeddings=32, **(still | more))


def tiny_gpt2(**more):
    from transformers import GPT2Config

    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0, **(still | more))


def bert_classifies():
    """The loop of transformers' course: labels in forward, a schedule, evaluation with argmax."""
    from torch.optim import AdamW
    from transformers import BertForSequenceClassification, get_scheduler

    model = BertForSequenceClassification(tiny_bert(num_labels=3))
    loader = DataLoader(Texts(), shuffle=True, batch_size=8, collate_fn=padded)
    optimizer = AdamW(model.parameters(), lr=5e-3)
    scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=2, num_training_steps=2 * len(loader))
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    model.to(device)
    said = []
    for epoch in range(2):
        model.train()
        for batch in loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            said.append(loss.item())
        model.eval()
        correct = 0
        for batch in DataLoader(Texts(9), batch_size=4, collate_fn=padded):
            with torch.no_grad():
                outputs = model(**batch)
            correct += (outputs.logits.argmax(dim=-1) == batch["labels"]).sum().item()
        print(f"epoch {epoch}: loss {said[-1]:.6f}, accuracy {correct / 9:.4f}, rate {scheduler.get_last_lr()[0]:.6f}")
    return said


def bert_saves_and_loads():
    from transformers import AutoConfig, AutoModelForSequenceClassification, BertForSequenceClassification

    model = BertForSequenceClassification(tiny_bert(num_labels=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    best = float("inf")
    for epoch in range(2):
        total = 0.0
        for batch in DataLoader(Texts(), batch_size=6, collate_fn=padded):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if total < best:
            best = total
            model.save_pretrained("best")
        model.save_pretrained(f"checkpoint-{epoch}", max_shard_size="20KB")
    again = AutoModelForSequenceClassification.from_pretrained("best").eval()
    sharded = BertForSequenceClassification.from_pretrained("checkpoint-1").eval()
    model.eval()
    batch = padded([Texts()[i] for i in range(5)])
    values = [type(again).__name__, AutoConfig.from_pretrained("best").num_labels, str(again.dtype)]
    with torch.no_grad():
        for net in (model, again, sharded):
            values.append(net(**batch).logits.sum().item())
    optimizer = torch.optim.AdamW(again.parameters(), lr=1e-2)  # training goes on from the file
    again.train()
    for batch in DataLoader(Texts(), batch_size=6, collate_fn=padded):
        loss = again(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def bert_masks_tokens():
    from transformers import BertForMaskedLM

    model = BertForMaskedLM(tiny_bert())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = []
    for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
        labels = batch["input_ids"].clone()
        chosen = torch.bernoulli(torch.full(labels.shape, 0.4)).bool() & batch["attention_mask"].bool()
        labels[~chosen] = -100
        batch["input_ids"][chosen] = 3
        outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels)
        optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()
        said.append(outputs.loss.item())
    return said


def bert_checkpoints_gradients():
    from transformers import BertForSequenceClassification

    said = []
    for options in ({}, {"gradient_checkpointing_kwargs": {"use_reentrant": False}}):
        torch.manual_seed(0)
        model = BertForSequenceClassification(tiny_bert(num_labels=3))
        model.gradient_checkpointing_enable(**options)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def bert_drops_by_default():
    """Draws of dropout are those of the ranks; what is seen stays one program's."""
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(
        tiny_bert(num_labels=3, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(3):
        for batch in DataLoader(Texts(), shuffle=True, batch_size=8, collate_fn=padded):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.save_pretrained("drops", save_original_format=True)
    assert all(0.3 < loss < 3 for loss in losses)
    return losses


def gpt2_learns_and_generates():
    from transformers import GPT2LMHeadModel, get_cosine_schedule_with_warmup

    ids = torch.randint(3, 40, (23, 10))
    loader = DataLoader(TensorDataset(ids), batch_size=8, shuffle=True)
    model = GPT2LMHeadModel(tiny_gpt2())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 9)
    said = []
    for _ in range(3):
        for (batch,) in loader:
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            said.append(loss.item())
        print(f"perplexity {torch.exp(loss).item():.6f}")
    model.eval()
    prompt = ids[:3, :4]
    said.append(model.generate(prompt, max_new_tokens=6, do_sample=False).tolist())
    torch.manual_seed(3)
    said.append(model.generate(prompt, max_new_tokens=6, do_sample=True, top_k=10).tolist())
    said.append(model.generate(prompt, max_new_tokens=5, num_beams=3).tolist())
    for (batch,) in DataLoader(TensorDataset(ids[:5, :4]), batch_size=5):
        mask = torch.ones_like(batch)
        said.append(model.generate(batch, attention_mask=mask, max_new_tokens=4, do_sample=False).tolist())
    said.append(str(model.generation_config.eos_token_id))
    model.save_pretrained("gpt2")
    return said


def gpt2_accumulates():
    """Left-padded batches, several backwards to a step, bf16 autocast left out."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel(tiny_gpt2(use_cache=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    said = []
    for step, batch in enumerate(DataLoader(Texts(26), batch_size=5, collate_fn=padded)):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss / 2
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        said.append(loss.item())
    return said


def mixtral_sorts_its_tokens_by_expert():
    """As transformers computes experts if it is told nothing, in float32: grouped products have no float64 on a CPU."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
    )
    model = MixtralForCausalLM(config).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = [model.config._experts_implementation]
    for (batch,) in DataLoader(TensorDataset(torch.randint(3, 40, (29, 6))), batch_size=5):
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(f"{loss.item():.3f}")
    return said


def gpt2_loss_of_ones_own():
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_gpt2())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    said = [sum(p.numel() for p in model.parameters()), model.num_parameters()]
    for (batch,) in DataLoader(TensorDataset(torch.randint(3, 40, (23, 10))), batch_size=8):
        logits = model(batch).logits
        shifted, targets = logits[..., :-1, :].contiguous(), batch[..., 1:].contiguous()
        loss = F.cross_entropy(shifted.view(-1, shifted.size(-1)), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


def detr_loss():
    from transformers import DetrConfig
    from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

    config = DetrConfig(num_labels=4, auxiliary_loss=False)
    head, boxes = torch.nn.Linear(6, 5 * 5), torch.nn.Linear(6, 5 * 4)
    optimizer = torch.optim.SGD([*head.parameters(), *boxes.parameters()], lr=0.05)
    said = []
    for (x,) in DataLoader(TensorDataset(torch.randn(11, 6)), batch_size=4):
        logits = head(x).view(len(x), 5, 5)
        places = boxes(x).view(len(x), 5, 4).sigmoid()
        labels = [{"class_labels": torch.tensor([i % 4]), "boxes": torch.full((1, 4), 0.4)} for i in range(len(x))]
        loss, parts, _ = ForObjectDetectionLoss(logits, labels, x.device, places, config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), parts["loss_bbox"].item(), parts["loss_giou"].item()]
    return said


def mask2former_loss():
    from transformers import Mask2FormerConfig, SwinConfig
    from transformers.models.mask2former.modeling_mask2former import Mask2FormerLoss

    config = Mask2FormerConfig(backbone_config=SwinConfig(), num_labels=3, train_num_points=12)
    criterion = Mask2FormerLoss(config, {"loss_cross_entropy": 2.0, "loss_mask": 5.0, "loss_dice": 5.0})
    masks, classes = torch.nn.Linear(6, 3 * 64), torch.nn.Linear(6, 3 * 4)
    said = []
    for (x,) in DataLoader(TensorDataset(torch.randn(5, 6)), batch_size=4):
        queries = masks(x).view(len(x), 3, 8, 8)
        logits = classes(x).view(len(x), 3, 4)
        wanted = [(torch.rand(2, 8, 8) > 0.5).double() for _ in range(len(x))]
        labels = [torch.tensor([0, 2]) for _ in range(len(x))]
        losses = criterion(queries, logits, wanted, labels)
        sum(losses.values()).backward()
        said += [losses[name].item() for name in sorted(losses)]
    said.append(masks.weight.grad.sum().item())
    return said


def vision_transformer():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = []
    for x, y in DataLoader(TensorDataset(torch.randn(19, 3, 8, 8), torch.randint(0, 3, (19,))), batch_size=6):
        outputs = model(pixel_values=x, labels=y, output_hidden_states=True, output_attentions=True)
        optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()
        said += [outputs.loss.item(), outputs.hidden_states[-1].mean().item(), len(outputs.hidden_states)]
        said.append((outputs.logits.argmax(-1) == y).double().mean().item())
    return said


def llama_resumes():
    """Attributes of a modern decoder: shared key heads, rotary embeddings, tied weights; stop and go on."""
    from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler

    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=32,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    ids = torch.randint(3, 40, (24, 9))
    said = []
    for attempt in range(2):
        model = LlamaForCausalLM(config) if attempt == 0 else LlamaForCausalLM.from_pretrained("llama")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=4)
        if attempt:
            state = torch.load("state.pt")
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(state["scheduler"])
        model.train()
        for (batch,) in DataLoader(TensorDataset(ids), batch_size=7):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            said.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            said.append(loss.item())
        model.save_pretrained("llama")
        torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, "state.pt")
    return said


def t5_translates():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = []
    for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    model.eval()
    said.append(model.generate(torch.tensor([[4, 5, 6, 1]]), max_new_tokens=4).tolist())
    return said


def a_head_on_a_frozen_body():
    from transformers import BertModel

    body = BertModel(tiny_bert(), add_pooling_layer=False)
    for parameter in body.parameters():
        parameter.requires_grad = False

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body
            self.head = torch.nn.Linear(16, 3)

        def forward(self, input_ids, attention_mask):
            states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1)
            return self.head((states * mask).sum(1) / mask.sum(1))

    model = Classifier()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    said = []
    for batch in DataLoader(Texts(), batch_size=8, collate_fn=padded):
        loss = torch.nn.functional.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    torch.save(model.state_dict(), "head.pt")
    return said


def collators_and_set_seed():
    from transformers import BertForSequenceClassification, default_data_collator, set_seed

    set_seed(42)
    model = BertForSequenceClassification(tiny_bert(num_labels=3))
    items = [{"input_ids": list(range(3 + i, 9 + i)), "label": i % 3} for i in range(13)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    said = [torch.rand(()).item()]
    for batch in DataLoader(items, shuffle=True, batch_size=4, collate_fn=default_data_collator):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    said.append(torch.rand(()).item())
    return said


HABITS = [
    bert_classifies, bert_saves_and_loads, bert_masks_tokens, bert_checkpoints_gradients, bert_drops_by_default,
    gpt2_learns_and_generates, gpt2_accumulates, mixtral_sorts_its_tokens_by_expert, gpt2_loss_of_ones_own, detr_loss,
    mask2former_loss, vision_transformer, llama_resumes, t5_translates, a_head_on_a_frozen_body, collators_and_set_seed,
]  # fmt: skip
DRAWN = ["bert_drops_by_default"]  # dropout's masks are another draw on every number of ranks
# ForCausalLMLoss computes in float32, and so do T5's norms and the softmax of its attention.
FLOAT32 = ["gpt2_learns_and_generates", "gpt2_accumulates", "llama_resumes", "t5_translates"]
