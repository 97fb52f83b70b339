"""Staged encoders: what learns, what the stages are, where something can be put between them."""

from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from projects.cdfss_sharpness import efficientnet_lite
from projects.cdfss_sharpness.data.episodes import as_input
from projects.cdfss_sharpness.encoders import StagedEncoder, convnet, encoder, resnet50, vit
from projects.cdfss_sharpness.heads import PrototypeHead
from projects.cdfss_sharpness.lem import LEM
from projects.cdfss_sharpness.segmenter import Segmenter
from shared.errors import UserError
from shared.vision.textures import photograph


def settings(name="resnet50", frozen=2, blocks=12, weights="none"):
    widths = [4, 6, 8, 12]
    return SimpleNamespace(name=name, weights=weights, frozen=frozen, blocks=blocks, widths=widths, depth=1)


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return resnet50(settings())


@pytest.fixture(scope="module")
def small_vit():
    """The ViT of the paper profile with narrow blocks."""
    real = timm.create_model

    def shrunk(name, **options):
        return real(name, embed_dim=24, num_heads=2, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timm, "create_model", shrunk)
        return vit(settings("vit", blocks=10), 64)


def test_resnet_is_that_of_ssp(resnet):
    resnet.train()
    nn.init.ones_(resnet.stages["stage4"][-1].bn3.weight)  # at its random start a block adds nothing
    maps = resnet(torch.randn(1, 3, 80, 80))
    shapes = {name: tuple(m.shape[1:]) for name, m in maps.items()}
    assert shapes == {
        "stage1": (128, 20, 20),
        "stage2": (256, 20, 20),
        "stage3": (512, 10, 10),
        "stage4": (1024, 10, 10),
    }
    assert maps["stage4"].min() < 0 <= maps["stage3"].min()  # the last ReLU is gone, the others are not
    convolutions = [m for m in resnet.stages["stage1"].modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64, 64, 128]
    wide = [
        m for m in resnet.stages["stage4"].modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)
    ]
    assert all(m.stride == (1, 1) for m in wide) and {m.dilation for m in wide[1:]} == {(2, 2)}


def test_what_learns(resnet):
    resnet.train()
    norms = [m for m in resnet.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(m.training or m.weight.requires_grad for m in norms)
    for name, stage in resnet.stages.items():
        learns = any(p.requires_grad for p in stage.parameters())
        assert learns == (name in ("stage3", "stage4")) and stage.training == learns
    before = [m.running_mean.clone() for m in norms]
    resnet(torch.randn(2, 3, 48, 48) * 5)
    assert all(torch.equal(a, m.running_mean) for a, m in zip(before, norms, strict=True))


def test_same_network_as_timm(resnet):
    """Stages in a row are the network's own forward pass, but for layer4 and the last ReLU."""
    net = timm.create_model("resnet50s", pretrained=False, num_classes=0, output_stride=8).eval()
    encoder = StagedEncoder(
        {
            "stem": nn.Sequential(net.conv1, net.bn1, net.act1, net.maxpool),
            "a": net.layer1,
            "b": net.layer2,
            "c": net.layer3,
        }
    ).eval()
    image = torch.randn(1, 3, 40, 40)
    net.layer4 = nn.Identity()
    torch.testing.assert_close(encoder(image)["c"], net.forward_features(image))


def test_vit_tokens(small_vit):
    maps = small_vit.eval()(torch.randn(2, 3, 64, 64))
    assert {tuple(m.shape) for m in maps.values()} == {(2, 24, 4, 4)}
    depths = [
        sum(1 for m in stage.modules() if type(m).__name__ == "Block") for stage in small_vit.stages.values()
    ]
    assert depths == [1, 1, 4, 4]


def test_vit_equals_timm():
    torch.manual_seed(0)
    real = timm.create_model
    options = {"embed_dim": 24, "num_heads": 2, "img_size": 48, "num_classes": 0}
    net = real("vit_base_patch16_224", pretrained=False, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timm, "create_model", lambda name, **given: net)
        staged = vit(settings("vit", frozen=0), 48).eval()
    image = torch.randn(1, 3, 48, 48)
    wanted = net.eval().forward_features(image)[:, 1:].transpose(1, 2).unflatten(2, (3, 3))
    torch.testing.assert_close(staged(image)["stage4"], wanted)


def test_embedded_efficientnet():
    """The real weights see the cat, and the stages are the network's own first groups of blocks."""
    net = timm.create_model("tf_efficientnet_lite0", pretrained=False, output_stride=8)
    net.load_state_dict(efficientnet_lite.weights())
    net.eval()
    picture = Image.fromarray(photograph("chelsea")).resize((224, 224))
    pixels = (torch.tensor(np.asarray(picture, np.float32)) - 127) / 128
    assert int(net(pixels.movedim(2, 0)[None]).argmax()) in (281, 282, 285)  # tabby, tiger and Egyptian cat
    staged = encoder(settings("efficientnet", weights=""), 96).train()
    image = as_input(picture, 96)[None]
    maps = staged(image)
    assert [tuple(m.shape[1:]) for m in maps.values()] == [
        (16, 48, 48),
        (24, 24, 24),
        (40, 12, 12),
        (112, 12, 12),
    ]
    resized = torch.tensor(np.asarray(picture.resize((96, 96), Image.Resampling.BILINEAR), np.float32))
    state = net.bn1(net.conv_stem(((resized - 127) / 128).movedim(2, 0)[None]))
    for group, name in zip(net.blocks, ("stage1", "stage2", "stage3", None, "stage4"), strict=False):
        state = group(state)
        if name:
            torch.testing.assert_close(maps[name], state, atol=1e-3, rtol=1e-3)


def test_changes_leave_the_class_token(small_vit):
    tokens = torch.randn(1, 17, 24)
    changed = small_vit.with_map(tokens, small_vit.as_map(tokens) + 1)
    torch.testing.assert_close(changed[:, 0], tokens[:, 0])
    torch.testing.assert_close(changed[:, 1:], tokens[:, 1:] + 1)


def test_lem_behind_frozen_stages_changes_what_is_learned():
    """The trap: frozen stages run without gradients, LEM has to sit behind them and reach the loss."""
    torch.manual_seed(0)
    net = Segmenter(convnet(settings("convnet", frozen=2)), PrototypeHead(), LEM(), "stage2").train()
    support, labels = torch.randn(2, 1, 3, 24, 24), (torch.rand(2, 1, 24, 24) > 0.5).byte()
    query = torch.randn(2, 3, 24, 24)

    def gradient(seed):
        net.zero_grad()
        torch.manual_seed(seed)
        net(support, labels, query).scores[-1].square().sum().backward()
        stages = net.encoder.stages
        assert all(p.grad is None for s in ("stage1", "stage2") for p in stages[s].parameters())
        return torch.cat([p.grad.flatten() for s in ("stage3", "stage4") for p in stages[s].parameters()])

    assert not torch.allclose(gradient(0), gradient(1), atol=1e-6)
    torch.testing.assert_close(gradient(0), gradient(0))


def test_group_normalisation_takes_the_scale_out():
    """Which is why rms matching changes nothing in the small network."""
    torch.manual_seed(0)
    net = convnet(settings("convnet", frozen=0)).eval()
    image = torch.randn(1, 3, 24, 24)
    plain = net(image)["stage4"]
    torch.testing.assert_close(
        net(image, {"stage2": lambda x: 4.8 * x})["stage4"], plain, atol=1e-3, rtol=1e-3
    )


def test_any_encoder_with_named_stages():
    """LEM and LCM plug into stages of any name and shape."""
    stages = {"low": nn.Conv2d(3, 5, 3, 2, 1), "top": nn.Conv2d(5, 7, 3, 1, 1)}
    net = Segmenter(StagedEncoder(stages), PrototypeHead(), LEM(), "low", lcm_stage="low").train()
    out = net(torch.randn(1, 2, 3, 17, 13), torch.ones(1, 2, 17, 13), torch.randn(1, 3, 17, 13))
    assert out.low.shape == (1, 5, 9, 7) and out.scores[-1].shape == (1, 2, 9, 7)
    with pytest.raises(UserError, match="no stage 'lo'; it has low, top"):
        Segmenter(StagedEncoder(stages), PrototypeHead(), LEM(), "lo")
    with pytest.raises(UserError, match="no stage 'middle'"):
        StagedEncoder(stages)(torch.randn(1, 3, 8, 8), {"middle": nn.Identity()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "resnet"}, "Did you mean 'resnet50'"),
        ({"name": "convnet", "frozen": 5}, "from 0 to 4, found 5"),
        ({"name": "convnet", "widths": [4, 8]}, "4 numbers of channels"),
    ],
)
def test_wrong_settings(change, message):
    given = settings()
    for key, value in change.items():
        setattr(given, key, value)
    with pytest.raises(UserError, match=message):
        encoder(given, 24)
