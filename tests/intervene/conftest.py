"""The model that most edits are tried on."""

import pytest

import zoo


@pytest.fixture(scope="module")
def bert():
    return zoo.build("bert", "BertForSequenceClassification")


@pytest.fixture(scope="module")
def batch(bert):
    return zoo.inputs("bert", model=bert)
