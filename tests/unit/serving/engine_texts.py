"""Texts of inference engines' /metrics, after their documentation; llama.cpp's is of a server that ran."""

from __future__ import annotations


def histogram(name: str, labels: str, *cumulated: tuple[str, int], total: float) -> str:
    """The lines of a histogram with these bounds and counts up to them."""
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {count:.1f}' for bound, count in cumulated]
    lines += [f"{name}_count{{{labels}}} {cumulated[-1][1]:.1f}", f"{name}_sum{{{labels}}} {total}"]
    return "\n".join([f"# HELP {name} Histogram of {name}.", f"# TYPE {name} histogram", *lines, ""])


VLLM = """# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12155.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 23.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.875
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.234567e+06
# HELP vllm:prompt_tokens_created Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.7954e+09
""" + histogram(
    "vllm:time_to_first_token_seconds",
    'engine="0",model_name="meta-llama/Llama-3.1-8B"',
    ("0.001", 0),
    ("0.5", 3),
    ("+Inf", 5),
    total=4.5,
)
SGLANG = """# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="llama",tp_rank="0"} 7.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="llama",tp_rank="0"} 23.0
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="llama",tp_rank="0"} 0.875
"""
TENSORRT_LLM = histogram(
    "trtllm_time_to_first_token_seconds", 'model_name="llama",engine_type="trtllm"', ("0.5", 3), ("+Inf", 5), total=4.5
)
TRITON = """# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="llama",version="1"} 23
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="llama",version="1"} 7
# HELP nv_inference_request_summary_us Summary of inference request durations in microseconds
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us{model="llama",version="1",quantile="0.5"} 1000
"""
DYNAMO = """# HELP dynamo_frontend_inflight_requests Number of inflight requests
# TYPE dynamo_frontend_inflight_requests gauge
dynamo_frontend_inflight_requests{model="llama"} 7
""" + histogram("dynamo_frontend_time_to_first_token_seconds", 'model="llama"', ("0.5", 3), ("+Inf", 5), total=4.5)
LLAMA_CPP = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 54
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 7
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 23
"""
TGI = """# TYPE tgi_queue_size gauge
tgi_queue_size 23
# TYPE tgi_request_success counter
tgi_request_success 7
"""
