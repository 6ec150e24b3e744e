"""Probes that a site defines itself: a C file in bcc's dialect and a YAML file that declares what its maps mean."""
