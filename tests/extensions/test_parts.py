"""Versions of the code that computes results: recorded sources, and what they are part of."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from parts import EVALUATED, PACKAGE, RECORDED, differing, parts_now, source_of
from stores import make_pretraining, make_transfer, predict_all

from benchmd_ray.extensions import parts as module
from benchmd_ray.extensions.parts import PARTS, Part, older, versions_of
from benchmd_ray.report.analysis import analyse
from benchmd_ray.service.naming import pretraining, transferring
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.ssl import METHODS

NO_RESULT = {
    "models/__init__.py",
    "models/average.py",
    "models/digest.py",
    "models/encoder_cards.py",
    "models/fetched.py",
    "models/networks.py",
    "ssl/brought.py",
    "training/__init__.py",
    *(f"training/{name}.py" for name in ("applied", "checkpoints", "jobs", "launch", "notice")),
    *(
        f"training/{name}.py"
        for name in ("members", "on_files", "ray_train", "reporter", "weights")
    ),
}
"""Modules of these rooms that compute none of a run: files, messages, processes, exported averages.
"""


def test_a_change_of_results_is_a_change_of_version():
    assert differing(parts_now(), json.loads(RECORDED.read_text())) == []


def test_every_module_that_computes_belongs_to_a_part():
    held = {file for part in PARTS.values() for file in part.files}
    held |= {file for files in EVALUATED.values() for file in files}
    rooms = ("models", "ssl", "training")
    there = {
        p.relative_to(PACKAGE).as_posix() for room in rooms for p in PACKAGE.glob(f"{room}/*.py")
    }
    assert there - held == NO_RESULT
    assert METHODS.keys() <= PARTS.keys()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("0.5", "0.25"), True),
        (("# why", "# because"), False),
        (("What it does.", "Something else."), False),
        (("is too large", "is larger"), False),
        (("x > 1", "x > 2"), True),
    ],
)
def test_wording_changes_no_source_and_numbers_do(tmp_path, change, found):
    text = (
        'def f(x):\n    """What it does."""\n    if x > 1:\n        raise ValueError(f"{x} is too '
        'large")\n    return 0.5 * x  # why\n'
    )
    (tmp_path / "m.py").write_text(text)
    part = {"m": Part(1, ("m.py",))}
    recorded = {"m": [1, source_of(tmp_path, ("m.py",))]}
    assert differing(part, recorded, tmp_path) == []
    assert change[0] in text
    (tmp_path / "m.py").write_text(text.replace(*change))
    said = differing(part, recorded, tmp_path)
    assert bool(said) == found
    assert all("its version did not: raise it" in line for line in said)
    (line,) = differing({"m": Part(2, ("m.py",))}, recorded, tmp_path)
    assert "version 2 is not recorded (1 is)" in line
    (line,) = differing({}, recorded, tmp_path)
    assert "no part any more" in line


def test_a_run_is_named_by_the_versions_of_the_parts_that_it_uses(
    ecg_catalogs, tmp_path, monkeypatch
):
    source = ecg_catalogs["ptb-xl"]
    settings = updated(Settings(), {"execution": {"device": "cpu", "precision": "float32"}})
    tuned = updated(settings, {"transfer": {"mode": "finetune"}})

    def names():
        mae = pretraining("mae", source, settings, None).description
        shed = pretraining("shed", source, settings, None).description
        linear = transferring(source, settings, None).description
        whole = transferring(source, tuned, None).description
        return [made["determinants"] for made in (mae, shed, linear, whole)]

    before = names()
    assert [("mae" in d["parts"], "shed" in d["parts"]) for d in before[:2]] == [
        (True, False),
        (False, True),
    ]
    for part, changed in {
        "mae": [True, False, False, False],
        "pretraining": [True, True, False, False],
        "linear evaluation": [False, False, True, False],
        "transfer": [False, False, True, True],
        "normalisation": [True] * 4,
        "resnet": [False] * 4,
    }.items():
        raised = {**PARTS, part: replace(PARTS[part], version=PARTS[part].version + 1)}
        with monkeypatch.context() as patch:
            patch.setattr(module, "PARTS", raised)
            assert [a != b for a, b in zip(names(), before, strict=True)] == changed, part
    assert names() == before


def test_results_of_two_versions_are_two_rows_and_their_names_say_so(tmp_path):
    now = PARTS["transfer"].version
    made = [
        make_transfer(tmp_path, seed=seed, parts={"transfer": version})
        for seed, version in ((0, now), (1, 7))
    ]
    for run in made:
        predict_all(run, {"ptb-xl": {"validation": 80}})
    analysis = analyse(made, resamples=20)
    assert set(analysis.scores["seeds"]) == {1}
    names = {f"scratch (version of transfer {version})" for version in (now, 7)}
    assert set(analysis.scores["technique"]) == names
    (note,) = [n for n in analysis.notes if n.startswith("Made by version ")]
    assert note.startswith(f"Made by version transfer 7, now {now}: {made[1].folder.name}.")
    assert analysis.ran["parts"].tolist() == [f"transfer {now}", "transfer 7"]


def test_transfers_from_pretrainings_of_two_versions_are_not_pooled(tmp_path):
    made = []
    for seed, version in ((0, 1), (1, 2)):
        upstream = make_pretraining(tmp_path, "mae", seed=seed, parts={"mae": version})
        made += [
            upstream,
            make_transfer(tmp_path, "mae", upstream=upstream, seed=seed, fixed=False),
        ]
        predict_all(made[-1], {"ptb-xl": {"validation": 80}})
    analysis = analyse(made, resamples=20)
    assert set(analysis.scores["seeds"]) == {1}
    assert "MAE (version of mae 2)" in set(analysis.scores["technique"])


def test_versions_are_of_parts_alone_and_others_than_now_are_named():
    assert versions_of(["mae", "my:Net", ""]) == {"mae": PARTS["mae"].version}
    assert older({"mae": PARTS["mae"].version}) == []
    assert older({"gone": 1}) == ["gone 1, now gone"]
