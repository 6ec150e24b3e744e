// Garbage collections of CPython, by the USDT probes that it was built with: they stop all of its threads.
struct run_t {
    u32 pid;
    u32 generation;
};
struct event_t {
    u64 start;
    u64 end;
    u64 collected;
    u32 pid;
    u32 generation;
};
struct begun_t {
    u64 since;
    u64 generation;
};

BPF_HASH(begun, u64, struct begun_t, 4096);
BPF_HASH(runs, struct run_t, u64, 4096);
BPF_HASH(spent, struct run_t, u64, 4096);
BPF_HASH(collected, u32, u64, 4096);
BPF_RINGBUF_OUTPUT(events, 16);
BPF_ARRAY(lost, u64, 1);

int on_start(void *ctx) {
    u64 thread = bpf_get_current_pid_tgid();
    struct begun_t it = {.since = bpf_ktime_get_ns()};
    usdt_arg(ctx, 1, &it.generation);
    begun.update(&thread, &it);
    return 0;
}

int on_done(void *ctx) {
    u64 thread = bpf_get_current_pid_tgid(), none = 0, *count, *time, *objects;
    struct begun_t *it = begun.lookup(&thread);
    struct event_t event = {.pid = thread >> 32, .end = bpf_ktime_get_ns()};
    struct run_t run = {.pid = thread >> 32};
    int zero = 0;
    if (!it)
        return 0;
    run.generation = event.generation = it->generation;
    event.start = it->since;
    begun.delete(&thread);
    usdt_arg(ctx, 1, &event.collected);
    count = runs.lookup_or_try_init(&run, &none);
    time = spent.lookup_or_try_init(&run, &none);
    objects = collected.lookup_or_try_init(&run.pid, &none);
    if (!count || !time || !objects) {
        lost.increment(zero);
        return 0;
    }
    __sync_fetch_and_add(count, 1);
    __sync_fetch_and_add(time, event.end - event.start);
    __sync_fetch_and_add(objects, event.collected);
    if (event.end - event.start >= 10000000 && events.ringbuf_output(&event, sizeof(event), 0))
        lost.increment(zero);
    return 0;
}
