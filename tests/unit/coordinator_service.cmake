harmony_test(store_test
  SOURCES coordinator/store/job_store_test.cc
  DEPS harmony_store LABELS pure)

harmony_test(coordinator_service_test
  SOURCES coordinator/service/coordinator_test.cc coordinator/service/disk_space_test.cc
          coordinator/service/drift_test.cc
          coordinator/service/forecast_test.cc
          coordinator/service/lane_monitor_test.cc coordinator/service/mailbox_test.cc
          coordinator/service/members_test.cc
          coordinator/service/metrics_file_test.cc coordinator/service/metrics_log_test.cc
          coordinator/service/output_dir_test.cc
          coordinator/service/process_handle_test.cc coordinator/service/replan_test.cc
          coordinator/service/server_lock_test.cc
          coordinator/service/timeline_test.cc
  DEPS harmony_coordinator_service LABELS sanitize)
