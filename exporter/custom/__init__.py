"""Probes that a site defines itself: a C file in bcc's dialect and a YAML file that says what its maps mean."""
