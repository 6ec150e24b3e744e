// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Finds where this kernel keeps the calls of a thread that wait for their return probes, and the address to which these
 * return, for bpf/returns.bpf.h. */
#include "kernel.h"

/* Bytes from the beginning of each structure; all 0 where this kernel has others. */
__u64 task_utask = 0, utask_instances = 0, instance_stack = 0, instance_next = 0;
__u64 task_mm = 0, mm_area = 0, area_address = 0;

SEC("raw_tp")
int find(void *ctx __attribute__((unused)))
{
	struct task_struct *task = NULL;
	struct uprobe_task *utask = NULL;
	struct return_instance *instance = NULL;
	struct mm_struct *mm = NULL;
	struct xol_area *area = NULL;

	if (!bpf_core_field_exists(task->utask) || !bpf_core_field_exists(utask->return_instances) ||
	    !bpf_core_field_exists(instance->stack) || !bpf_core_field_exists(instance->next) ||
	    !bpf_core_field_exists(task->mm) || !bpf_core_field_exists(mm->uprobes_state.xol_area) ||
	    !bpf_core_field_exists(area->vaddr))
		return 0;
	task_utask = __builtin_preserve_field_info(task->utask, BPF_FIELD_BYTE_OFFSET);
	utask_instances = __builtin_preserve_field_info(utask->return_instances, BPF_FIELD_BYTE_OFFSET);
	instance_stack = __builtin_preserve_field_info(instance->stack, BPF_FIELD_BYTE_OFFSET);
	instance_next = __builtin_preserve_field_info(instance->next, BPF_FIELD_BYTE_OFFSET);
	task_mm = __builtin_preserve_field_info(task->mm, BPF_FIELD_BYTE_OFFSET);
	mm_area = __builtin_preserve_field_info(mm->uprobes_state.xol_area, BPF_FIELD_BYTE_OFFSET);
	area_address = __builtin_preserve_field_info(area->vaddr, BPF_FIELD_BYTE_OFFSET);
	return 0;
}
