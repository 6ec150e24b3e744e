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

struct super_block {
	__u32 s_dev;
};

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct file {
	struct inode *f_inode;
};

struct mm_struct {
	struct file *exe_file;
};

struct signal_struct {
	atomic_t live;
	int group_exit_code;
};

struct task_struct {
	int pid;
	int tgid;
	__u64 start_time;
	__u64 start_boottime;
	int exit_code;
	char comm[16];
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct mm_struct *mm;
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
