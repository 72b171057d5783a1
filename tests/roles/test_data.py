"""Sentences: words found again in the text, labels of other schemes, raw text, and what is refused."""

import numpy as np
import pytest

from headcount.errors import BadData, HeadcountError
from headcount.roles import Sentence, Sentences, chosen_relations
from headcount.roles.sentence_roles import pieces_of_words
from headcount.roles.sentences import Tokens


def treebank(tmp_path, *sentences, name="some.conllu"):
    """Write sentences, each a list of comment lines and of words as "id form head relation [misc]"."""
    lines = []
    for sentence in sentences:
        for line in sentence:
            parts = line.split() if not line.startswith("#") else None
            if parts is None:
                lines.append(line)
            else:
                id, form, head, relation, *misc = parts
                lines.append("\t".join([id, form, "_", "_", "_", "_", head, relation, "_", *(misc or ["_"])]))
        lines.append("")
    path = tmp_path / name
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


DONT = [
    "# sent_id = first",
    "# text = I don't eat fish.",
    "1 I 4 nsubj",
    "2-3 don't _ _",
    "2 do 4 aux",
    "3 n't 4 advmod",
    "4 eat 0 root",
    "4.1 eat _ _",
    "5 fish 4 dobj SpaceAfter=No",
    "6 . 4 punct",
]


def test_words_are_found_in_the_text(tmp_path):
    sentence = Sentences.of(treebank(tmp_path, DONT)).sentences[0]
    assert [sentence.text[start:end] for start, end in sentence.words] == ["I", "do", "n't", "eat", "fish", "."]
    assert (4, 3, "obj") in sentence.relations  # dobj is what others call it
    assert all(head != dependent for dependent, head, _ in sentence.relations)
    assert sentence.place == "some.conllu, sentence 1 (first)"


def test_words_that_are_not_written_out_share_what_is(tmp_path):
    du = ["# text = Il parle du chat", "1 Il 2 nsubj", "2 parle 0 root", "3-4 du _ _", "3 de 5 case", "4 le 5 det"]
    sentence = Sentences.of(treebank(tmp_path, [*du, "5 chat 2 obl"])).sentences[0]
    assert [sentence.text[start:end] for start, end in sentence.words] == ["Il", "parle", "du", "du", "chat"]


def test_a_sentence_without_text_is_put_together(tmp_path):
    assert Sentences.of(treebank(tmp_path, DONT[2:])).sentences[0].text == "I don't eat fish."


def test_a_sentence_that_does_not_align_is_named(tmp_path):
    wrong = ["# sent_id = odd-7", "# text = It works", "1 It 2 nsubj", "2 worked 0 root"]
    with pytest.raises(BadData, match=r"some\.conllu, sentence 2 \(odd-7\): .*'worked'.*'works'"):
        Sentences.of(treebank(tmp_path, DONT, wrong))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"^bad\.conllu .*no sentences"),
        ("a\tb\n\n", r"^bad\.conllu, sentence 1: .*CoNLL-U"),
        ("1\tIt\t_\t_\t_\t_\t9\tnsubj\t_\t_\n\n", r"^bad\.conllu, sentence 1: 'It' .*word 9\b.*\b1$"),
        ("2\tIt\t_\t_\t_\t_\t0\troot\t_\t_\n\n", r"^bad\.conllu, sentence 1: .*1, 2, 3"),
    ],
)
def test_what_is_no_treebank_is_refused(tmp_path, content, message):
    (tmp_path / "bad.conllu").write_text(content)
    with pytest.raises(BadData, match=message):
        Sentences.of(tmp_path / "bad.conllu")
    with pytest.raises(BadData, match=r"missing\.conllu"):
        Sentences.of(tmp_path / "missing.conllu")
    (tmp_path / "bad.conllu").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match=r"^bad\.conllu: .*UTF-8"):
        Sentences.of(tmp_path / "bad.conllu")


def test_a_relation_that_never_occurs_is_refused(tmp_path):
    data = Sentences.of(treebank(tmp_path, DONT))
    assert chosen_relations(data, ["dobj", "nsubj"]) == (["obj", "nsubj"], [])
    assert chosen_relations(data, None) == (["nsubj", "obj", "advmod"], ["the data has no amod"])
    with pytest.raises(BadData, match=r"'nsub'.*'nsubj'"):
        chosen_relations(data, ["nsub"])
    with pytest.raises(BadData, match=r"'obj'.*data="):
        chosen_relations(Sentences((Sentence("It works."),)), ["obj"])


def test_subtypes_count_as_their_relation():
    passive = Sentence("It is seen", ((0, 2), (3, 5), (6, 10)), ((0, 2, "nsubj:pass"),))
    assert Sentences((passive,)).relations() == {"nsubj": 1, "nsubj:pass": 1}


def test_pieces_belong_to_the_word_whose_characters_they_share():
    sentence = Sentence("do n't", ((0, 2), (2, 2), (3, 6)))
    spans = np.array([(0, 0), (0, 2), (2, 4), (4, 6), (0, 0)])  # a piece with the space in front, as GPT-2 has them
    pieces = pieces_of_words(sentence.words, Tokens(np.arange(5), np.array([False, True, True, True, False]), spans))
    assert pieces.astype(int).tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 0]]


class Word:
    """A token as spaCy has them."""

    def __init__(self, i, text, idx, dep):
        self.i, self.text, self.idx, self.dep_, self.is_space = i, text, idx, dep, text.isspace()
        self.head = self


class Document:
    """A parsed text as spaCy has them: sentences end at full stops, every word depends on its sentence's first."""

    def __init__(self, text, annotated=True):
        self.text, self.annotated = text, annotated
        self.words, start = [], 0
        for i, word in enumerate(text.split(" ")):
            self.words.append(Word(i, word, start, "dobj"))
            start += len(word) + 1
        ends = [i for i, word in enumerate(self.words) if word.text == "."]
        self.sents, first = [], 0
        for end in ends:
            self.sents.append(self.words[first : end + 1])
            for word in self.words[first + 1 : end + 1]:
                word.head = self.words[first]
            first = end + 1

    def has_annotation(self, name):
        return self.annotated and name == "DEP"


class Pipeline:
    def __init__(self, annotated=True):
        self.annotated = annotated

    def pipe(self, texts):
        return (Document(text, self.annotated) for text in texts)


def test_raw_text_is_parsed():
    data = Sentences.of([{"text": "See this . And that ."}, {"text": "Go ."}], parser=Pipeline())
    assert [one.text for one in data.sentences] == ["See this .", "And that .", "Go ."]
    second = data.sentences[1]
    assert [second.text[start:end] for start, end in second.words] == ["And", "that", "."]
    assert second.relations == ((1, 0, "obj"), (2, 0, "obj"))
    with pytest.raises(HeadcountError, match=r"parser=.*en_core_web_sm"):
        Sentences.of([{"text": "Go ."}], parser=Pipeline(annotated=False))


def test_raw_text_by_spacy_itself():
    spacy = pytest.importorskip("spacy")
    from spacy.language import Language

    @Language.component("chain")
    def chain(document):
        for token in document:
            token.head = document[max(token.i - 1, 0)]
            token.dep_ = "ROOT" if token.i == 0 else "dobj"
        return document

    pipeline = spacy.blank("en")
    pipeline.add_pipe("chain")
    data = Sentences.of([{"text": "I don't know."}], parser=pipeline)
    assert data.sentences[0].relations == tuple((i, i - 1, "obj") for i in range(1, len(data.sentences[0].words)))


def test_without_a_parser_text_stays_unparsed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "spacy", None)
    data = Sentences.of([{"text": "It works."}])
    assert not data.sentences[0].relations
    assert "spaCy is not installed" in data.remarks[-1]
    assert Sentences.of([{"text": "It works."}], parser=False).remarks == ()
    with pytest.raises(HeadcountError, match=r"spaCy is not installed.*data="):
        Sentences.of([{"text": "It works."}], parser="en_core_web_sm")


def test_limits_are_random_and_keep_the_order():
    data = Sentences(tuple(Sentence(f"number {i}") for i in range(50)))
    some = data.take(10, seed=1)
    numbers = [int(one.text.split()[1]) for one in some.sentences]
    assert numbers == sorted(numbers) != list(range(10))
    assert some == data.take(10, seed=1) != data.take(10, seed=2)
    assert data.take(99) is data
    assert some.signature()["fingerprint"] != data.signature()["fingerprint"]
