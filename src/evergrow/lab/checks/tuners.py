"""Conformance suite for tuners, on every supported backbone.

``run_tuner_checks("adapter")`` runs it on a registered tuner. ``iter_tuner_checks()``
yields every registered tuner on every backbone with every check, for a test runner.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.loop import training_mode
from evergrow.adapt.tuners import (
    TUNERS,
    Tuner,
    create_tuner,
    restore_tuner,
    tuners_of,
)
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.core.errors import EvergrowError, ParameterError
from evergrow.core.record import read_record, write_record
from evergrow.core.registry import Registry
from evergrow.core.seeding import borrow_global_generators, generator
from evergrow.features import hash_weights
from evergrow.lab.checks.inputs import expect_raises
from evergrow.lab.checks.properties import expect
from evergrow.lab.checks.suite import Case, CheckFailure, CheckResult

ModelFactory = Callable[[], nn.Module]

SETTINGS: dict[str, dict[str, Any]] = {
    "adapter": {"bottleneck": 8},
    "lora": {"rank": 4},
    "sdlora": {"rank": 4},
    "vpt-deep": {"tokens": 3},
    "vpt-shallow": {"tokens": 3},
}
"""Settings for the checks, in addition to the defaults."""


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    # timm draws initial weights from the global generator, which must stay unchanged.
    with borrow_global_generators():
        torch.default_generator.manual_seed(0)
        model: nn.Module = timm.create_model(name, **options)
    return model.eval()


_SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "num_heads": 3,
    "num_classes": 5,
}

BACKBONES: dict[str, ModelFactory] = {
    "vit": lambda: _timm("vit_tiny_patch16_224", depth=3, **_SMALL),
    "dinov2": lambda: _timm(
        "vit_small_patch14_reg4_dinov2", depth=2, init_values=0.5, **_SMALL
    ),
    # With a classifier, which starts near zero here, gradients would almost vanish.
    "eva": lambda: _timm(
        "eva02_tiny_patch14_224", depth=2, **{**_SMALL, "num_classes": 0}
    ),
    # Residual branches usually start at zero, so tuners in them would get no gradient.
    "resnet": lambda: _timm("test_resnet", num_classes=5, zero_init_last=False),
}
"""Small backbones with random weights.

They cover a plain transformer, layer scale with registers, rotary embeddings, and a
network without transformer blocks.
"""


@dataclass(frozen=True)
class Setup:
    """A tuner and a backbone to check.

    Parameters
    ----------
    tuner : str
        Name of the tuner.
    model : callable
        Creates the backbone, with the same weights every time, in evaluation mode.
    settings : dict
        Settings of the tuner.
    shape : tuple of int
        Shape of a batch of images.
    """

    tuner: str
    model: ModelFactory
    settings: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 3, 32, 32)

    def images(self) -> Tensor:
        """Return the images of the checks."""
        return torch.randn(self.shape, generator=generator(0, "tuner checks", "images"))

    def backward(self, answer: Tensor) -> None:
        """Backpropagate a loss in which every output has its own weight."""
        stream = generator(0, "tuner checks", "loss")
        weights = torch.randn(answer.shape, generator=stream)
        torch.autograd.backward((answer * weights.to(answer)).sum())

    def tuned(self, seed: int = 0, shake: bool = True) -> tuple[nn.Module, Tuner]:
        """Return a model and its tuner, with shaken parameters by default."""
        model = self.model()
        tuner = create_tuner(self.tuner, model, seed=seed, **self.settings)
        if shake:
            shake_parameters(tuner, seed)
        return model, tuner


def shake_parameters(tuner: Tuner, seed: int = 0) -> None:
    """Perturb all parameters of a tuner, because many start at zero without effect."""
    source = generator(seed, "tuner checks", "shake")
    with torch.no_grad():
        for parameter in tuner.parameters():
            noise = 0.1 * torch.randn(parameter.shape, generator=source)
            parameter.add_(noise.to(parameter))


_ZERO = "prompts start at zero, as published; std=0.02 has the property"

TUNER_OPT_OUTS: dict[tuple[str, str], str] = {
    ("vpt-deep", "start_is_named_by_the_seed"): _ZERO,
    ("vpt-shallow", "start_is_named_by_the_seed"): _ZERO,
}
"""Checks that a tuner need not pass, each with the reason."""


TUNER_CHECKS: Registry[Callable[[Setup], None]] = Registry("tuner check")
"""Checks by name.

Each takes a :class:`Setup` and raises :class:`CheckFailure` or :class:`CheckSkipped`.
"""


def _expect_equal(a: Tensor, b: Tensor, subject: str) -> None:
    if torch.equal(a, b):
        return
    gap = float("nan")
    if a.shape == b.shape:
        gap = float((a.detach() - b.detach()).abs().max())
    raise CheckFailure(f"{subject} must be equal bit for bit, got a gap of {gap:.3g}")


def _expect_close(a: Tensor, b: Tensor, subject: str, tolerance: float) -> None:
    gap = float((a.detach() - b.detach()).abs().max() / b.detach().abs().max())
    expect(
        gap <= tolerance,
        f"{subject} must agree to {tolerance:g}, got a relative gap of {gap:.3g}",
    )


@TUNER_CHECKS.register("disabled_is_the_base_model")
def disabled_is_the_base_model(setup: Setup) -> None:
    """Require that a disabled tuner has no effect and an enabled one has some."""
    images = setup.images()
    base = setup.model()
    model, tuner = setup.tuned()
    with torch.no_grad():
        expected = base(images)
        tuned = model(images)
        expect(
            not torch.equal(tuned, expected),
            "an enabled tuner must change the output of the model",
        )
        with tuner.disable():
            _expect_equal(model(images), expected, "a disabled tuner and the base")
        _expect_equal(model(images), tuned, "before and after disabling in a block")
        tuner.disable()
        _expect_equal(model(images), expected, "a disabled tuner and the base model")
        with tuner.enable():
            _expect_equal(model(images), tuned, "enabled in a block and before")
        _expect_equal(model(images), expected, "after enabling in a block")


@TUNER_CHECKS.register("removed_is_the_base_model")
def removed_is_the_base_model(setup: Setup) -> None:
    """Require that removal restores modules, hooks, flags, weights and output."""
    model = setup.model()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    before = _module_attributes(model)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    digest = hash_weights(model)
    expected = model(setup.images())
    tuner = create_tuner(setup.tuner, model, **setup.settings)
    expect(
        hash_weights(model) == digest,
        "attaching a tuner must keep the names and values of the model's state",
    )
    shake_parameters(tuner)
    model(setup.images())
    tuner.remove()
    expect(
        _module_attributes(model) == before,
        "removal must leave the same modules with the same attributes",
    )
    expect(
        not any(_hooks(part) for part in model.modules()), "removal must leave no hooks"
    )
    expect(
        [p.requires_grad for p in model.parameters()] == flags,
        "removal must restore requires_grad",
    )
    expect(not frozen.requires_grad, "removal must keep frozen parameters frozen")
    expect(hash_weights(model) == digest, "removal must leave the weights unchanged")
    expect(tuners_of(model) == [], "removal must leave no tuner on the model")
    _expect_equal(model(setup.images()), expected, "a removed tuner and the base")


def _module_attributes(model: nn.Module) -> list[tuple[str, int, list[str]]]:
    return [
        (name, id(part), sorted(part.__dict__)) for name, part in model.named_modules()
    ]


def _hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks)


@TUNER_CHECKS.register("save_load_equal")
def save_load_equal(setup: Setup) -> None:
    """Require that a file restores a tuner exactly, and only on a matching model."""
    model, tuner = setup.tuned()
    images = setup.images()
    expected = model(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuner.safetensors"
        write_record(path, tuner.saved())
        _expect_equal(
            _loaded(setup, path)(images),
            expected,
            "a saved tuner on a new model and the original",
        )
        size = sum(tensor.nbytes for tensor in tuner.state_dict().values())
        expect(
            path.stat().st_size < size + 40_000,
            "the file must contain the parameters of the tuner only",
        )
        narrow = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
        expect_raises(
            EvergrowError,
            lambda: restore_tuner(read_record(SavedTuner, path), narrow),
            "loading on another architecture",
        )
    state = {name: tensor.clone() for name, tensor in tuner.state_dict().items()}
    other, fresh = setup.tuned(seed=1)
    fresh.load_state_dict(state)
    _expect_equal(other(images), expected, "a tuner with the state of another")


def _loaded(setup: Setup, path: Path) -> nn.Module:
    model = setup.model()
    restore_tuner(read_record(SavedTuner, path), model)
    return model


@TUNER_CHECKS.register("only_the_tuner_gets_gradients")
def only_the_tuner_gets_gradients(setup: Setup) -> None:
    """Require gradients for all parameters of the tuner and none of the backbone."""
    model, tuner = setup.tuned()
    total = tuner.n_trainable
    expect(
        total == sum(p.numel() for p in tuner.parameters()),
        "trainable counts must add up to the total",
    )
    setup.backward(model(setup.images()))
    missing = [
        name
        for name, p in tuner.named_parameters()
        if p.grad is None or not bool(p.grad.any())
    ]
    expect(
        not missing,
        f"every parameter of the tuner must get a gradient, got none for {missing}",
    )
    touched = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None or p.requires_grad
    ]
    expect(
        not touched,
        f"no parameter of the backbone may get a gradient, got one for {touched}",
    )
    tuner.requires_grad_(False)
    expect(
        not model(setup.images()).requires_grad, "a frozen tuner must need no gradient"
    )
    expect(tuner.n_trainable == 0, "a frozen tuner must count no trainable parameter")
    tuner.requires_grad_(True)
    expect(tuner.n_trainable == total, "an unfrozen tuner must count all again")


@TUNER_CHECKS.register("training_leaves_the_backbone_alone")
def training_leaves_the_backbone_alone(setup: Setup) -> None:
    """Require that training steps change the tuner and no bit of the backbone."""
    model, tuner = setup.tuned()
    digest = hash_weights(model)
    before = [p.detach().clone() for p in tuner.parameters()]
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.1, momentum=0.9)
    with borrow_global_generators(), training_mode(model):
        torch.default_generator.manual_seed(0)
        modes = [part.training for part in model.modules()]
        for _ in range(2):
            optimizer.zero_grad()
            setup.backward(model(setup.images()))
            optimizer.step()
        expect(
            modes == [part.training for part in model.modules()],
            "a pass must leave all parts in their mode",
        )
    moved = [not torch.equal(old, new) for old, new in zip(before, tuner.parameters())]
    expect(all(moved), "a step must change every parameter of the tuner")
    expect(
        hash_weights(model) == digest,
        "a step must not change the backbone's weights or statistics",
    )


@TUNER_CHECKS.register("evaluation_is_repeatable")
def evaluation_is_repeatable(setup: Setup) -> None:
    """Require that in evaluation mode equal images give equal outputs in any batch."""
    model, tuner = setup.tuned()
    images = setup.images()
    with torch.no_grad():
        first = model(images)
        _expect_equal(model(images), first, "two passes in evaluation mode")
        one_by_one = torch.cat([model(image[None]) for image in images])
        _expect_close(one_by_one, first, "images one by one and in a batch", 1e-4)
        tuner.eval()
        _expect_equal(model(images), first, "a tuner in evaluation mode")


@TUNER_CHECKS.register("start_is_named_by_the_seed")
def start_is_named_by_the_seed(setup: Setup) -> None:
    """Require that the initial parameters depend on the seed only."""
    state = torch.random.get_rng_state()
    _, first = setup.tuned(0, shake=False)
    _, again = setup.tuned(0, shake=False)
    _, other = setup.tuned(1, shake=False)
    expect(
        torch.equal(torch.random.get_rng_state(), state),
        "creating a tuner must not use the global generator",
    )
    for name, tensor in first.state_dict().items():
        subject = f"{name} of two tuners with the same seed"
        _expect_equal(again.state_dict()[name], tensor, subject)
    different = any(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters())
    )
    expect(different, "another seed must give other parameters")


@TUNER_CHECKS.register("several_coexist")
def several_coexist(setup: Setup) -> None:
    """Require that tuners on one model do not interact, and can go in any order."""
    images = setup.images()
    model = setup.model()
    expected = model(images)
    flags = [p.requires_grad for p in model.parameters()]
    tuners = []
    alone = []
    for seed in range(3):
        single, tuner = setup.tuned(seed)
        alone.append(single(images).detach())
        tuners.append(create_tuner(setup.tuner, model, seed=seed, **setup.settings))
        shake_parameters(tuners[-1], seed)
        tuners[-1].disable()
    for tuner, answer in reversed(list(zip(tuners, alone))):
        with tuner.enable():
            _expect_equal(model(images), answer, "a tuner among others and alone")
    for tuner in tuners:
        tuner.enable()
    model(images)
    tuners[1].remove()
    tuners[0].remove()
    expect(
        not any(p.requires_grad for p in model.parameters()),
        "the backbone must stay frozen until the last tuner is removed",
    )
    _expect_equal(model(images), alone[2], "the last tuner and the same one alone")
    tuners[2].remove()
    _expect_equal(model(images), expected, "the model without tuners and the base")
    expect(
        [p.requires_grad for p in model.parameters()] == flags,
        "removing the last tuner must restore requires_grad",
    )


@TUNER_CHECKS.register("precisions")
def precisions(setup: Setup) -> None:
    """Require float64 close to float32, and working autocast to bfloat16."""
    images = setup.images()
    model, _ = setup.tuned()
    expected = model(images).detach()
    wide = setup.model().double()
    tuner = create_tuner(setup.tuner, wide, **setup.settings)
    shake_parameters(tuner)
    expect(
        {p.dtype for p in tuner.parameters()} == {torch.float64},
        "a tuner must have the dtype of its backbone",
    )
    _expect_close(wide(images.double()).float(), expected, "float64 and float32", 1e-4)
    model, tuner = setup.tuned()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = model(images)
        setup.backward(answer.float())
    _expect_close(answer.detach().float(), expected, "autocast and float32", 0.2)
    gradients = [p.grad for p in tuner.parameters() if p.grad is not None]
    expect(
        all(bool(torch.isfinite(gradient).all()) for gradient in gradients),
        "gradients must be finite",
    )


@TUNER_CHECKS.register("bad_settings_are_refused")
def bad_settings_are_refused(setup: Setup) -> None:
    """Require that an unknown setting raises and leaves the model unchanged."""
    model = setup.model()
    digest = hash_weights(model)
    flags = [p.requires_grad for p in model.parameters()]
    expect_raises(
        ParameterError,
        lambda: create_tuner(setup.tuner, model, no_such_setting=1),
        "an unknown setting",
    )
    expect(
        hash_weights(model) == digest and tuners_of(model) == [],
        "a rejected setting must leave the model unchanged",
    )
    expect(
        [p.requires_grad for p in model.parameters()] == flags,
        "a rejected setting must not freeze the model",
    )


def iter_tuner_checks(
    tuners: Iterable[str] | None = None,
    backbones: Iterable[str] | None = None,
    checks: Iterable[str] | None = None,
) -> Iterator[Case]:
    """Yield every registered tuner on every backbone with every check.

    Parameters
    ----------
    tuners, backbones, checks : iterable of str, optional
        Names. The default is all of them, with backbones from :data:`BACKBONES`.

    Examples
    --------
    >>> from evergrow.lab.checks.tuners import iter_tuner_checks
    >>> [str(case) for case in iter_tuner_checks(["ssf"], ["vit"], ["save_load_equal"])]
    ['ssf-vit-save_load_equal']
    """
    for tuner in tuners or TUNERS.names():
        TUNERS[tuner]  # raises here for an unknown name
        for backbone in backbones or BACKBONES:
            yield from _cases(tuner, backbone, BACKBONES[backbone], checks)


def _cases(
    tuner: str, backbone: str, model: ModelFactory, checks: Iterable[str] | None
) -> Iterator[Case]:
    setup = Setup(tuner, model, SETTINGS.get(tuner, {}))
    for check in checks or TUNER_CHECKS.names():
        yield Case(
            f"{tuner}-{backbone}",
            check,
            setup,
            TUNER_CHECKS[check],
            TUNER_OPT_OUTS.get((tuner, check)),
        )


def run_tuner_checks(
    tuner: str, model: ModelFactory | None = None, checks: Iterable[str] | None = None
) -> list[CheckResult]:
    """Run the suite on one tuner.

    Parameters
    ----------
    tuner : str
        Name of a registered tuner. Register your own with ``TUNERS.register``.
    model : callable, optional
        Creates a backbone for images of 32 by 32, with the same weights every time, in
        evaluation mode. The default is every backbone in :data:`BACKBONES`.
    checks : iterable of str, optional
        Names of checks. The default is all.

    Returns
    -------
    list of CheckResult
        One per backbone and check. Failures are results, not exceptions. Unsupported
        backbones are skipped, with the reason.

    Examples
    --------
    >>> from evergrow.lab.checks.tuners import BACKBONES, run_tuner_checks
    >>> results = run_tuner_checks("lora", BACKBONES["vit"], ["save_load_equal"])
    >>> {result.status for result in results}
    {'passed'}
    """
    if model is None:
        return [case.run() for case in iter_tuner_checks([tuner], None, checks)]
    return [
        case.run()
        for case in _cases(tuner, getattr(model, "__name__", "model"), model, checks)
    ]
