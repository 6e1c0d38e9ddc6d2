"""`api.Classifier` as an estimator of scikit-learn."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import benchmd_ray
from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.estimator import Classifier


@pytest.mark.slow  # half a minute
@parametrize_with_checks([Classifier(kernels=60)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def waves(records=60, channels=2, samples=100):
    """Signals of two frequencies in noise, and their labels."""
    rng = np.random.default_rng(0)
    y = np.repeat(["fast", "slow"], records // 2)
    periods = np.where(y == "fast", 8, 25)[:, None, None]
    phase = rng.uniform(0, 6, (records, channels, 1))
    x = np.sin(2 * np.pi * np.arange(samples) / periods + phase)
    return x + rng.normal(0, 0.3, x.shape), y


def test_signals_of_several_channels_are_told_apart():
    x, y = waves()
    assert cross_val_score(Classifier(kernels=100), x, y, cv=3).min() > 0.9
    model = Classifier(kernels=100).fit(x, y, groups=np.arange(60) // 2)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(x), again.predict_proba(x))
    assert model.classes_.tolist() == ["fast", "slow"]
    with pytest.raises(ValueError, match=r"records of shape \(2, 90\), expected \(2, 100\)"):
        model.predict(x[:, :, :90])
    with pytest.raises(ValueError, match="groups has 3 patients of 60 records"):
        clone(model).fit(x, y, groups=[1, 2, 3])
    with pytest.raises(ValueError, match="groups has records without a patient"):
        clone(model).fit(x, y, groups=[None, *range(59)])
    answer = model.predict(x)
    with pytest.raises(ValueError, match="y has one class"):
        model.fit(x, np.zeros(60))
    assert (model.predict(x) == answer).all()  # as before


def test_images_and_volumes_are_taken():
    rng = np.random.default_rng(0)
    for shape in ((3, 12, 10), (1, 5, 8, 8)):
        x = rng.normal(size=(12, *shape))
        x[:6, :, 2:4] += 3
        y = np.repeat([1, 0], 6)
        model = Classifier(kernels=40).fit(x, y)
        assert model.score(x, y) == 1
        np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    with pytest.raises(ValueError, match="has 6 axes, expected two to 5"):
        Classifier().fit(x[..., None], y)


@pytest.mark.slow  # imports and kernels of several fits
def test_a_catalog_is_taken_with_its_labels(ecg_catalogs):
    opened = benchmd_ray.catalog(ecg_catalogs["ptb-xl"].path)
    model = benchmd_ray.Classifier(kernels=30).fit(opened)
    assert tuple(model.classes_) == opened.classes
    probabilities = model.predict_proba(opened)
    assert probabilities.shape == (opened.info.rows("test"), len(opened.classes))
    physical = opened.torch("test", physical=True)
    signals = np.stack([physical[row][0] for row in range(3)])
    np.testing.assert_allclose(model.predict_proba(signals), probabilities[:3], atol=1e-4)
    target = benchmd_ray.catalog(ecg_catalogs["georgia"].path)
    assert len(model.predict(target)) == target.info.rows("test")


def test_other_techniques_need_a_catalog():
    with pytest.raises(BenchmdError, match="the technique mae is trained by runs on a catalog"):
        Classifier(technique="mae").fit(*waves())


def test_a_technique_is_trained_by_runs(trained, ecg_catalogs):
    from small_runs import SMALL

    store, _, run = trained
    model = Classifier(technique="mae", store=store, settings=SMALL)
    opened = benchmd_ray.catalog(ecg_catalogs["ptb-xl"].path)
    model._keep(opened)  # as `fit` after the run, which `trained` has done
    model.run_ = run.folder
    probabilities = model.predict_proba(opened, "validation")
    expected = benchmd_ray.classifier(run)
    signal = opened.torch("validation", physical=True)[0][0].numpy()
    np.testing.assert_allclose(probabilities[:1], expected.predict(signal), atol=1e-5)
