"""Generators of the pages of docs/ that code and rules declare; not part of the wheel."""
