if(HARMONY_WITH_TORCH)
  harmony_test(device_worker_test
    SOURCES worker/service/device_worker_test.cc
    DEPS harmony_device_worker LABELS torch)
  harmony_test(worker_profile_test
    SOURCES worker/profile/layer_profiler_test.cc
    DEPS harmony_worker_profile LABELS torch)
  set_tests_properties(worker_profile_test PROPERTIES ENVIRONMENT "OMP_WAIT_POLICY=passive")
  harmony_test(worker_process_test
    SOURCES worker/service/worker_process_test.cc
    DEPS harmony_fake_coordinator harmony_ipc harmony_plan harmony_job_file
    LABELS process TIMEOUT 120)
  add_dependencies(worker_process_test harmony-worker)
  harmony_test(training_test
    SOURCES worker/service/training_test.cc
    DEPS harmony_mini_coordinator harmony_plain_trainer
    LABELS process TIMEOUT 300)
  add_dependencies(training_test harmony-worker harmony-swapper)
endif()
