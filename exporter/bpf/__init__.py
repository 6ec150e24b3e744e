"""The bridge to the kernel: compiled BPF objects, their maps and programs, and where to attach them. It knows no probe."""
