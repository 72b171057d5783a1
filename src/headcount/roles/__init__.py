"""What heads do: in sentences (V19 section 5), in a language model on random tokens, in Whisper on recordings."""

from headcount.roles.role_search import Role, Roles, find_roles
from headcount.roles.sentence_roles import Thresholds, chosen_relations
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
