if(HARMONY_WITH_TORCH)
  harmony_test(worker_models_test
    SOURCES worker/models/gemm_test.cc worker/models/kernels_test.cc worker/models/layer_runner_test.cc worker/models/workspace_test.cc
    DEPS harmony_plain_trainer harmony_worker_device LABELS torch)
  harmony_test(worker_device_test
    SOURCES worker/device/sim_allocator_test.cc worker/device/workspace_test.cc
    DEPS harmony_worker_device harmony_torch LABELS torch)
  set_tests_properties(worker_models_test worker_device_test PROPERTIES
    ENVIRONMENT "OMP_WAIT_POLICY=passive;OMP_NUM_THREADS=2")
endif()
