"""What `headcount demo` works on: a real encoder with real reviews, and a translator of numbers trained on the spot."""
