// Flags that people bring from vLLM scripts. Those without meaning here pass with one notice; for the
// others somebody has to decide, so they are refused with the way to say it here.
#include <algorithm>
#include <iterator>

#include "core/config/command_line.hpp"

namespace qengine {
namespace {

constexpr const char* kNotHere = "leave it out; qengine has no such part";
constexpr const char* kNoLora = "leave it out; adapters are not loaded, merge them into the checkpoint first";
constexpr const char* kNoHub = "leave it out; models are never downloaded, name a folder or file with --model";
constexpr const char* kNoSpeculation = "leave it out; there is no speculative decoding";
constexpr const char* kNoMultimodal = "leave it out; only text models are run";
constexpr const char* kOneProcess = "leave it out; one process serves one model";

constexpr VllmFlag kFlags[] = {
    // accepted
    {"trust-remote-code", false, ""},
    {"tokenizer-mode", true, ""},
    {"disable-log-requests", false, ""},
    {"enable-log-requests", false, ""},
    {"distributed-executor-backend", true, ""},
    {"swap-space", true, ""},
    {"disable-frontend-multiprocessing", false, ""},
    {"disable-custom-all-reduce", false, ""},
    {"use-v2-block-manager", false, ""},
    {"disable-uvicorn-access-log", false, ""},
    {"uvicorn-log-level", true, ""},
    {"max-seq-len-to-capture", true, ""},
    {"disable-async-output-proc", false, ""},
    {"scheduling-policy", true, ""},
    // refused
    {"linear-backend", true, "kernels belong to plugins: --plugin-opt awq_marlin.kernel=NAME, names in qengine plugin info awq_marlin"},
    {"attention-backend", true, "leave it out; attention follows the device and the KV cache format"},
    {"moe-backend", true, kNotHere},
    {"cpu-offload-gb", true, "leave it out; weights stay on one device, choose a smaller format with --plugin"},
    {"kv-cache-dtype-skip-layers", true, "leave it out; every layer has the cache that --kv-cache-dtype names"},
    {"calculate-kv-scales", false, "leave it out; scales come from the checkpoint, --kv-cache-dtype fp8 uses 1.0 without them"},
    {"pipeline-parallel-size", true, "leave it out; one device holds the whole model"},
    {"data-parallel-size", true, kOneProcess},
    {"api-server-count", true, kOneProcess},
    {"decode-context-parallel-size", true, kNotHere},
    {"enable-expert-parallel", false, kNotHere},
    {"enable-lora", false, kNoLora},
    {"lora-modules", true, kNoLora},
    {"max-loras", true, kNoLora},
    {"max-lora-rank", true, kNoLora},
    {"speculative-config", true, kNoSpeculation},
    {"speculative-model", true, kNoSpeculation},
    {"num-speculative-tokens", true, kNoSpeculation},
    {"download-dir", true, kNoHub},
    {"revision", true, kNoHub},
    {"code-revision", true, kNoHub},
    {"tokenizer-revision", true, kNoHub},
    {"hf-token", true, kNoHub},
    {"hf-config-path", true, kNoHub},
    {"hf-overrides", true, "leave it out; change config.json, or --max-model-len for the context length"},
    {"rope-scaling", true, "leave it out; write rope_scaling into config.json"},
    {"rope-theta", true, "leave it out; write rope_theta into config.json"},
    {"config-format", true, "--load-format says which kind of files to read"},
    {"model-loader-extra-config", true, kNotHere},
    {"limit-mm-per-prompt", true, kNoMultimodal},
    {"mm-processor-kwargs", true, kNoMultimodal},
    {"language-model-only", false, kNoMultimodal},
    {"runner", true, "leave it out; models generate text"},
    {"task", true, "leave it out; models generate text"},
    {"convert", true, "leave it out; models generate text"},
    {"compilation-config", true, "leave it out; nothing is compiled at start, --enforce-eager turns graph capture off"},
    {"optimization-level", true, "leave it out; nothing is compiled at start"},
    {"cudagraph-capture-sizes", true, "leave it out; --enforce-eager turns graph capture off"},
    {"kv-transfer-config", true, kNotHere},
    {"kv-events-config", true, kNotHere},
    {"kv-offloading-size", true, kNotHere},
    {"guided-decoding-backend", true, "leave it out; structured output has one implementation"},
    {"structured-outputs-config", true, "leave it out; structured output has one implementation"},
    {"logits-processors", true, kNotHere},
    {"override-generation-config", true, "write [sampling] into a --config file"},
    {"ssl-keyfile", true, "leave it out; put a proxy that speaks TLS before --host and --port"},
    {"ssl-certfile", true, "leave it out; put a proxy that speaks TLS before --host and --port"},
    {"middleware", true, kNotHere},
    {"enable-sleep-mode", false, kNotHere},
    {"otlp-traces-endpoint", true, kNotHere},
    {"device-ids", true, "--device cuda:N chooses the GPU"},
    {"long-prefill-token-threshold", true, "--max-num-batched-tokens bounds the tokens of a step"},
    {"max-num-partial-prefills", true, "--max-num-batched-tokens bounds the tokens of a step"},
    {"skip-tokenizer-init", false, "leave it out; --prompt-ids goes past the tokenizer"},
    {"return-tokens-as-token-ids", false, "leave it out; it is a field of a request"},
    {"tool-parser-plugin", true, "--tool-call-parser NAME chooses a built-in one"},
    {"response-role", true, kNotHere},
};

}  // namespace

const VllmFlag* vllm_flag(std::string_view name) {
  const auto it = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const VllmFlag& f) { return name == f.name; });
  return it == std::end(kFlags) ? nullptr : it;
}

}  // namespace qengine
