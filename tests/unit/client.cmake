harmony_test(client_test
  SOURCES client/command_line/completion_test.cc client/command_line/manual_test.cc
          client/commands/common_test.cc client/commands/doctor_test.cc client/commands/followed_file_test.cc
          client/commands/jobs_test.cc client/commands/output_file_test.cc
          client/commands/prune_test.cc
          client/launcher/cluster_test.cc
          client/launcher/heartbeat_watch_test.cc client/launcher/oom_watch_test.cc
          client/launcher/restart_policy_test.cc client/progress/render_test.cc
          client/progress/view_test.cc client/rpc/proto_json_test.cc
  DEPS harmony_commands LABELS sanitize)

harmony_test(launcher_files_test
  SOURCES client/launcher/child_process_test.cc client/launcher/handover_test.cc
          client/launcher/runtime_dir_test.cc
  DEPS harmony_launcher LABELS process)
