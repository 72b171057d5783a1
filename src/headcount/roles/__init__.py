"""What heads do: attend to a position, to a syntactic relation or to the rarest word, or rest (V19 section 5)."""

from headcount.roles.measures import chosen_relations
from headcount.roles.role_search import Role, Roles, Thresholds, find_roles
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
