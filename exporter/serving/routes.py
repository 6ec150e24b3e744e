"""The routes of inference servers, which are the values of the label `route`."""

from __future__ import annotations

import re

_KNOWN = (
    # OpenAI's, which vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI, Dynamo and Ollama have
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/score"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations"),
    *("/v1/messages", "/v2/embed", "/v2/rerank", "/v1/classify", "/v1/pooling"),
    # SGLang, TGI, vLLM, Triton, llama.cpp, SageMaker, Ollama
    *("/generate", "/generate_stream", "/chat/completions", "/completions", "/completion", "/infill"),
    *("/embed", "/embedding", "/embeddings", "/encode", "/classify", "/rerank", "/score", "/pooling", "/predict"),
    *("/invocations", "/inference/v1/generate", "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
)
_OF_GRPC = (
    *("/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer"),
    *("/tensorflow.serving.PredictionService/Predict", "/generate.v2.TextGenerationService/Generate"),
    *("/fmaas.GenerationService/Generate", "/fmaas.GenerationService/GenerateStream"),
    *("/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"),
    *("/sglang.grpc.scheduler.SglangScheduler/Generate", "/sglang.grpc.scheduler.SglangScheduler/Embed"),
    *("/trtllm.TrtllmService/Generate", "/trtllm.TrtllmService/Embed"),
)
"""KServe and Triton, TensorFlow Serving, TGI's shards, TGIS; of smg-grpc-proto vLLM, SGLang and TensorRT-LLM."""
_NO_INFERENCE = re.compile(rb"/grpc\.|/[^/]*/SubscribeKvEvents$")
"""gRPC's own services (health, reflection), and events of caches: streams that answer no request."""
_OF_A_MODEL = re.compile(
    r"/v2/models/[^/]+(?:/versions/[^/]+)?/(infer|generate|generate_stream)$|/v1/models/[^/]+:(predict)$"
)
LONGEST_LINE = 128
"""LINE of bpf/serving/serving.h."""
_LINE = re.compile(rb"POST (?:https?://[^/? ]*)?(/[!->@-~]*)(?:[? \0]|$)", re.IGNORECASE)
_BY_LENGTH = sorted(_KNOWN + _OF_GRPC, key=len, reverse=True)


def streams_answers(path: bytes) -> bool:
    """Return whether a stream of gRPC may be the answer to a request for inference."""
    return not _NO_INFERENCE.match(path)


def route(line: bytes) -> str:
    """Return the route of a request line's beginning: a known one at the end of its path, else nothing."""
    found = _LINE.match(line)
    if not found or found.end() == len(line) >= LONGEST_LINE:
        return ""  # what follows is not known, and may be of the path
    path = found[1].decode("ascii").rstrip("/")
    of_a_model = _OF_A_MODEL.search(path)
    if of_a_model:
        operation = of_a_model[1]
        return f"/v2/models/{{model}}/{operation}" if operation else "/v1/models/{model}:predict"
    return next((known for known in _BY_LENGTH if path.endswith(known)), "")
