harmony_test(ipc_test
  SOURCES common/ipc/fd_passing_test.cc common/ipc/heartbeat_test.cc
          common/ipc/host_memory_test.cc
          common/ipc/prefault_test.cc common/ipc/segment_test.cc common/ipc/semaphore_test.cc
          common/ipc/service_manager_test.cc
  DEPS harmony_ipc LABELS sanitize)
