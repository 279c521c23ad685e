harmony_test(io_test
  SOURCES common/io/atomic_file_test.cc common/io/checkpoint_export_test.cc common/io/checkpoint_manifest_test.cc
          common/io/checkpoint_reader_test.cc
          common/io/float_convert_test.cc common/io/hf_export_test.cc
          common/io/safetensors_test.cc common/io/derived_inputs_test.cc common/io/sequence_order_test.cc
          common/io/token_file_test.cc common/io/training_data_test.cc common/io/weight_map_test.cc
  DEPS harmony_io LABELS sanitize)
