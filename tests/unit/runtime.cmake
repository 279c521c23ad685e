harmony_test(runtime_test
  SOURCES common/runtime/lane_executor_test.cc common/runtime/pacer_test.cc
          common/runtime/pulse_test.cc
  DEPS harmony_runtime LABELS sanitize TIMEOUT 60)
# Not under ThreadSanitizer: gRPC is not built for it, so its locks are not seen.
harmony_test(attached_process_test
  SOURCES common/runtime/attached_process_test.cc
  DEPS harmony_attached harmony_fake_coordinator LABELS process TIMEOUT 60)
harmony_test(profile_call_test
  SOURCES common/runtime/profile_call_test.cc
  DEPS harmony_profile_call LABELS pure)
