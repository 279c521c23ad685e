harmony_test(runtime_test
  SOURCES common/runtime/lane_executor_test.cc common/runtime/pacer_test.cc
  DEPS harmony_runtime LABELS sanitize TIMEOUT 60)
harmony_test(profile_call_test
  SOURCES common/runtime/profile_call_test.cc
  DEPS harmony_profile_call LABELS pure)
