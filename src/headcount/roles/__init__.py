"""What heads do: look at a position, at a syntactic relation, at the rarest word, or rest (V19 section 5)."""

from headcount.roles.counts import Role
from headcount.roles.measures import chosen_relations
from headcount.roles.search import Roles, Thresholds, find_roles
from headcount.roles.sentences import Sentence, Sentences

__all__ = [
    "Role",
    "Roles",
    "Sentence",
    "Sentences",
    "Thresholds",
    "chosen_relations",
    "find_roles",
]
