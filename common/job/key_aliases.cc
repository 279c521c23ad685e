#include "common/job/key_aliases.h"

#include <array>
#include <utility>

namespace harmony::job {
namespace {

using absl::string_view;
using Pair = std::pair<string_view, string_view>;

constexpr std::array<Pair, 12> kAliases = {{{"lr", "learning_rate"},
                                            {"lr_scheduler", "lr_scheduler_type"},
                                            {"optimizer", "optim"},
                                            {"max_seq_length", "sequence_length"},
                                            {"cutoff_len", "sequence_length"},
                                            {"seq_len", "sequence_length"},
                                            {"block_size", "sequence_length"},
                                            {"gradient_clipping", "max_grad_norm"},
                                            {"num_train_steps", "max_steps"},
                                            {"num_train_epochs", "epochs"},
                                            {"num_epochs", "epochs"},
                                            {"train_file", "data.path"}}};

constexpr std::array<Pair, 28> kAdvice = {{
    {"model", "use model_name_or_path"},
    {"model_name", "use model_name_or_path"},
    {"dataset", "use data: {path: FILE, format: text-bytes | tokens-u16 | tokens-u32}"},
    {"warmup_ratio", "use warmup_steps (below 1: a share of max_steps)"},
    {"batch_size", "use global_batch_size, sequences per optimizer step"},
    {"train_batch_size", "use global_batch_size, sequences per optimizer step"},
    {"fp16", "use bf16: true, or remove it: fp16 is not built"},
    {"mixed_precision", "use bf16: true"},
    {"precision", "use bf16: true for mixed precision"},
    {"grad_dtype", "use gradient_dtype: auto, fp32 or bf16"},
    {"torch_dtype", "use bf16: true for mixed precision; export_dtype is the type of final/"},
    {"dtype", "use bf16: true for mixed precision; export_dtype is the type of final/"},
    {"gradient_checkpointing",
     "remove it: what does not fit is recomputed without asking, and nothing else is"},
    {"overwrite_output_dir", "give --overwrite on the command line, which moves the old one aside"},
    {"deepspeed", "remove it: memory beyond the devices is what Harmony does by itself"},
    {"fsdp", "remove it: memory beyond the devices is what Harmony does by itself"},
    {"dataloader_num_workers", "remove it: batches are read ahead by the host worker"},
    {"tokenizer_name", "remove it: data are token ids, or bytes"},
    {"save_strategy", "use save_steps"},
    {"eval_strategy", "remove it: evaluation is not built; `harmony export` writes any checkpoint"},
    {"per_device_eval_batch_size",
     "remove it: evaluation is not built; `harmony export` writes any checkpoint"},
    {"dataset_name", "use data: {path: FILE, format: text-bytes | tokens-u16 | tokens-u32}"},
    {"packing", "remove it: sequences follow one another in the file, without padding"},
    {"do_train", "remove it: a job trains"},
    {"tf32", "remove it: fp32 is computed in fp32; bf16: true is mixed precision"},
    {"torch_compile", "remove it: models are run by the runtime's own kernels and graphs"},
    {"lora_r", "add LoRA in PyTorch, and export that model: docs/your_own_model.md"},
    {"report_to",
     "remove it: metrics.jsonl in output_dir has a line for every logging_steps steps"},
}};

string_view Find(absl::string_view name, const auto& table) {
  for (const auto& [other, text] : table) {
    if (other == name) return text;
  }
  return "";
}

}  // namespace

absl::string_view OwnName(absl::string_view name) {
  const string_view ours = Find(name, kAliases);
  return ours.empty() ? name : ours;
}

absl::string_view AdviceFor(absl::string_view name) { return Find(name, kAdvice); }

}  // namespace harmony::job
