// From the moment a request is given to a block device (NVMe, NVMe over fabrics, SCSI, virtio) until it is done.

struct request_t {
    u64 dev; // as wide as the next: a hole in a key would hold whatever was on the stack
    u64 sector;
};
struct slot_t {
    u32 major;
    u32 minor;
    u32 write;
    u32 slot;
};
struct device_t {
    u32 major;
    u32 minor;
    u32 write;
};

BPF_TABLE("lru_hash", struct request_t, u64, issued, 65536);
BPF_HASH(times, struct slot_t, u64, 16384);
BPF_HASH(total, struct device_t, u64, 1024);
BPF_HASH(errors, struct device_t, u64, 1024);
BPF_ARRAY(lost, u64, 1);

TRACEPOINT_PROBE(block, block_rq_issue) {
    struct request_t request = {.dev = args->dev, .sector = args->sector};
    u64 now = bpf_ktime_get_ns();
    if (args->nr_sector)
        issued.update(&request, &now);
    return 0;
}

TRACEPOINT_PROBE(block, block_rq_complete) {
    struct request_t request = {.dev = args->dev, .sector = args->sector};
    u64 none = 0, *since = issued.lookup(&request), *count, *sum;
    struct slot_t slot = {.major = args->dev >> 20, .minor = args->dev & 0xfffff};
    struct device_t device = {.major = slot.major, .minor = slot.minor};
    int zero = 0;
    if (!since)
        return 0;
    u64 us = (bpf_ktime_get_ns() - *since) / 1000;
    issued.delete(&request);
    slot.write = device.write = args->rwbs[0] == 'W' || (args->rwbs[0] == 'F' && args->rwbs[1] == 'W');
    slot.slot = bpf_log2l(us);
    count = times.lookup_or_try_init(&slot, &none);
    sum = total.lookup_or_try_init(&device, &none);
    if (!count || !sum) {
        lost.increment(zero);
        return 0;
    }
    __sync_fetch_and_add(count, 1);
    __sync_fetch_and_add(sum, us);
    if (args->error)
        errors.increment(device);
    return 0;
}
