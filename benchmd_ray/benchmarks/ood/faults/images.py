"""Faults of images: views, exposure, optics, transfer and files."""

from __future__ import annotations

from io import BytesIO
from string import ascii_letters

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from benchmd_ray.benchmarks.ood.faults.fault import Change, Fault, Recorded, Values, makers, spread
from benchmd_ray.modality.signals import Signal

LARGEST = 255.0
LETTER, PAGE = (6, 11), 80
"""Width and height of a letter of Pillow's font in pixels, and the extent of images
that they fit: twice as large letters from twice the extent, and so on."""
BLOCKS = 64
"""Pixels along y and x that an image has at least for JPEG's blocks of 8 to be parts of it."""


def resized(x: Values, shape: tuple[int, ...]) -> Values:
    """(channels, …) of another extent, linearly; what is smaller is averaged first."""
    factors = [to / of for to, of in zip(shape, x.shape[1:], strict=True)]
    sigma = [0.0, *(max(0.0, (1 / factor - 1) / 2) for factor in factors)]
    smooth = ndimage.gaussian_filter(x, sigma)
    grid = np.meshgrid(
        *((np.arange(to) + 0.5) * of / to - 0.5 for to, of in zip(shape, x.shape[1:], strict=True)),
        indexing="ij",
    )
    channels = [
        ndimage.map_coordinates(channel, grid, order=1, mode="nearest") for channel in smooth
    ]
    return np.stack(channels).astype(np.float32)


def smooth_noise(shape: tuple[int, ...], draw: np.random.Generator) -> Values:
    """(channels, …) of noise whose power is 1 / frequency², of mean 0 and spread 1."""
    axes = tuple(range(1, len(shape)))
    spectrum = np.fft.rfftn(draw.standard_normal(shape), axes=axes)
    along = [*(np.fft.fftfreq(extent) for extent in shape[1:-1]), np.fft.rfftfreq(shape[-1])]
    frequency = np.linalg.norm(np.meshgrid(*along, indexing="ij"), axis=0)
    frequency[(0,) * len(axes)] = np.inf  # the mean
    noise = np.fft.irfftn(spectrum / frequency, shape[1:], axes=axes)
    return np.asarray(noise / max(float(noise.std()), 1e-12), np.float32)


def off_centre(x: Values, _: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """Moved by 15, 30 and 50 % of its extent; what is not seen is black."""
    share = {1: 0.15, 2: 0.3, 3: 0.5}[severity]
    angle = draw.uniform(0, 2 * np.pi)
    shift = [
        round(share * extent * part)
        for extent, part in zip(x.shape[1:], (np.sin(angle), np.cos(angle)), strict=True)
    ]
    return np.asarray(ndimage.shift(x, (0, *shift), order=0), np.float32)


def blurred(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """Out of focus or moved: a Gaussian of 2, 4 and 8 % of its extent."""
    sigma = {1: 0.02, 2: 0.04, 3: 0.08}[severity] * max(x.shape[1:])
    return np.asarray(ndimage.gaussian_filter(x, (0, sigma, sigma)), np.float32)


def over_exposed(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """1.3, 1.8 and 3 times the light; the brightest is lost."""
    return np.asarray(np.minimum(x * np.float32({1: 1.3, 2: 1.8, 3: 3.0}[severity]), 1))


def part_lost(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """The lower tenth, quarter and half black."""
    extent = x.shape[1]
    x[:, extent - max(1, round({1: 0.1, 2: 0.25, 3: 0.5}[severity] * extent)) :] = 0
    return x


def low_resolution(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """Shrunk by 2, 3.5 and 7, and enlarged again."""
    factor = {1: 2.0, 2: 3.5, 3: 7.0}[severity]
    small = tuple(max(2, round(extent / factor)) for extent in x.shape[1:])
    return resized(resized(x, small), x.shape[1:])


def noisy(x: Values, _: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """Noise of 5, 10 and 20 % of the range."""
    size = {1: 0.05, 2: 0.1, 3: 0.2}[severity]
    return (x + size * draw.standard_normal(x.shape)).astype(np.float32)


def brown_noise(of_flat: float) -> Change:
    """Nothing but smooth noise, of the record's mean and spread, or ``of_flat`` of flat ones."""

    def change(x: Values, _: Recorded, __: int, draw: np.random.Generator) -> Values:
        return np.asarray(x.mean() + np.float32(spread(x, of_flat)) * smooth_noise(x.shape, draw))

    return change


def text(x: Values, _: Recorded, __: int, draw: np.random.Generator) -> Values:
    """Lines of random letters 11 pixels high or a multiple, black on white or white on black."""
    times = max(1, min(x.shape[1:]) // PAGE)
    high, wide = (-(-extent // times) for extent in x.shape[1:])
    across, down = LETTER
    page, font = Image.new("L", (wide, high)), ImageFont.load_default_imagefont()
    rows = draw.choice(list(ascii_letters), (-(-high // down), -(-wide // across)))
    for row, letters in enumerate(rows):
        ImageDraw.Draw(page).text((0, row * down), "".join(letters), 255, font)
    seen = np.asarray(page, np.float32) / np.float32(LARGEST)
    seen = seen.repeat(times, 0).repeat(times, 1)[: x.shape[1], : x.shape[2]]
    return np.broadcast_to(seen if draw.random() < 0.5 else 1 - seen, x.shape).copy()


def compressed(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """JPEG of quality 30, 15 and 5."""
    pixels = np.round(x * LARGEST).astype(np.uint8).transpose(1, 2, 0)
    file = BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if len(x) == 1 else pixels))
    image.save(file, "jpeg", quality={1: 30, 2: 15, 3: 5}[severity])
    back = np.asarray(Image.open(file), np.float32).reshape(pixels.shape)
    return back.transpose(2, 0, 1) / np.float32(LARGEST)


def chest_wall_lost(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """10, 20 and 40 % lost at the brighter side, where a breast begins; black at the other."""
    lost = max(1, round({1: 0.1, 2: 0.2, 3: 0.4}[severity] * x.shape[2]))
    half, cut = x.shape[2] // 2, np.zeros_like(x)
    if x[:, :, :half].sum() >= x[:, :, x.shape[2] - half :].sum():
        cut[:, :, :-lost] = x[:, :, lost:]
    else:
        cut[:, :, lost:] = x[:, :, :-lost]
    return cut


def two_films(x: Values, _: Recorded, __: int, ___: np.random.Generator) -> Values:
    """The picture twice side by side, squeezed to the same extent."""
    _, high, wide = x.shape
    narrow = resized(x, (high, -(-wide // 2)))
    return np.concatenate([narrow, narrow], axis=2)[:, :, :wide]


def framed(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """A black frame of 5, 10 and 20 % on all sides."""
    for axis, extent in enumerate(x.shape[1:], 1):
        edge = max(1, round({1: 0.05, 2: 0.1, 3: 0.2}[severity] * extent))
        place = np.moveaxis(x, axis, 0)
        place[:edge] = 0
        place[extent - edge :] = 0
    return x


def white_balance(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """Too warm: more red and less blue, by 10, 25 and 50 %."""
    share = {1: 0.1, 2: 0.25, 3: 0.5}[severity]
    gains = np.array([1 + share, 1, 1 - share], np.float32).reshape(3, 1, 1)
    return np.asarray(np.clip(x * gains, 0, 1).astype(np.float32))


def half_dark(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """Light that falls off to one side, to 60, 30 and 0 %."""
    least = {1: 0.6, 2: 0.3, 3: 0.0}[severity]
    return np.asarray(x * np.linspace(1, least, x.shape[2], dtype=np.float32))


def flare(x: Values, _: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """A bright spot of 10, 20 and 35 % of the extent."""
    radius = {1: 0.1, 2: 0.2, 3: 0.35}[severity] * max(x.shape[1:])
    middle = [draw.uniform(0.2, 0.8) * extent for extent in x.shape[1:]]
    y, across = np.ogrid[: x.shape[1], : x.shape[2]]
    far = (y - middle[0]) ** 2 + (across - middle[1]) ** 2
    return np.asarray(np.minimum(x + np.exp(-far / (2 * (radius / 2) ** 2)), 1).astype(np.float32))


def hairs(x: Values, _: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """3, 10 and 30 dark lines across."""
    for start, end in draw.random(({1: 3, 2: 10, 3: 30}[severity], 2, 2)):
        share = np.linspace(0, 1, 2 * max(x.shape[1:]))[:, None]
        line = (start + share * (end - start)) * (np.array(x.shape[1:]) - 1)
        rows, columns = np.round(line).astype(int).T
        x[:, rows, columns] = 0.1
    return x


def ruler(x: Values, _: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """A light ruler with dark ticks along one side, of 5, 10 and 20 % of the extent."""
    side = np.rot90(x, int(draw.integers(4)), axes=(1, 2))  # a view
    width = max(2, round({1: 0.05, 2: 0.1, 3: 0.2}[severity] * side.shape[1]))
    side[:, :width] = 0.9
    side[:, : width // 2, :: max(4, side.shape[2] // 20)] = 0.1
    return x


_once, _graded, _unrelated = makers(
    seen=lambda x, _: x / np.float32(LARGEST),  # within 0 and 1
    stored=lambda x, _: np.clip(np.round(x * LARGEST), 0, LARGEST),
)
ANY = (
    _once("inverted", "light and dark exchanged", lambda x, *_: 1 - x),
    _once(
        "rotated-90",
        "rotated by 90°",
        lambda x, *_: resized(np.rot90(x, axes=(1, 2)).copy(), x.shape[1:]),
    ),
    _once("upside-down", "rotated by 180°", lambda x, *_: x[:, ::-1, ::-1].copy()),
    _once("mirrored", "mirrored", lambda x, *_: x[:, :, ::-1].copy()),
    _graded("off-centre", "off centre", off_centre),
    _graded("blurred", "out of focus", blurred),
    _graded(
        "darker",
        "too dark (gamma)",
        lambda x, _, severity, __: x ** np.float32((1.5, 2.0, 3.0)[severity - 1]),
    ),
    _graded("over-exposed", "over-exposed", over_exposed),
    _graded(
        "depth-mistaken",
        "fewer bits read as 16",
        lambda x, _, severity, __: x / np.float32(2 * 2**severity),
    ),
    _graded("part-lost", "lower part lost", part_lost),
    _graded("low-resolution", "low resolution", low_resolution),
    _graded("noisy", "noise", noisy),
    _graded("framed", "black frame", framed),
    _unrelated(
        "white-noise",
        "nothing but noise (positive control)",
        lambda x, _, __, draw: draw.random(x.shape, np.float32),
    ),
    _unrelated("brown-noise", "nothing but smooth noise", brown_noise(0.2)),
    _unrelated("text", "letters", text),
)
GREY = (
    _graded("pectoral-cut-off", "side of the chest wall lost", chest_wall_lost),
    _once("two-films", "two films in one", two_films),
)
COLOUR = (
    _once("channels-reversed", "red and blue exchanged", lambda x, *_: x[::-1].copy()),
    _graded("white-balance", "wrong white balance", white_balance),
    _graded("half-dark", "one side dark", half_dark),
    _graded("flare", "lens flare", flare),
    _graded("hairs", "hairs", hairs),
    _graded("ruler", "ruler along one side", ruler),
)
BY_CHANNELS = {1: GREY, 3: COLOUR}
COMPRESSED = _graded("compressed", "JPEG blocks", compressed)


def faults_of(signal: Signal) -> tuple[Fault, ...]:
    channels, *extents = signal.stored_shape
    faults = (*ANY, *BY_CHANNELS.get(channels, ()))
    return (*faults, COMPRESSED) if channels in BY_CHANNELS and min(extents) >= BLOCKS else faults
