harmony_test(swapper_core_test
  SOURCES swapper/core/slot_ledger_test.cc
  DEPS harmony_swapper_core LABELS pure)
harmony_test(swapper_transfer_test
  SOURCES swapper/transfer/copy_engine_test.cc
  DEPS harmony_swapper_transfer LABELS sanitize TIMEOUT 60)
harmony_test(swapper_profile_test
  SOURCES swapper/profile/link_profiler_test.cc
  DEPS harmony_swapper_profile LABELS sanitize TIMEOUT 60)
harmony_test(swapper_process_test
  SOURCES swapper/service/swapper_process_test.cc
  DEPS harmony_fake_coordinator harmony_ipc LABELS process TIMEOUT 60)
add_dependencies(swapper_process_test harmony-swapper)
if(HARMONY_CUDA)
  harmony_test(swapper_cuda_test
    SOURCES swapper/transfer/cuda_copier_test.cc
    DEPS harmony_swapper_transfer LABELS sanitize TIMEOUT 60)
  add_dependencies(swapper_cuda_test fake_cuda)
  set_tests_properties(swapper_cuda_test PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fake_cuda")
endif()
