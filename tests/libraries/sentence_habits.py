"""sentence-transformers: a model put together from its modules, trained in a loop of one's own."""

import itertools

import torch
from libraries.transformers_habits import tiny_bert
from torch import nn
from torch.utils.data import DataLoader

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"the a cat dog bird sat ran flew on under mat tree red big".split(),
]


def folder_of_a_bert():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **names).save_pretrained("bert")
    BertModel(tiny_bert()).save_pretrained("bert")
    return "bert"


def model_of_parts():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    words = Transformer(folder_of_a_bert(), max_seq_length=12)
    return SentenceTransformer(modules=[words, Pooling(16), Normalize()], device="cpu")


def sentences(count):
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 6, (count,), generator=generator)
    return [" ".join(WORDS[i] for i in torch.randint(5, len(WORDS), (int(n),), generator=generator)) for n in lengths]


def encodes():
    model = model_of_parts()
    embeddings = model.encode(sentences(7), batch_size=3)
    similarity = model.similarity(embeddings, embeddings)
    model.save_pretrained("saved", create_model_card=False)
    from sentence_transformers import SentenceTransformer

    again = SentenceTransformer("saved", device="cpu")
    return [embeddings.tolist(), similarity.tolist(), again.encode("the cat sat").tolist()]


def trains_by_hand():
    """InputExample pairs, its collate, its loss, a loop of one's own."""
    from sentence_transformers import InputExample, losses
    from sentence_transformers.util import cos_sim

    model = model_of_parts()
    texts = sentences(20)
    examples = [InputExample(texts=[a, b], label=(i % 3) / 2) for i, (a, b) in enumerate(itertools.pairwise(texts))]
    criterion = losses.CosineSimilarityLoss(model)
    loader = DataLoader(examples, shuffle=True, batch_size=6, collate_fn=model.smart_batching_collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said = []
    model.train()
    for _ in range(2):
        for features, labels in loader:
            loss = criterion(features, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    model.eval()
    embeddings = model.encode(texts[:4], convert_to_tensor=True)
    said.append(cos_sim(embeddings, embeddings).sum().item())
    return said


def ranks_in_the_batch():
    from sentence_transformers import losses

    model = model_of_parts()
    texts = sentences(22)
    pairs = list(zip(texts[::2], texts[1::2], strict=True))

    def tokenized(batch):
        return [model.tokenize([pair[side] for pair in batch]) for side in range(2)]

    criterion = losses.MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    said = []
    for features in DataLoader(pairs, batch_size=4, collate_fn=tokenized):
        loss = criterion(features, None)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        said.append(loss.item())
    return said


def evaluates():
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    model = model_of_parts()
    texts = sentences(9)
    scores = [i / 8 for i in range(8)]
    evaluator = EmbeddingSimilarityEvaluator(texts[:8], texts[1:], scores, name="dev", write_csv=True)
    return [evaluator(model, output_path=".", epoch=1, steps=2)]


HABITS = [encodes, trains_by_hand, ranks_in_the_batch, evaluates]
