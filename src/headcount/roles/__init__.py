"""What heads do: look at a position, at a syntactic relation, at the rarest word, or rest (V19 section 5)."""

from headcount.roles.find import Roles, Thresholds, find_roles
from headcount.roles.sentences import Sentence, Sentences
from headcount.roles.tally import Role

__all__ = ["Role", "Roles", "Sentence", "Sentences", "Thresholds", "find_roles"]
