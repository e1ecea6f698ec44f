"""Models of transformers run on rows as a whole: with padding, with caches that they fill, with losses inside."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 40, "max_position_embeddings": 32}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIDED = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
GPT2 = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
MODELS = {  # name -> class, configuration, its values, what is trained on
    "bert": ("BertForMaskedLM", "BertConfig", TEXT | SMALL | STILL, "words"),
    "bert, a class for each text": ("BertForSequenceClassification", "BertConfig", TEXT | SMALL | STILL, "texts"),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", TEXT | SMALL | STILL, "texts"),
    "gpt-2": ("GPT2LMHeadModel", "GPT2Config", GPT2 | {"eos_token_id": 2}, "words"),
    "llama": ("LlamaForCausalLM", "LlamaConfig", TEXT | SMALL | {"num_key_value_heads": 2}, "words"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", TEXT | SMALL | {"num_key_value_heads": 2}, "words"),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5 | {"decoder_start_token_id": 0}, "words"),
    "bart": ("BartForConditionalGeneration", "BartConfig", TEXT | SIDED | {"d_model": 16}, "words"),
    "vit": ("ViTForImageClassification", "ViTConfig", {"image_size": 16, "patch_size": 8} | SMALL, "pictures"),
}


def beside_rows(name):
    """Train a model, and say what did not run on rows after its first call, which may complete its configuration."""
    import transformers

    model_class, config_class, values, what = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**values))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    text, classes = torch.randint(3, 40, (32, 10)), torch.randint(2, (32,))
    mask = (torch.arange(10) < torch.randint(4, 11, (32, 1))).long()
    given = [torch.randn(32, 3, 16, 16), mask, classes] if what == "pictures" else [text, mask, classes]
    ledger = ddp_patch.report().ledger
    for step, (x, padding, labels) in enumerate(DataLoader(TensorDataset(*given), 8)):
        if what == "pictures":
            loss = model(pixel_values=x, labels=labels).loss
        else:
            wanted = x.masked_fill(padding == 0, -100) if what == "words" else labels
            loss = model(input_ids=x, attention_mask=padding, labels=wanted).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            ledger.on_batches.clear()
            ledger.rows.clear()
    return {**ledger.on_batches, **ledger.on_whole}, sum(ledger.rows.values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MODELS)
def test_models_run_on_rows(ranks, name):
    for others, calls in ranks.call(beside_rows, 2, name).ok().results:
        assert others == {}
        assert calls == 3
