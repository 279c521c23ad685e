harmony_test(rpc_test
  SOURCES common/rpc/address_test.cc common/rpc/command_codec_test.cc
  DEPS harmony_rpc harmony_plan LABELS pure)

# Not under ThreadSanitizer: gRPC is not built for it, so its locks are not seen.
harmony_test(attach_client_test
  SOURCES common/rpc/attach_client_test.cc
  DEPS harmony_rpc LABELS process)
