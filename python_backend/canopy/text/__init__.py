"""Between text and tokens: encoding, chat templates, incremental decoding, stop rules."""
