"""AMD GPUs, as the kernel's driver amdgpu has them in sysfs."""
