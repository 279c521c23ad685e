harmony_test(optimizer_test
  SOURCES worker/optimizer/narrow_gradient_test.cc worker/optimizer/optimizer_test.cc
          worker/optimizer/protected_update_test.cc
  DEPS harmony_optimizer harmony_io LABELS sanitize)

harmony_test(host_executor_test
  SOURCES worker/host/checkpoint_writer_test.cc worker/host/host_executor_test.cc
  DEPS harmony_host_executor LABELS sanitize)
