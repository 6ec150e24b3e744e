"""Stacks of calls: taken by bpf/stacks/, unwound and named in a child process, kept with what the calls allocated."""
