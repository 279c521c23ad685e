harmony_test(store_test
  SOURCES coordinator/store/job_store_test.cc
  DEPS harmony_store LABELS pure)

# It plans whole jobs, which takes minutes when instrumented.
harmony_test(admission_test
  SOURCES coordinator/service/jobs/admission_test.cc
  DEPS harmony_coordinator_service)

harmony_test(coordinator_service_test
  SOURCES coordinator/service/access/limits_test.cc coordinator/service/access/rules_test.cc
          coordinator/service/background_work_test.cc coordinator/service/coordinator_test.cc
          coordinator/service/jobs/disk_space_test.cc coordinator/service/jobs/job_registry_test.cc
          coordinator/service/replan/drift_test.cc
          coordinator/service/replan/forecast_test.cc coordinator/service/replan/plan_changes_test.cc
          coordinator/service/run/job_run_test.cc
          coordinator/service/run/lane_monitor_test.cc coordinator/service/mailbox_test.cc
          coordinator/service/processes/members_test.cc
          coordinator/service/run/metrics_file_test.cc coordinator/service/run/metrics_log_test.cc
          coordinator/service/jobs/output_dir_test.cc coordinator/service/run/output_files_test.cc
          coordinator/service/processes/process_handle_test.cc coordinator/service/replan/replan_test.cc
          coordinator/service/server_lock_test.cc
          coordinator/service/run/step_log_test.cc coordinator/service/run/timeline_test.cc
  DEPS harmony_coordinator_service harmony_sim LABELS sanitize)

# Not under ThreadSanitizer, as attach_client_test.
harmony_test(peer_server_test
  SOURCES coordinator/service/access/peer_server_test.cc
  DEPS harmony_coordinator_service LABELS process)
