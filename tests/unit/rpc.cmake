harmony_test(rpc_test
  SOURCES common/rpc/address_test.cc common/rpc/attach_client_test.cc
          common/rpc/command_codec_test.cc
  DEPS harmony_rpc LABELS pure)
