"""The GPT: its pieces do what their papers say, and a document sees nothing of its neighbours."""

import torch
from torch.nn import functional as F

from unisono.recipes.gpt import GPT, IGNORED, Micro, Shape, _turned, decay_groups
from unisono.recipes.lm_presets import PRESETS

TINY = Shape(length=16, width=16, layers=2, heads=2, inner=24)


def micro(rows=2, length=16, vocabulary=50, cuts=(5, 11)):
    tokens, targets = torch.randint(vocabulary, (2, rows, length)).unbind()
    place = torch.arange(length)
    segments = sum((place >= cut).long() for cut in cuts)
    starts = torch.tensor([0, *cuts])[segments]
    return Micro(tokens, segments.expand(rows, -1), (place - starts).expand(rows, -1), targets)


def model(**more):
    torch.manual_seed(0)
    made = GPT(50, TINY, **more)
    for weight in made.parameters():  # so that every part tells
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return made


def test_sizes_are_what_the_names_say():
    """With full vocabularies: 1.3, 10 and 49 million parameters."""
    sizes = {
        name: sum(p.numel() for p in GPT(s.vocabulary, Shape(**s.shape)).parameters()) for name, s in PRESETS.items()
    }
    assert {name: round(size / 1e6, 1) for name, size in sizes.items()} == {"small": 1.3, "10m": 10.1, "50m": 49.3}


def test_documents_do_not_see_each_other():
    """A document packed behind others has the losses that it has alone; places see only what stands before them."""
    net, whole = model().eval(), micro(rows=1)
    packed = net(whole)
    alone = net(
        Micro(whole[0][:, 5:11], torch.zeros(1, 6, dtype=torch.int64), torch.arange(6)[None], whole[3][:, 5:11])
    )
    torch.testing.assert_close(packed[:, 5:11], alone)
    changed = whole.tokens.clone()
    changed[:, 8] += 1
    other = net(whole._replace(tokens=changed % 50))
    same = (other == packed)[0]
    assert same[:8].all()
    assert not same[8:11].any()
    assert same[11:].all()


def test_turned_heads_know_distances_only():
    """Products of turned queries and keys depend on how far apart they stand; place 0 turns nothing."""
    q, k = torch.randn(2, 1, 1, 1, 8).double().expand(2, 1, 1, 16, 8)
    angles = torch.outer(torch.arange(16).double(), 10_000.0 ** (-torch.arange(4) / 4))[None, None]
    turned = [_turned(heads, angles.cos(), angles.sin()) for heads in (q, k)]
    products = (turned[0] @ turned[1].transpose(2, 3))[0, 0]
    for distance in range(15):
        torch.testing.assert_close(products.diagonal(distance), products[0, distance].expand(16 - distance))
    assert torch.equal(turned[0][:, :, 0], q[:, :, 0])
    assert products[0].std() > 1e-3  # the control


def test_losses_are_those_of_cross_entropy():
    """In training and in evaluation, which computes a few rows at a time; 0 where there is no target."""
    net, data = model(), micro(rows=19)
    data.targets[:, -3:] = IGNORED
    expected = F.cross_entropy(
        (net.read(*data[:3]) @ net.tokens.weight.T).transpose(1, 2), data.targets, reduction="none"
    )
    torch.testing.assert_close(net(data), expected)
    torch.testing.assert_close(net.eval()(data), expected)
    assert not expected[:, -3:].any()


def test_dropout_and_its_absence():
    """It changes training and no evaluation."""
    net, data = model(dropout=0.2), micro()
    assert not torch.equal(net(data), net(data))
    net.eval()
    assert torch.equal(net(data), net(data))


def test_matrices_decay_and_norms_do_not():
    """Every parameter is in one of the two groups; the tied table is there once."""
    net = model()
    decaying, others = decay_groups(net, 0.1)
    assert {id(p) for p in decaying["params"]} == {
        id(p) for name, p in net.named_parameters() if "norm" in name or p.dim() == 2
    }
    assert all(p.dim() == 1 for p in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(net.parameters()))
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)


def test_writing_is_a_function_of_the_generator():
    """The same state of it writes the same; the end of a text ends it; a start longer than a row is cut."""
    net = model().eval()
    first, again, other = (
        net.write([0], 30, end=-1, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(first) == 30
    at = first.index(first[10])
    assert net.write([0], 30, end=first[10], generator=torch.Generator().manual_seed(1)) == first[:at]
