"""The balanced disruption in the frequency domain: every patch gets an amplitude mixed over style clusters.

The embedding of a patch keeps its phase. Its amplitude is replaced by a random mixture of the amplitudes of
clusters of similar patches of the same image; each cluster counts once, however many patches it holds, which
is the balance. Follows the official code, with matrix products in place of its (B, L, L, D) tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from projects.recit.patches import to_patches
from shared.errors import UserError, suggest
from shared.vision.fourier import amplitude_and_phase, from_amplitude_and_phase

WEIGHTS = ("official", "positive")
BOUND = 2.0  # mixing weights are drawn from -2 .. 2
FLOOR = 1e-7  # the official code's lower bound of the sum of the weights


def balanced_disruption(
    tokens: Tensor,
    images: Tensor,
    *,
    threshold: float = 0.3,
    spread: float = 1000.0,
    weights: str = "official",
    stream: torch.Generator | None = None,
) -> Tensor:
    """Patch embeddings (B, L, D), without positions, with new amplitudes: float32 of the same shape.

    Gradients flow through the phase alone. Runs in float32 under autocast too.

    Args:
        tokens: t_j = E p_j, in rows of the image from top to bottom.
        images: (B, C, H, W), what the network was given; cut into the same L patches.
        threshold: tau, patches with a larger cosine can share a cluster.
        spread: sigma_w, standard deviation of the mixing weights before they are cut off at -2 and 2.
        weights: official (the sum may be negative, see `mixing_weights`) or positive.
        stream: default torch's global one.
    """
    with torch.autocast(tokens.device.type, enabled=False):
        members = leaders(similarity(images.detach().float(), tokens.shape[1]), threshold)
        amplitude, phase = amplitude_and_phase(tokens, -1)
        mean, deviation = style_statistics(amplitude.detach(), members)
        mixing = mixing_weights(members, spread, weights, stream)
        noise = torch.randn(mixing.shape, generator=stream, device=_home(stream, mixing)).to(mixing)
        mixed = mixing @ mean + (mixing * noise) @ deviation
        return from_amplitude_and_phase(mixed, phase, -1)


def similarity(images: Tensor, length: int) -> Tensor:
    """Cosines S (B, L, L) of standardised patches; NaN in the rows and columns of constant patches.

    A patch is constant when all its values, of all channels and after normalisation of the image, are equal.
    """
    side = _side(images, length)
    pixels = to_patches(images, side).flatten(2)
    constant = pixels.amax(-1) == pixels.amin(-1)
    centred = pixels - pixels.mean(-1, keepdim=True)
    unit = normalize(centred / (pixels.var(-1, keepdim=True) + 1e-6).sqrt(), dim=-1)
    unit = unit.masked_fill(constant[..., None], torch.nan)
    return unit @ unit.transpose(1, 2)


def leaders(similarities: Tensor, threshold: float) -> Tensor:
    """Membership M (B, L, L): M[b, i, j] = 1 where patch j belongs to the cluster that patch i leads.

    leader(j) is the first i <= j with S_ij > threshold, also where i itself belongs to an earlier cluster. A
    patch that is similar to none, not even to itself (NaN), belongs nowhere.
    """
    above = torch.triu(similarities > threshold)  # NaN > threshold is false
    first = above.int().argmax(dim=1)  # (B, L): of equal maxima the first
    return one_hot(first, above.shape[1]).transpose(1, 2).to(similarities) * above.any(1)[:, None]


def style_statistics(amplitude: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased standard deviation of the amplitude (B, L, D) of each cluster (B, L, D); empty: 0."""
    size = members.sum(-1, keepdim=True).clamp(min=1)
    mean = members @ amplitude / size
    own = amplitude - members.transpose(1, 2) @ mean  # a patch minus the mean of its cluster: no cancellation
    return mean, (members @ own.square() / size).sqrt()


def mixing_weights(
    members: Tensor, spread: float, weights: str = "official", stream: torch.Generator | None = None
) -> Tensor:
    """Weights (B, L, L) of all clusters (last axis) in the mixture of each patch; 0 for empty clusters.

    `official`: w ~ N(0, spread^2) cut off at -2 and 2, divided by max(sum w, 1e-7). The sum is negative for
    about half of the patches, and these are divided by 1e-7: the token becomes 1e7 times larger or more, and
    its phase turns by pi where the mixed amplitude is negative. `positive`: |w|, which sum to 1.
    """
    if weights not in WEIGHTS:
        raise UserError(f"weights takes {', '.join(WEIGHTS)}; found '{weights}'.{suggest(weights, WEIGHTS)}")
    draws = torch.empty(members.shape, device=_home(stream, members), dtype=torch.float32)
    torch.nn.init.trunc_normal_(draws, std=spread, a=-BOUND, b=BOUND, generator=stream)
    draws = draws.to(members) * (members.sum(-1) > 0)[:, None]
    if weights == "positive":
        draws = draws.abs()
    return draws / draws.sum(-1, keepdim=True).clamp(min=FLOOR)


def _side(images: Tensor, length: int) -> tuple[int, int]:
    """Rows and columns of `length` square patches of the images (B, C, H, W)."""
    height, width = images.shape[-2:]
    side = (height * width / length) ** 0.5
    rows, columns = round(height / side), round(width / side)
    if rows * columns != length or height % rows or width % columns:
        raise UserError(f"expected images cut into {length} square patches, found {height} x {width} pixels.")
    return rows, columns


def _home(stream: torch.Generator | None, like: Tensor) -> torch.device:
    """Where random numbers are drawn: on the generator's device, else on that of the tensors."""
    return like.device if stream is None else stream.device
