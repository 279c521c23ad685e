harmony_test(document_test
  SOURCES common/document/document_test.cc
  DEPS harmony_document harmony_yaml LABELS pure)
