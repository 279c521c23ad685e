harmony_test(trace_test
  SOURCES common/trace/chrome_trace_test.cc
  DEPS harmony_trace LABELS pure)
