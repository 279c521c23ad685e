if(HARMONY_WITH_TORCH)
  harmony_test(device_worker_test
    SOURCES worker/service/device_worker_test.cc
    DEPS harmony_device_worker LABELS torch)
endif()
