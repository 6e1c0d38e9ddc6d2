"""The table in docs/published_encoders.md is that of the cards."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("encoder_table", DOCS / "encoder_table.py")
encoder_table = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(encoder_table)


def test_the_table_of_published_encoders_is_that_of_the_cards():
    page = encoder_table.PAGE.read_text("utf-8")
    assert page == encoder_table.page(), "run: python docs/encoder_table.py"
    assert page.count("\n| `") == len(list((DOCS.parent / "model_catalog").glob("*.yaml"))) >= 12
