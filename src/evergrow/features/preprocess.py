"""Preprocessing: from a decoded image to the input tensor of a backbone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.core.record import from_values, to_values
from evergrow.core.validation import check_choice, check_integer, check_number

if TYPE_CHECKING:
    from PIL.Image import Image

CropMode = Literal["center", "squash", "border"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_TIMM_CROP_FRACTION = 0.875  # of images that are resized to 256 for 224 pixels

_MAX_STORED_SIDE = 4096
"""Largest side of images in a file: three times the input of any backbone."""

_RESIZED_LIMIT = 2**26
"""If resizing would give more pixels, as for a strip, only the crop is computed."""


@lru_cache(64)
@torch.inference_mode(False)
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers per channel as a float32 tensor (3, 1, 1) on a device.

    The copy is cached, since copying to a GPU waits for its queue.
    """
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop, scale to [0, 1] and normalise images.

    The settings are stored with the backbone and in model files.

    Parameters
    ----------
    size : tuple of int, default=(224, 224)
        Height and width of the result.
    resize : tuple of int, default=(256, 256)
        Height and width before the crop.
    crop_mode : {"center", "squash", "border"}, default="center"
        ``"center"`` resizes the shorter side and crops the centre. ``"squash"`` resizes
        both sides and ignores the aspect ratio. ``"border"`` resizes the longer side
        and pads with the mean colour.
    interpolation : str, default="bicubic"
        Pillow's resampling filter, with antialiasing.
    mean, std : tuple of float
        Mean and standard deviation per channel for normalising pixels in [0, 1]. By
        default those of ImageNet.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import Preprocessing, decode_image
    >>> image = decode_image(np.zeros((300, 400, 3), dtype=np.uint8))
    >>> tuple(Preprocessing.pilot()(image).shape)
    (3, 224, 224)
    >>> pilot = Preprocessing.pilot()
    >>> Preprocessing.from_dict(pilot.to_dict()) == pilot
    True
    """

    size: tuple[int, int] = (224, 224)
    resize: tuple[int, int] = (256, 256)
    crop_mode: CropMode = "center"
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name, length in (("size", 2), ("resize", 2), ("mean", 3), ("std", 3)):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or len(value) != length:
                raise ParameterError(
                    f"{name} must have {length} numbers, got {value!r}"
                )
            for part in value:
                if length == 2:
                    check_integer(name, part, high=65536)
                else:
                    check_number(name, part, low=0, low_open=name == "std")
            number = int if length == 2 else float
            object.__setattr__(self, name, tuple(map(number, value)))
        check_choice("crop_mode", self.crop_mode, get_args(CropMode))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))

    @classmethod
    def pilot(cls, size: int = 224, resize: int | None = None) -> Self:
        """Return the preprocessing of published continual-learning results.

        It gives pixels in [0, 1] without normalisation.

        Parameters
        ----------
        size : int, default=224
            Height and width of the result.
        resize : int, optional
            Length of the shorter side before the crop. By default 8/7 of `size`, that
            is 256 for 224. With `size` itself, as for CIFAR, squares are not cropped.
        """
        check_integer("size", size)
        if resize is None:
            resize = round(size * 256 / 224)
        return cls(
            (size, size), (resize, resize), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
        )

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Self:
        """Convert the result of ``timm.data.resolve_model_data_config(model)``.

        It must have ``input_size``, ``mean`` and ``std``. ``crop_pct``, ``crop_mode``
        and ``interpolation`` have timm's defaults.
        """
        _, height, width = config["input_size"]
        crop_fraction = config.get("crop_pct") or _TIMM_CROP_FRACTION
        resize = (math.floor(height / crop_fraction), math.floor(width / crop_fraction))
        mode: Any = config.get("crop_mode") or "center"
        if mode not in get_args(CropMode):
            mode = "center"
        interpolation: Any = config.get("interpolation") or "bilinear"
        return cls(
            (height, width), resize, mode, interpolation, config["mean"], config["std"]
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the values that :meth:`to_dict` returned. Unknown fields are ignored.

        Raises
        ------
        FileFormatError
            If a field is missing or out of range. Sizes from files are bounded to limit
            memory.
        """
        made = from_values(cls, values, "preprocessing")
        missing = {item.name for item in fields(cls)} - {*values}
        if missing:
            raise FileFormatError(
                f"preprocessing lacks {sorted(missing)}; it is damaged"
            )
        if max(made.size) > _MAX_STORED_SIDE:
            raise FileFormatError(
                f"preprocessing must give images of at most {_MAX_STORED_SIDE} pixels, "
                f"got {made.size}"
            )
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values for JSON."""
        return dict(to_values(self))

    def for_view(self, size: int, whole: int) -> Self:
        """Return the preprocessing of another view.

        Parameters
        ----------
        size : int
            Height and width of the result.
        whole : int
            Size that images are resized for before the central `size` pixels are
            cropped. A larger one than `size` zooms in. A smaller one includes some of
            the border that the network's own view crops.

        Raises
        ------
        ParameterError
            If the view is larger than the image.

        Examples
        --------
        >>> from evergrow.features import Preprocessing
        >>> Preprocessing().for_view(320, 320).resize
        (365, 365)
        >>> Preprocessing().for_view(224, 252).resize
        (288, 288)
        """
        height, width = (int(part * whole / self.size[0]) for part in self.resize)
        if min(height, width) < size:
            raise ParameterError(
                "zoom must not show more than the whole image, as "
                f"{size}of{whole} does: take at least "
                f"{size}of{math.ceil(size * self.size[0] / min(self.resize))}"
            )
        return replace(self, size=(size, size), resize=(height, width))

    def cuts(self) -> list[tuple[Preprocessing, slice]]:
        """Return the preprocessing of each view and its columns in the result.

        There is a single view here; :class:`ViewStack` has several.
        """
        return [(self, slice(0, self.size[1]))]

    def __call__(self, image: Image) -> Tensor:
        """Convert an image in RGB to a float32 tensor (3, height, width).

        Parameters
        ----------
        image : PIL.Image.Image
            From :func:`decode_image`.
        """
        return self.normalised(self.pixels(image).contiguous())

    def pixels(self, image: Image) -> Tensor:
        """Resize and crop an image in RGB. Return its uint8 pixels (3, height, width).

        Workers send these, since they are a quarter of the size of the final tensor.
        :meth:`normalised` completes them on the backbone's device.
        """
        if getattr(image, "mode", None) != "RGB":
            raise InputError(
                "image must be a PIL image in RGB (see decode_image), got "
                f"{getattr(image, 'mode', image)!r}"
            )
        from PIL import Image as PILImage

        resample = PILImage.Resampling[self.interpolation.upper()]
        height, width = self._resized_size(image.height, image.width)
        covers_crop = height >= self.size[0] and width >= self.size[1]
        if covers_crop and self.window(image.height, image.width) is None:
            return to_bytes(self._resize_crop(image, height, width, resample))
        if (width, height) != image.size:
            image = image.resize((width, height), resample)
        if not covers_crop:
            image = self._pad(image)
        return to_bytes(image.crop(self._crop_box(image.height, image.width)))

    def _resize_crop(
        self, image: Image, height: int, width: int, resample: Any
    ) -> Image:
        """Resize only the part of an image that is cropped.

        The whole resized image of height and width would be huge for a strip. Pixels
        differ slightly from the result of resizing everything.
        """
        across = image.width / width
        down = image.height / height
        left, top, right, bottom = self._crop_box(height, width)
        box = (left * across, top * down, right * across, bottom * down)
        return image.resize(self.size[::-1], resample, box=box)

    def _pad(self, image: Image) -> Image:
        """Put an image in the centre of a background of at least the crop's size.

        The background has the mean colour in the mode ``"border"``, else it is black.
        """
        from PIL import Image as PILImage

        fill: tuple[int, ...] = (0, 0, 0)
        if self.crop_mode == "border":
            fill = tuple(round(255 * value) for value in self.mean)
        height = max(self.size[0], image.height)
        width = max(self.size[1], image.width)
        background = PILImage.new("RGB", (width, height), fill)
        corner = ((width - image.width) // 2, (height - image.height) // 2)
        background.paste(image, corner)
        return background

    def normalised(self, pixels: Tensor) -> Tensor:
        """Scale and normalise uint8 pixels (..., 3, height, width) to float32.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from evergrow.features import Preprocessing, decode_image
        >>> own = Preprocessing()
        >>> image = decode_image(np.full((300, 400, 3), 99, dtype=np.uint8))
        >>> torch.equal(own.normalised(own.pixels(image)), own(image))
        True
        """
        result = pixels / 255
        if any(self.mean) or any(value != 1 for value in self.std):
            channels: Callable[..., Tensor] = _channels
            if torch.compiler.is_compiling():
                channels = _channels.__wrapped__  # without the cache
            result.sub_(channels(self.mean, result.device))
            result.div_(channels(self.std, result.device))
        return result

    def window(
        self, height: int, width: int
    ) -> tuple[tuple[int, int], int, int] | None:
        """Return where the crop lies in the resized image, in pixels.

        The result is None if the image must be padded, or is a strip of which only the
        crop is computed.

        Parameters
        ----------
        height, width : int
            Size of the image.

        Returns
        -------
        resized : tuple of int
            Height and width of the resized image.
        top, left : int
            First row and column of the crop.
        """
        resized = self._resized_size(height, width)
        if (
            resized[0] < self.size[0]
            or resized[1] < self.size[1]
            or resized[0] * resized[1] > _RESIZED_LIMIT
        ):
            return None
        left, top, _, _ = self._crop_box(*resized)
        return resized, top, left

    def coordinates(
        self, height: int, width: int, shape: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return where rows and columns of an image lie in the result, in pixels.

        Pixels of the image that the crop leaves out have coordinates below -0.5, or of
        at least the size minus 0.5.

        Parameters
        ----------
        height, width : int
            Size of the image.
        shape : tuple of int, optional
            Number of rows and columns to return, evenly spaced over the image. By
            default every pixel.

        Returns
        -------
        rows : ndarray of shape (height,)
            Row in the result of each row of the image.
        columns : ndarray of shape (width,)
            Column in the result of each column of the image.

        Examples
        --------
        >>> from evergrow.features import Preprocessing
        >>> rows, columns = Preprocessing((2, 2), (2, 2)).coordinates(4, 8)
        >>> rows.tolist()
        [-0.25, 0.25, 0.75, 1.25]
        >>> columns[2:6].tolist()
        [-0.25, 0.25, 0.75, 1.25]
        """
        counts = shape or (height, width)
        resized = self._resized_size(height, width)
        padded = [
            max(part, size) for part, size in zip(resized, self.size, strict=True)
        ]
        left, top, _, _ = self._crop_box(*padded)
        found = []
        for count, part, whole, start in zip(
            counts, resized, padded, (top, left), strict=True
        ):
            centres = (np.arange(count) + 0.5) * part / count - 0.5
            found.append(centres + (whole - part) // 2 - start)
        return found[0], found[1]

    def _crop_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the central crop of a resized image."""
        top = round((height - self.size[0]) / 2.0)
        left = round((width - self.size[1]) / 2.0)
        return left, top, left + self.size[1], top + self.size[0]

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the resized height and width, rounded as timm and torchvision do."""
        if self.crop_mode == "squash":
            return self.resize
        if self.crop_mode == "center" and self.resize[0] == self.resize[1]:
            short = self.resize[0]
            long = int(short * max(height, width) / min(height, width))
            if height <= width:
                return (short, long)
            return (long, short)
        ratios = (height / self.resize[0], width / self.resize[1])
        if self.crop_mode == "border":
            ratio = max(ratios)
        else:
            ratio = min(ratios)
        return max(round(height / ratio), 1), max(round(width / ratio), 1)


@dataclass(frozen=True)
class ViewStack(Preprocessing):
    """Preprocessing of several views, which lie side by side in one tensor.

    Parameters
    ----------
    parts : tuple of Preprocessing
        Preprocessing of each view. Rows below smaller views are 0.

    Examples
    --------
    >>> from evergrow.features.preprocess import Preprocessing, stack_views
    >>> stack = stack_views(Preprocessing(), (None, (320, 320)))
    >>> stack.size, [columns for _, columns in stack.cuts()]
    ((320, 544), [slice(0, 224, None), slice(224, 544, None)])
    """

    parts: tuple[Preprocessing, ...] = ()

    def cuts(self) -> list[tuple[Preprocessing, slice]]:
        """Return the preprocessing and the columns of each view."""
        ends = np.cumsum([part.size[1] for part in self.parts]).tolist()
        return [
            (part, slice(end - part.size[1], end))
            for part, end in zip(self.parts, ends, strict=True)
        ]

    def pixels(self, image: Image) -> Tensor:
        """Return the bytes (3, height, width) of all views of an image."""
        # Channels-last in memory, as images are.
        stack = torch.zeros(*self.size, 3, dtype=torch.uint8).permute(2, 0, 1)
        for part, columns in self.cuts():
            stack[:, : part.size[0], columns] = part.pixels(image)
        return stack

    def normalised(self, pixels: Tensor) -> Tensor:
        """Scale and normalise uint8 pixels, each view as its network needs it."""
        scales = {(part.mean, part.std) for part in self.parts}
        if len(scales) == 1:
            return super().normalised(pixels)
        views = [part.normalised(pixels[..., columns]) for part, columns in self.cuts()]
        return torch.cat(views, dim=-1)

    def window(
        self, height: int, width: int
    ) -> tuple[tuple[int, int], int, int] | None:
        """Return the window of the first view, or None if any view has none.

        None says that the image cannot be prepared by resizing and cropping alone.
        """
        windows = [part.window(height, width) for part in self.parts]
        return None if None in windows else windows[0]


@lru_cache(64)
def stack_views(
    own: Preprocessing, views: tuple[tuple[int, int] | None, ...]
) -> Preprocessing:
    """Return the preprocessing of some views, side by side and without repetitions.

    One view gives its own preprocessing, several a :class:`ViewStack`.

    Parameters
    ----------
    own : Preprocessing
        Preprocessing of the network's own view.
    views : tuple of (int, int) or None
        Arguments of :meth:`Preprocessing.for_view`. None is the network's own view.
    """
    return _side_by_side(
        own if view is None else own.for_view(*view) for view in dict.fromkeys(views)
    )


@lru_cache(64)
def stack_networks(transforms: tuple[Preprocessing, ...]) -> Preprocessing:
    """Return the preprocessing of all views of several networks, side by side."""
    return _side_by_side(
        part for transform in transforms for part, _ in transform.cuts()
    )


def _side_by_side(views: Iterable[Preprocessing]) -> Preprocessing:
    """Return a :class:`ViewStack` of views, or the view itself if there is one."""
    parts = tuple(views)
    if len(parts) == 1:
        return parts[0]
    size = (max(part.size[0] for part in parts), sum(part.size[1] for part in parts))
    return ViewStack(**{**vars(parts[0]), "size": size, "parts": parts})


def to_bytes(image: Image) -> Tensor:
    """Return the uint8 pixels (3, height, width) of an image in RGB, as a copy."""
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)


PRESETS: dict[str, Callable[[Preprocessing], Preprocessing]] = {
    "timm": lambda own: own,
    "pilot": lambda own: Preprocessing.pilot(_square(own, "pilot")),
    "pilot-cifar": lambda own: Preprocessing.pilot(
        _square(own, "pilot-cifar"), own.size[0]
    ),
}
"""Presets by name: functions of a model's own preprocessing.

The pilot presets are those of published continual-learning results.
"""


def _square(own: Preprocessing, preset: str) -> int:
    """Return the side of square images, or raise :class:`ParameterError`."""
    if own.size[0] != own.size[1]:
        raise ParameterError(
            "preset must be 'timm' for a model whose images are not square, got "
            f"{preset!r}"
        )
    return own.size[0]
