"""What M19 published, and where: the numbers that ours are put beside."""

from __future__ import annotations

PAPER = "Michel, Levy and Neubig, *Are Sixteen Heads Really Better than One?*, NeurIPS 2019, arXiv:1905.10650"

ONE_HEAD = {"heads": 96, "significant": 8, "better": 4}  # WMT encoder, table 1 and section 3.2, p < 0.01
ALL_BUT_ONE = {  # change of BLEU by layer (table 2), * is p < 0.01
    "encoder": "-1.31* -0.16 +0.12 -0.15 +0.02 -0.36*",
    "cross": "+0.24* +0.06 +0.05 -0.24 -1.55* -13.56*",
    "decoder": "-0.03 +0.12 +0.18 +0.17 -0.04 +0.24",
}
ALL_BUT_ONE_BERT = "-0.01 +0.10 -0.14 -0.53 -0.29 -0.52 +0.05 -0.72 -0.96 +0.07 -0.19 -0.12"  # percent, table 3
CHOSEN_APART = {"WMT": 0.5, "BERT": 1.0}  # layers without a significant change, tables 5 and 6
DOMAINS = {"WMT / MTNT": 0.56, "MNLI matched / mismatched": 0.68}  # figure 2, Pearson r, both p < 0.01
PRUNABLE = {"WMT": 0.2, "MNLI": 0.4, "SST-2": 0.6, "CoLA": 0.5, "MRPC": 0.5}  # figures 3 and 6, read off the curves
SPEED = {  # table 4: examples per second, and the gain as printed there
    1: (17.0, 17.3, 0.019), 4: (67.3, 69.1, 0.027), 16: (114.0, 134.0, 0.175), 64: (124.7, 146.6, 0.175),
}  # fmt: skip
KINDS = "Enc-Dec collapses beyond 60% pruned; Enc-Enc and Dec-Dec keep about 30 of 36 BLEU with 20% of their heads"
DYNAMICS = (
    "IWSLT14 de-en: at epochs 1 and 2 the score falls linearly with pruning, whatever the importance says; the "
    "distinction emerges between epochs 2 and 10; from epoch 10 on, 40% can go while 85-90% of BLEU stays"
)
