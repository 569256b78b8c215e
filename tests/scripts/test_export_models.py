"""The table of exported networks, which is data: no torch is needed to read it."""

import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.append(str(SCRIPTS))

from export_models.architecture import SIZES, Input  # noqa: E402
from export_models.image_architectures import GENERATORS, IMAGES  # noqa: E402
from export_models.optimizer_forms import FORMS  # noqa: E402
from export_models.sound_architectures import SOUND  # noqa: E402
from export_models.text_architectures import TEXT  # noqa: E402

ARCHITECTURES = (*TEXT, *IMAGES, *GENERATORS, *SOUND)


def test_names_are_folders_and_each_has_one():
    names = [one.name for one in ARCHITECTURES]
    assert len(names) == len(set(names)) >= 100
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


@pytest.mark.parametrize("one", ARCHITECTURES, ids=lambda one: one.name)
def test_a_row_says_what_it_is_and_takes(one):
    assert re.fullmatch(r"[\w.]+:\w+", one.model) and re.fullmatch(
        r"([\w.]+:\w+)?", one.config_class
    )
    for given in one.inputs.values():
        assert all(isinstance(size, int) or size in SIZES for size in given.sizes)
        assert given.holds in ("normal", "ones") or given.holds > 0


def test_open_axes_are_those_with_names():
    assert Input(("batch", 3, "height")).open_axes() == {0: "batch", 2: "height"}


def test_forms_of_model_optimizer_have_names_of_their_own():
    names = {form.name for form in FORMS}
    assert len(names) == len(FORMS) == 70
    assert all(re.fullmatch(r"optimizer-[a-z]+\.[a-z0-9-]+\.(half-)?fp(16|32)", n) for n in names)
    assert not any(form.needs_gpu for form in FORMS if form.config.startswith(("INT", "FP8")))
