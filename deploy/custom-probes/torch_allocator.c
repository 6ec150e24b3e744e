// What PyTorch's caching allocator does, per process and GPU: requests, and its own account of memory.
#include <uapi/linux/ptrace.h>

#define CUDA 1 // c10::DeviceType

struct place_t {
    u32 pid;
    u32 device;
};
struct memory_t {
    u64 allocated;
    u64 reserved;
};

BPF_HASH(requests, struct place_t, u64, 4096);
BPF_HASH(requested, struct place_t, u64, 4096);
BPF_HASH(memory, struct place_t, struct memory_t, 4096);
BPF_ARRAY(lost, u64, 1);

static inline void lose(void) {
    int zero = 0;
    lost.increment(zero);
}

// NativeCachingAllocator::malloc(this, void **ptr, int8 device, size_t size, stream)
int on_malloc(struct pt_regs *ctx) {
    struct place_t place = {.pid = bpf_get_current_pid_tgid() >> 32, .device = (u8)PT_REGS_PARM3(ctx)};
    u64 none = 0, *count = requests.lookup_or_try_init(&place, &none);
    u64 *bytes = requested.lookup_or_try_init(&place, &none);
    if (!count || !bytes) {
        lose();
        return 0;
    }
    __sync_fetch_and_add(count, 1);
    __sync_fetch_and_add(bytes, PT_REGS_PARM4(ctx));
    return 0;
}

// c10::reportMemoryUsageToProfiler(void *ptr, int64 size, size_t allocated, size_t reserved, Device{int8 type, index}),
// which the allocator calls whenever either total has changed, profiler or not.
int on_report(struct pt_regs *ctx) {
    u64 device = PT_REGS_PARM5(ctx);
    struct place_t place = {.pid = bpf_get_current_pid_tgid() >> 32, .device = (device >> 8) & 0xff};
    struct memory_t now = {.allocated = PT_REGS_PARM3(ctx), .reserved = PT_REGS_PARM4(ctx)};
    if ((device & 0xff) == CUDA && memory.update(&place, &now))
        lose();
    return 0;
}
