/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The kernel types that programs read: only the fields used, found by name when the object is loaded (CO-RE).
 * An object that includes this needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF); keep other programs out of it. */
#pragma once
#include "probe.h"
#include <bpf/bpf_core_read.h>

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded" /* the layouts are the kernel's, not these */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct file_system_type {
	const char *name;
};

struct super_block {
	__u32 s_dev;
	struct file_system_type *s_type;
};

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct mm_struct {
	unsigned long arg_start;
	struct file *exe_file;
	struct uprobes_state uprobes_state;
};

struct signal_struct {
	atomic_t live;
	int group_exit_code;
};

struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct task_struct {
	int pid;
	int tgid;
	__u64 start_time;
	__u64 start_boottime;
	int exit_code;
	unsigned int flags;
	char comm[16];
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct mm_struct *mm;
	struct files_struct *files;
	struct uprobe_task *utask;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

#pragma clang attribute pop
#pragma clang diagnostic pop

/* The type of a file system as /proc/filesystems names it; empty where it is not known. */
struct filesystem {
	char name[16];
};

/* Finds the file system of an open file of the current process. */
static __always_inline void filesystem_of(__u32 fd, struct filesystem *filesystem)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL;

	if (fd < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + fd);
	bpf_probe_read_kernel_str(filesystem->name, sizeof(filesystem->name),
				  BPF_CORE_READ(file, f_inode, i_sb, s_type, name));
}
