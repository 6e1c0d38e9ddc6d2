"""Detectors against slow formulas, written independently of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brief import train_briefly
from scipy.stats import weibull_min
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

from benchmd_ray.benchmarks.ood.detectors import calibrated, joined
from benchmd_ray.benchmarks.ood.methods import METHODS
from benchmd_ray.benchmarks.ood.methods import neighbours as neighbours_module
from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Bank, Calibration, Head, Seen, finite
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest
from benchmd_ray.errors import BenchmdError

WIDTH, CLASSES = 8, 3


def made(records, seed, *, exclusive=True, shift=0.0, non_negative=False):
    """Features around a centre for each class, a head, and logits of it."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(CLASSES, WIDTH)) * 2
    label = rng.integers(0, CLASSES, records)
    features = centres[label] + rng.normal(size=(records, WIDTH)) + shift
    if non_negative:
        features = np.abs(features)
    head = Head(centres / 2, np.array([0.1, -0.2, 0.3]), exclusive)
    logits = features @ head.weight.T + head.bias
    targets = np.eye(CLASSES, dtype=np.int8)[label]
    if not exclusive:
        targets = (rng.random((records, CLASSES)) < 0.3).astype(np.int8)
    more = {
        "layer 1": features[:, :4].astype(np.float32),
        "pixels": rng.normal(size=(records, 1, 5, 5)).astype(np.float32) + np.float32(shift),
        "odin": rng.random((records, 2, 6)).astype(np.float32) + np.float32(shift),
        "pretrained": features[:, ::-1].astype(np.float32) * 3,
        "mae loss": rng.random((records, 1)).astype(np.float32),
        "dropout logits": rng.normal(size=(records, 4, CLASSES)).astype(np.float32),
    }
    seen = Seen(features.astype(np.float32), logits.astype(np.float32), more)
    return seen, targets, head


@pytest.fixture(autouse=True)
def autoencoders_train_briefly(monkeypatch):
    train_briefly(monkeypatch, steps=60, epochs=5)


@pytest.fixture(params=[True, False], ids=["exclusive", "labels"])
def case(request):
    seen, targets, head = made(120, 0, exclusive=request.param)
    validation, known, _ = made(60, 3, exclusive=request.param)
    return Bank(seen, targets, head, validation, known), made(40, 1, exclusive=request.param)[0]


def scored(name, case):
    bank, seen = case
    method = METHODS[name]
    return method.score(method.fit(bank), seen, bank.head)


def softmax(z):
    e = [math.exp(v - max(z)) for v in z]
    return [v / sum(e) for v in e]


def sigmoid(v):
    return 1 / (1 + math.exp(-v))


def by_record(case, of_classes, of_labels):
    bank, seen = case
    work = of_classes if bank.head.exclusive else of_labels
    return [work([float(v) for v in z], f) for z, f in zip(seen.logits, seen.features, strict=True)]


def binary_entropy(p):
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


FORMULAS = {
    "msp": (
        lambda z, f: -max(softmax(z)),
        lambda z, f: -max(max(sigmoid(v), 1 - sigmoid(v)) for v in z),
    ),
    "max-logit": (lambda z, f: -max(z), lambda z, f: -max(z)),
    "energy": (
        lambda z, f: -math.log(sum(math.exp(v) for v in z)),
        lambda z, f: -sum(math.log(1 + math.exp(v)) for v in z),
    ),
    "entropy": (
        lambda z, f: -sum(p * math.log(p) for p in softmax(z)),
        lambda z, f: sum(binary_entropy(sigmoid(v)) for v in z),
    ),
    "gradnorm": (
        lambda z, f: -sum(map(abs, f)) * sum(abs(p - 1 / len(z)) for p in softmax(z)),
        lambda z, f: -sum(map(abs, f)) * sum(abs(sigmoid(v) - 0.5) for v in z),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_closed_forms_of_logits(name, case):
    np.testing.assert_allclose(scored(name, case), by_record(case, *FORMULAS[name]), rtol=1e-5)


@pytest.fixture
def classes():
    """Of one class a record."""
    seen, targets, head = made(120, 0)
    return Bank(seen, targets, head), made(40, 1)[0]


def test_generalised_entropy(classes):
    expected = [sum((p * (1 - p)) ** 0.1 for p in softmax(z)) for z in classes[1].logits.tolist()]
    np.testing.assert_allclose(scored("gen", classes), expected, rtol=1e-6)


def test_kl_matching_is_the_nearest_of_the_means_of_predicted_classes(classes):
    bank, seen = classes
    own = np.array([softmax(z) for z in bank.seen.logits.tolist()])
    means = [own[own.argmax(axis=1) == k].mean(axis=0) for k in range(CLASSES)]
    expected = [
        min(
            sum(p * math.log(p / m) for p, m in zip(softmax(z), mean, strict=True))
            for mean in means
        )
        for z in seen.logits.tolist()
    ]
    np.testing.assert_allclose(scored("kl-matching", classes), expected, rtol=1e-6)


def test_the_temperature_is_the_best_of_a_grid(case):
    bank, _ = case
    fitted = float(METHODS["temperature"].fit(bank)["temperature"])
    z, y = np.asarray(bank.validation.logits, float), bank.validation_targets

    def loss(t):
        if bank.head.exclusive:
            return -sum(
                math.log(softmax(list(row / t))[int(k.argmax())])
                for row, k in zip(z, y, strict=True)
            )
        own = np.where(y == 1, z, -z) / t
        return sum(math.log1p(math.exp(-v)) for v in own.ravel())

    grid = np.geomspace(0.5, 19, 150)
    best = min(loss(t) for t in grid)
    assert loss(fitted) <= best * (1 + 1e-4)


def test_mahalanobis_has_one_shrunk_covariance(case):
    bank, seen = case
    features = bank.seen.features.astype(float)
    groups = list(bank.groups().values())
    centred = np.concatenate([features[rows] - features[rows].mean(axis=0) for rows in groups])
    precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(centred).covariance_)
    expected = [
        min(
            (x - features[rows].mean(axis=0)) @ precision @ (x - features[rows].mean(axis=0))
            for rows in groups
        )
        for x in seen.features.astype(float)
    ]
    np.testing.assert_allclose(scored("mahalanobis", case), expected, rtol=1e-6)


def test_the_released_variant_has_a_covariance_for_each_class(case):
    bank, seen = case
    features = bank.seen.features.astype(float)
    expected = []
    for x in seen.features.astype(float):
        each = []
        for rows in bank.groups().values():
            own = features[rows]
            centred = own - own.mean(axis=0)
            covariance = centred.T @ centred / len(own) + 1e-5 * np.eye(WIDTH)
            gap = x - own.mean(axis=0)
            each.append(gap @ np.linalg.inv(covariance) @ gap)
        expected.append(min(each))
    np.testing.assert_allclose(scored("mahalanobis-per-class", case), expected, rtol=1e-6)


def test_relative_distance_subtracts_that_to_all(case):
    bank, seen = case
    features = bank.seen.features.astype(float)
    whole = LedoitWolf().fit(features)
    gap = seen.features.astype(float) - features.mean(axis=0)
    overall = np.einsum("ij,jk,ik->i", gap, np.linalg.inv(whole.covariance_), gap)
    expected = scored("mahalanobis", case) - overall
    np.testing.assert_allclose(scored("rmd", case), expected, rtol=1e-6, atol=1e-8)


def test_layers_are_summed_in_units_of_their_own_mean(case):
    bank, seen = case
    parts = []
    for own, other in (
        (bank.seen.more["layer 1"], seen.more["layer 1"]),
        (bank.seen.features, seen.features),
    ):
        inner = Bank(Seen(own, bank.seen.logits), bank.targets, bank.head)
        state = METHODS["mahalanobis"].fit(inner)
        score = METHODS["mahalanobis"].score
        mean = score(state, inner.seen, bank.head).mean()
        parts.append(score(state, Seen(other, seen.logits), bank.head) / mean)
    np.testing.assert_allclose(scored("mahalanobis-layers", case), sum(parts), rtol=1e-6)


def test_the_residual_is_outside_the_space_of_the_largest_directions(case):
    bank, seen = case
    head = bank.head
    origin = -np.linalg.pinv(head.weight) @ head.bias
    moved = bank.seen.features.astype(float) - origin
    _, _, axes = np.linalg.svd(moved, full_matrices=False)
    kept = axes[: WIDTH // 2]
    gap = seen.features.astype(float) - origin
    expected = np.linalg.norm(gap - gap @ kept.T @ kept, axis=1)
    np.testing.assert_allclose(scored("residual", case), expected, rtol=1e-6)
    own = moved - moved @ kept.T @ kept
    alpha = bank.seen.logits.max(axis=1).mean() / np.linalg.norm(own, axis=1).mean()
    vim = alpha * expected + scored("energy", case)
    np.testing.assert_allclose(scored("vim", case), vim, rtol=1e-5, atol=1e-6)


def test_deep_knn_counts_the_kth_of_unit_features(case):
    bank, seen = case
    own, other = (
        f / np.linalg.norm(f, axis=1, keepdims=True) for f in (bank.seen.features, seen.features)
    )
    expected = NearestNeighbors(n_neighbors=12).fit(own).kneighbors(other)[0][:, -1]
    np.testing.assert_allclose(scored("knn", case), expected, rtol=1e-5)


def test_she_takes_correctly_classified_records(classes):
    bank, seen = classes
    guess, label = bank.seen.logits.argmax(axis=1), bank.targets.argmax(axis=1)
    expected = []
    for z, f in zip(seen.logits, seen.features.astype(float), strict=True):
        k = int(z.argmax())
        expected.append(
            -f @ bank.seen.features[(guess == k) & (label == k)].astype(float).mean(axis=0)
        )
    np.testing.assert_allclose(scored("she", classes), expected, rtol=1e-5)


def test_nnguide_weighs_the_energy_by_its_neighbours(case):
    bank, seen = case
    energy = {id(s): -METHODS["energy"].score({}, s, bank.head) for s in (bank.seen, seen)}
    own = [f / np.linalg.norm(f) for f in bank.seen.features.astype(float)]
    expected = []
    for f, e in zip(seen.features.astype(float), energy[id(seen)], strict=True):
        unit = f / np.linalg.norm(f)
        products = sorted(
            (float(w) * float(unit @ o) for o, w in zip(own, energy[id(bank.seen)], strict=True)),
            reverse=True,
        )
        expected.append(-e * sum(products[:10]) / 10)
    np.testing.assert_allclose(scored("nnguide", case), expected, rtol=1e-5)


def test_fdbd_is_the_mean_distance_to_boundaries(classes):
    bank, seen = classes
    mean = bank.seen.features.astype(float).mean(axis=0)
    expected = []
    for z, f in zip(seen.logits.astype(float), seen.features.astype(float), strict=True):
        k = int(z.argmax())
        gaps = [
            abs(z[k] - z[c]) / np.linalg.norm(bank.head.weight[k] - bank.head.weight[c])
            for c in range(CLASSES)
            if c != k
        ]
        expected.append(-np.mean(gaps) / np.linalg.norm(f - mean))
    np.testing.assert_allclose(scored("fdbd", classes), expected, rtol=1e-5)


def test_nci_is_the_part_along_the_predicted_weights(case):
    bank, seen = case
    mean = bank.seen.features.astype(float).mean(axis=0)
    expected = [
        -(f - mean) @ bank.head.weight[int(z.argmax())] / np.linalg.norm(f - mean)
        for z, f in zip(seen.logits, seen.features.astype(float), strict=True)
    ]
    np.testing.assert_allclose(scored("nci", case), expected, rtol=1e-5)


def test_openmax_ranks_the_most_likely_class_first():
    """Fault F8: three classes by hand. The likeliest class is revised with the weight 1."""
    z = np.array([[4.0, 1.0, -1.0]])
    state = {
        "means": np.array([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]]),
        "weibull": np.array([[1.0, 0.0, 1.0]] * 3),
    }
    far = []
    for mean in state["means"]:
        gap = np.linalg.norm(z[0] - mean) / 200
        cosine = 1 - z[0] @ mean / (np.linalg.norm(z[0]) * 5)
        far.append(1 - math.exp(-(gap + cosine)))
    weights = [1.0, 2 / 3, 1 / 3]
    kept = [v * (1 - w * f) for v, w, f in zip(z[0], weights, far, strict=True)]
    unknown = sum(v * w * f for v, w, f in zip(z[0], weights, far, strict=True))
    expected = softmax([*kept, unknown])[-1]
    seen = Seen(np.zeros((1, 2), np.float32), z.astype(np.float32))
    head = Head(np.zeros((3, 2)), np.zeros(3), True)
    np.testing.assert_allclose(METHODS["openmax"].score(state, seen, head), [expected], rtol=1e-6)


@pytest.fixture
def positive():
    seen, targets, head = made(120, 0, non_negative=True)
    return Bank(seen, targets, head), made(40, 1, non_negative=True)[0]


def energies(rows, head):
    return [-math.log(sum(math.exp(v) for v in head.weight @ row + head.bias)) for row in rows]


def test_shaped_features(positive):
    bank, seen = positive
    own, f, head = bank.seen.features.astype(float), seen.features.astype(float), bank.head
    most = np.percentile(own, 90)
    np.testing.assert_allclose(
        scored("react", positive), energies(np.minimum(f, most), head), rtol=1e-5
    )
    mean = head.weight * own.mean(axis=0)
    sparse = Head(np.where(mean > np.percentile(mean, 90), head.weight, 0), head.bias, True)
    np.testing.assert_allclose(scored("dice", positive), energies(f, sparse), rtol=1e-5)
    cut, scaled = [], []
    for row in f:
        kept = sorted(row)[-(len(row) - round(0.65 * len(row))) :]
        large = np.where(row >= kept[0], row, 0)
        cut.append(large * math.exp(row.sum() / large.sum()))
        kept = sorted(row)[-(len(row) - round(0.85 * len(row))) :]
        larger = np.where(row >= kept[0], row, 0)
        scaled.append(row * math.exp(row.sum() / larger.sum()))
    np.testing.assert_allclose(scored("ash", positive), energies(cut, head), rtol=1e-5)
    np.testing.assert_allclose(scored("scale", positive), energies(scaled, head), rtol=1e-5)


def test_image_space_has_a_fixed_thousand_of_the_records(case):
    bank, seen = case
    own, other = (s.more["pixels"].reshape(len(s), -1) for s in (bank.seen, seen))
    found = NearestNeighbors(n_neighbors=8).fit(own).kneighbors(other)[0]
    np.testing.assert_allclose(scored("pixel-knn-1", case), found[:, 0], rtol=1e-5)
    np.testing.assert_allclose(scored("pixel-knn-8", case), found[:, 7], rtol=1e-5)


def test_passes_of_dropout_are_averaged_before_the_entropy(case):
    bank, seen = case
    expected = []
    for members in seen.more["dropout logits"].tolist():
        p = np.mean(
            [softmax(z) if bank.head.exclusive else [sigmoid(v) for v in z] for z in members],
            axis=0,
        )
        if bank.head.exclusive:
            expected.append(-sum(v * math.log(v) for v in p))
        else:
            expected.append(sum(binary_entropy(v) for v in p))
    np.testing.assert_allclose(scored("mc-dropout", case), expected, rtol=1e-5)


def given(near, far, method, state, head):
    """Both kinds together, with what the detector reads of them once for all calibrations."""
    both = joined([near, far])
    if method.once is not None:
        both.more[method.name] = method.once(state, both, head)
    return Calibration(both, np.repeat([False, True], [len(near), len(far)]))


@pytest.mark.parametrize(
    "name", ["binary-classifier", "binary-network", "score-svm", "feature-knn"]
)
def test_detectors_that_learn_tell_what_they_learned(name, classes):
    bank, near = classes
    method = METHODS[name]
    fitted = method.fit(bank)
    own = given(near, made(60, 5, shift=3.0)[0], method, fitted, bank.head)
    other = given(made(50, 11)[0], made(50, 12, shift=3.0)[0], method, fitted, bank.head)
    state = method.calibrate(fitted, own, other, bank.head)
    scores = method.score(state, other.seen, bank.head)
    assert scores[other.out].mean() > scores[~other.out].mean()
    assert ((scores > 0) == other.out).mean() > 0.8
    assert set(fitted) <= set(state)  # what was fitted stays as it was
    again = method.calibrate(fitted, own, other, bank.head)
    np.testing.assert_array_equal(scores, method.score(again, other.seen, bank.head))


def test_a_calibration_takes_the_best_of_the_grid(classes):
    """ODIN, whose grid has one place that tells both kinds apart."""
    bank, near = classes
    method, far = METHODS["odin"], made(60, 5)[0]
    far.more["odin"][:, 0, 4] += 5
    calibration = given(near, far, method, method.fit(bank), bank.head)
    people = [f"patient {number}" for number in range(len(calibration.out))]
    state, threshold = calibrated(method, method.fit(bank), calibration, people, bank)
    assert state["place"].tolist() == [0, 4]
    scores = method.score(state, calibration.seen, bank.head)
    assert ((scores > threshold) == calibration.out).all()
    assert method.fit(bank)["place"].tolist() == [1, 3]  # a temperature of 1000, a step of 0.0014


def test_the_pretraining_is_asked_without_labels(classes):
    bank, seen = classes
    own = bank.seen.more["pretrained"].astype(np.float64)
    covariance = LedoitWolf().fit(own)
    expected = covariance.mahalanobis(seen.more["pretrained"].astype(np.float64))
    np.testing.assert_allclose(scored("pretrained-mahalanobis", classes), expected, rtol=1e-6)
    instead = Bank(Seen(bank.seen.more["pretrained"], bank.seen.logits), bank.targets, bank.head)
    asked = Seen(seen.more["pretrained"], seen.logits)
    np.testing.assert_allclose(
        scored("pretrained-knn", classes), scored("knn", (instead, asked)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("knn", {"neighbours": 3}),
        ("gen", {"exponent": 0.5, "largest": 2}),
        ("react", {"percentile": 50}),
        ("dice", {"kept": 50}),
        ("ash", {"percentile": 30}),
        ("scale", {"percentile": 30}),
        ("residual", {"share": 0.25}),
        ("vim", {"share": 0.25}),
        ("nnguide", {"neighbours": 3}),
        ("nci", {"share": 0.5}),
        ("openmax", {"tail": 5}),
        ("odin", {"temperature": 1.0, "step": 0.005}),
        ("pretrained-knn", {"neighbours": 3}),
    ],
)
def test_hyperparameters_are_part_of_the_state(name, chosen, classes):
    bank, seen = classes
    method = METHODS[name]
    state = {key: np.array(value) for key, value in method.fit(bank, **chosen).items()}
    scores = method.score(state, seen, bank.head)
    assert np.isfinite(scores).all()
    assert (scores != method.score(method.fit(bank), seen, bank.head)).any()


def test_the_nearest_are_those_of_brute_force_also_of_duplicates(monkeypatch):
    """Fault F10: no half precision, no negative squares."""
    monkeypatch.setattr(neighbours_module, "BANK", 64)
    monkeypatch.setattr(neighbours_module, "QUERIES", 17)
    rng = np.random.default_rng(0)
    bank = (rng.normal(size=(500, 6)) + 1000).astype(np.float32)  # far from the origin
    bank[100] = bank[3]
    queries = np.concatenate([bank[:20], (rng.normal(size=(30, 6)) + 1000).astype(np.float32)])
    gaps = queries[:, None].astype(np.float64) - bank[None].astype(np.float64)
    exact = np.sort(np.sqrt((gaps**2).sum(axis=2)), axis=1)[:, :5]
    found = nearest(bank, queries, 5)
    np.testing.assert_array_equal(found, exact)
    assert (found[:20, 0] == 0).all()
    assert found[3, 1] == 0
    assert nearest(bank[:3], queries, 5).shape == (50, 3)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_the_nearest_within_narrow_groups_far_apart_are_exact(spread):
    """Products in float32 cannot tell the records of a group apart."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 16)) * spread * 1e4
    bank, queries = (
        (centres[rng.integers(0, 4, count)] + spread * rng.normal(size=(count, 16))).astype(
            np.float32
        )
        for count in (800, 30)
    )
    queries[0] = bank[7]
    gaps = queries[:, None].astype(np.float64) - bank[None].astype(np.float64)
    exact = np.sort(np.sqrt((gaps**2).sum(axis=2)), axis=1)[:, :5]
    np.testing.assert_array_equal(nearest(bank, queries, 5), exact)


def test_openmax_fits_the_likeliest_weibull_to_the_tail(classes):
    """That of scipy's general search, of distances moved as in the authors' code."""
    bank, _ = classes
    z = bank.seen.logits.astype(float)
    right = z.argmax(axis=1) == bank.targets.argmax(axis=1)
    state = METHODS["openmax"].fit(bank)
    for k, (mean, (shape, place, scale)) in enumerate(
        zip(state["means"], state["weibull"], strict=True)
    ):
        own = z[right & (bank.targets[:, k] == 1)]
        np.testing.assert_allclose(mean, own.mean(axis=0))
        cosine = own @ mean / np.linalg.norm(own, axis=1) / np.linalg.norm(mean)
        tail = np.sort(np.linalg.norm(own - mean, axis=1) / 200 + 1 - cosine)[-20:]
        assert place == pytest.approx(tail[0] - 10_000)
        best = weibull_min.fit(tail - place, shape * 0.9, floc=0, scale=scale)
        assert weibull_min.nnlf((shape, 0, scale), tail - place) <= (
            weibull_min.nnlf(best, tail - place) + 1e-6
        )


@pytest.mark.parametrize("records", [12, 40])
def test_of_few_records_something_is_outside_the_principal_space(records):
    """Else the scale of ViM would be that of rounding."""
    rng = np.random.default_rng(0)
    width = 800  # of which the paper keeps 512
    features = rng.normal(size=(records, width)).astype(np.float32)
    head = Head(rng.normal(size=(2, width)) / 40, np.zeros(2), True)
    logits = (features @ head.weight.T).astype(np.float32)
    targets = np.eye(2, dtype=np.int8)[np.arange(records) % 2]
    state = METHODS["vim"].fit(Bank(Seen(features, logits), targets, head))
    assert state["basis"].shape == (width, width - records // 2)
    assert state["scale"] < 1


ALONE = [
    pytest.param(name, marks=[pytest.mark.slow] if name.startswith("vae") else [])
    for name, method in METHODS.items()
    if method.calibrate is None
]
FEATURES = ("knn", "mahalanobis", "mahalanobis-per-class", "mahalanobis-layers", "gmm",
            "residual", "pixel-knn-1", "pixel-knn-8")  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_every_detector_is_finite_and_blind_to_the_order(name, positive):
    """Also with duplicates, constant features, few records, and records of one class only."""
    method, (bank, seen) = METHODS[name], positive
    order = np.random.default_rng(0).permutation(len(seen))
    state = method.fit(bank)
    scores = method.score(state, seen, bank.head)
    np.testing.assert_allclose(
        method.score(state, seen.at(order), bank.head), scores[order], rtol=1e-9
    )
    rows = np.concatenate(
        [np.flatnonzero(bank.targets[:, 0])[:2], np.flatnonzero(bank.targets[:, 1])[:4]]
    )
    few = bank.seen.at(rows)
    few.features[:, 0] = 1.0
    few.features[-1] = few.features[-2]
    odd = Bank(few, bank.targets[rows], bank.head)
    assert np.isfinite(method.score(method.fit(odd), seen, bank.head)).all()
    one = np.zeros_like(bank.targets)
    one[:, 0] = 1
    only = Bank(bank.seen, one, bank.head, bank.validation, bank.validation_targets)
    assert np.isfinite(method.score(method.fit(only), seen, bank.head)).all()


@pytest.mark.parametrize("name", FEATURES)
def test_what_is_far_away_is_more_out(name, classes):
    bank, seen = classes
    far = made(40, 9, shift=6.0)[0]
    method = METHODS[name]
    state = method.fit(bank)
    assert method.score(state, far, bank.head).min() > np.median(
        method.score(state, seen, bank.head)
    )


def test_a_score_that_is_nan_names_the_record():
    """Fault F10: nothing is filtered."""
    with pytest.raises(BenchmdError, match="knn gives nan for the record r2 and in all 1"):
        finite(np.array([0.0, 1.0, np.nan]), "knn", np.array(["r0", "r1", "r2"]))


def test_probabilities_of_labels_do_not_sum_to_one():
    z = np.array([[0.0, 2.0]])
    np.testing.assert_allclose(probabilities(z, True).sum(axis=1), 1)
    np.testing.assert_allclose(probabilities(z, False), [[0.5, sigmoid(2.0)]])


def test_labels_have_a_group_of_those_without_any():
    seen, _, head = made(6, 0, exclusive=False)
    targets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, -1], [0, 1, 0]], np.int8)
    groups = Bank(seen, targets, head).groups()
    assert {name: rows.tolist() for name, rows in groups.items()} == {
        "0": [0, 1], "1": [1, 5], "none": [2, 3],
    }  # fmt: skip


@pytest.fixture(scope="module")
def pictures():
    """Smooth pictures, and a network that learned them."""
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 3, 12)
    waves = np.sin(grid[None, :, None] + grid[None, None] + rng.uniform(0, 6, (200, 1, 1)))
    made = waves[:, None].astype(np.float32)
    seen = Seen(np.zeros((200, 2), np.float32), np.zeros((200, 2), np.float32), {"pixels": made})
    return Bank(
        seen, np.eye(2, dtype=np.int8)[np.zeros(200, int)], Head(np.eye(2), np.zeros(2), True)
    )


@pytest.mark.parametrize("name", ["autoencoder", "vae", "autoencoder-bce", "vae-bce"])
def test_an_autoencoder_is_scored_by_what_it_is_trained_by(pictures, name):
    """Fault F7: a closed form of its own output, and of no other loss."""
    import torch

    from benchmd_ray.benchmarks.ood.methods.autoencoder import Autoencoder

    method, own = METHODS[name], pictures.seen.more["pixels"]
    state = method.fit(pictures)
    scores = method.score(state, pictures.seen, pictures.head)
    crossed = name.endswith("bce")
    network = Autoencoder((1, 12, 12), variational=name[:3] == "vae", crossed=crossed)
    weights = {
        k[8:]: torch.from_numpy(np.array(v)) for k, v in state.items() if k[:8] == "weights/"
    }
    network.load_state_dict(weights)
    given = torch.from_numpy((own - float(state["centre"])) / float(state["spread"])).float()
    with torch.no_grad():
        mean, log_variance = network.codes(given)
        x = network.decode(mean).reshape(200, *network.least)
        for layer, size, last in zip(
            network.up, [(3, 3), (6, 6), (12, 12)], [0, 0, 1], strict=True
        ):
            x = layer(torch.nn.functional.interpolate(x, size=size))
            x = x if last else torch.nn.functional.elu(x)
        expected = ((x - given) ** 2).mean(dim=(1, 2, 3))
        if crossed:
            assert given.min() == 0
            assert given.max() == 1
            p = torch.sigmoid(x.double())
            expected = -(given * p.log() + (1 - given) * (1 - p).log()).mean(dim=(1, 2, 3))
        if name[:3] == "vae":
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(dim=1)
            expected = expected + kl / 144
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-4)
    noise = np.random.default_rng(1).normal(size=(20, 1, 12, 12)).astype(np.float32)
    far = Seen(np.zeros((20, 2), np.float32), np.zeros((20, 2), np.float32), {"pixels": noise})
    assert method.score(state, far, pictures.head).min() > np.percentile(scores, 95)
    again = method.score(method.fit(pictures), pictures.seen, pictures.head)
    np.testing.assert_array_equal(scores, again)


@pytest.mark.parametrize("name", ["autoencoder-knn-1", "vae-knn-8", "vae-bce-knn-8"])
def test_distances_of_codes(pictures, name):
    method = METHODS[name]
    state = method.fit(pictures)
    scores = method.score(state, pictures.seen, pictures.head)
    assert state["codes"].shape == (200, 64)
    if name.endswith("1"):
        np.testing.assert_allclose(scores, 0, atol=1e-6)  # each is its own nearest
    else:
        assert (scores > 0).all()


def test_autoencoders_take_signals_and_volumes():
    import torch

    from benchmd_ray.benchmarks.ood.methods.autoencoder import Autoencoder

    for shape in ((12, 250), (1, 64, 64), (3, 28, 20), (1, 16, 16, 16)):
        for variational in (False, True):
            network = Autoencoder(shape, variational=variational)
            losses = network.losses(torch.zeros(2, *shape), torch.zeros(2, 64))
            assert losses.shape == (2,)


def test_the_loss_of_each_example_is_that_of_the_objective():
    import torch

    from benchmd_ray.modality.modalities import modality
    from benchmd_ray.models.encoder import make_encoder
    from benchmd_ray.settings.definition import EncoderSettings, PretrainSettings
    from benchmd_ray.ssl.mae import MAE

    torch.manual_seed(0)
    size = EncoderSettings(width=16, depth=2, heads=2, head_dim=8, mlp=16, embedding_dropout=0.0)
    mae = MAE(make_encoder(modality("eeg").signal, size), PretrainSettings()).eval()
    signals = torch.randn(5, 2, 3750)
    draws = mae.draw(5, torch.Generator().manual_seed(0))
    with torch.no_grad():
        each = mae.each(signals, draws["masked"])
        torch.testing.assert_close(each.mean(), mae(signals, draws))
