// How long Python threads wait for the interpreter lock (GIL) when they come back from a blocking call.
#include <uapi/linux/ptrace.h>

struct slot_t {
    u32 pid;
    u32 slot;
};

BPF_TABLE("lru_hash", u64, u64, waiting, 65536);
BPF_HASH(waits, struct slot_t, u64, 16384);
BPF_HASH(waited, u32, u64, 4096);
BPF_ARRAY(lost, u64, 1);

int on_restore(struct pt_regs *ctx) {
    u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    waiting.update(&thread, &now);
    return 0;
}

int on_restored(struct pt_regs *ctx) {
    u64 thread = bpf_get_current_pid_tgid(), none = 0, *since = waiting.lookup(&thread), *count, *sum;
    struct slot_t key = {.pid = thread >> 32};
    int zero = 0;
    if (!since)
        return 0;
    u64 ns = bpf_ktime_get_ns() - *since;
    waiting.delete(&thread);
    key.slot = bpf_log2l(ns / 1000);
    count = waits.lookup_or_try_init(&key, &none);
    sum = waited.lookup_or_try_init(&key.pid, &none);
    if (!count || !sum) {
        lost.increment(zero);
        return 0;
    }
    __sync_fetch_and_add(count, 1);
    __sync_fetch_and_add(sum, ns / 1000);
    return 0;
}
