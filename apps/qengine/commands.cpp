// The list of commands. To add one: write cmd_NAME.cpp, name its Command here.
#include "apps/qengine/command.hpp"

namespace qengine {

extern const Command run_command;
extern const Command serve_command;
extern const Command inspect_command;
extern const Command plan_command;
extern const Command tokenize_command;
extern const Command eval_logits_command;
extern const Command eval_ppl_command;
extern const Command eval_kl_command;
extern const Command eval_greedy_hash_command;
extern const Command eval_tasks_command;
extern const Command eval_canary_command;
extern const Command bench_latency_command;
extern const Command bench_throughput_command;
extern const Command bench_serve_command;
extern const Command canary_status_command;
extern const Command canary_set_command;
extern const Command canary_abort_command;
extern const Command calibrate_kv_command;
extern const Command report_command;
extern const Command export_command;
extern const Command requantize_command;
extern const Command plugin_list_command;
extern const Command plugin_info_command;
extern const Command plugin_explain_command;
extern const Command plugin_trust_command;
extern const Command plugin_check_command;
extern const Command plugin_new_command;
extern const Command doctor_command;
extern const Command version_command;

const std::vector<const Command*>& all_commands() {
  static const std::vector<const Command*> commands{
      &run_command,
      &serve_command,
      &inspect_command,
      &plan_command,
      &tokenize_command,
      &eval_logits_command,
      &eval_ppl_command,
      &eval_kl_command,
      &eval_greedy_hash_command,
      &eval_tasks_command,
      &eval_canary_command,
      &bench_latency_command,
      &bench_throughput_command,
      &bench_serve_command,
      &canary_status_command,
      &canary_set_command,
      &canary_abort_command,
      &calibrate_kv_command,
      &report_command,
      &export_command,
      &requantize_command,
      &plugin_list_command,
      &plugin_info_command,
      &plugin_explain_command,
      &plugin_trust_command,
      &plugin_check_command,
      &plugin_new_command,
      &doctor_command,
      &version_command,
  };
  return commands;
}

}  // namespace qengine
