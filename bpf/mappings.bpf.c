/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Lists the executable mappings of regular files, of all processes or of one. /proc/PID/maps shows the inode of an
 * overlay; uprobes sit on the inode below it, and so does vm_file: what is listed here is the real one. */
#include "kernel.h"

#define VM_EXEC 4
#define S_IFMT 0170000
#define S_IFREG 0100000
#define NSEC_PER_SEC 1000000000ull

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded" /* the layouts are the kernel's, not these */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};
struct inode___facts {
	unsigned short i_mode;
	long long i_size;
	__u32 i_generation;
};
struct timespec64 {
	long long tv_sec;
	long tv_nsec;
};
struct inode___until_6_6 {
	struct timespec64 i_mtime;
};
struct inode___until_6_11 {
	struct timespec64 __i_mtime;
};
struct inode___now {
	long long i_mtime_sec;
	__u32 i_mtime_nsec;
};
#pragma clang attribute pop
#pragma clang diagnostic pop

/* One executable mapping. inode to generation distinguish the file and its content from every other one. */
struct mapping {
	__u64 image;   /* the address space: a new one after exec */
	__u64 started; /* when the process started, CLOCK_MONOTONIC */
	__u64 start;
	__u64 end;
	__u64 inode; /* its address in the kernel: numbers repeat across btrfs subvolumes */
	__u64 number;
	__u64 size;
	__u64 modified; /* nanoseconds since 1970 */
	__u32 device;	/* as the kernel numbers it: major << 20 | minor */
	__u32 generation;
	__u32 pid;
	__u32 unused;
};

static __always_inline __u64 modified(struct inode *inode)
{
	struct inode___now *now = (void *)inode;
	struct inode___until_6_11 *older = (void *)inode;
	struct inode___until_6_6 *oldest = (void *)inode;

	if (bpf_core_field_exists(now->i_mtime_sec))
		return now->i_mtime_sec * NSEC_PER_SEC + now->i_mtime_nsec;
	if (bpf_core_field_exists(older->__i_mtime))
		return older->__i_mtime.tv_sec * NSEC_PER_SEC + older->__i_mtime.tv_nsec;
	return oldest->i_mtime.tv_sec * NSEC_PER_SEC + oldest->i_mtime.tv_nsec;
}

static __noinline int put(struct seq_file *out, struct mapping *mapping)
{
	return bpf_seq_write(out, mapping, sizeof(*mapping));
}

SEC("iter/task_vma")
int mappings(struct bpf_iter__task_vma *context)
{
	struct task_struct *task = context->task;
	struct vm_area_struct *vma = context->vma;
	struct mapping mapping = {};
	struct inode___facts *facts;
	struct inode *inode;
	struct file *file;

	if (!task || !vma || !(vma->vm_flags & VM_EXEC))
		return 0;
	file = vma->vm_file;
	if (!file)
		return 0;
	inode = file->f_inode;
	facts = (void *)inode;
	if ((facts->i_mode & S_IFMT) != S_IFREG)
		return 0;
	mapping.image = (__u64)task->mm;
	mapping.started = task->group_leader->start_time;
	mapping.start = vma->vm_start;
	mapping.end = vma->vm_end;
	mapping.inode = (__u64)inode;
	mapping.number = inode->i_ino;
	mapping.size = facts->i_size;
	mapping.modified = modified(inode);
	mapping.device = inode->i_sb->s_dev;
	mapping.generation = facts->i_generation;
	mapping.pid = task->tgid;
	put(context->meta->seq, &mapping);
	return 0;
}
